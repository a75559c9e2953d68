#include "nanovllm/server/http/connection.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <ctime>
#include <memory>
#include <optional>

#include "nanovllm/base/system/clock.h"
#include "nanovllm/base/system/file_descriptor.h"
#include "nanovllm/server/http/api_error.h"
#include "nanovllm/server/http/ids.h"

namespace nanovllm::server {

namespace beast = boost::beast;
namespace http = boost::beast::http;

namespace {

using Protocol = asio::generic::stream_protocol;
using Stream = beast::basic_stream<Protocol>;
using Parser = http::request_parser<http::string_body>;

std::string_view to_view(boost::string_view text) { return {text.data(), text.size()}; }

class Reply : public HttpReply {
 public:
  Reply(Stream& stream, const HttpLimits& limits, const HttpRequest& request, bool keep_alive,
        bool is_old)
      : stream_(stream),
        limits_(limits),
        request_(request),
        keep_alive_(keep_alive),
        is_old_(is_old) {}
  ~Reply() override {
    error_code ignored;
    if (state_) {
      state_->then = nullptr;
      state_->hang_up.reset();
      stream_.socket().cancel(ignored);
    }
  }

  Task<> send(int status, std::string_view content_type, std::string body,
              const HttpHeaders& headers) override {
    status_ = status;
    std::string head = begin(content_type, headers);
    head += fmt::format("Content-Length: {}\r\n\r\n", body.size());
    if (request_.method == "HEAD") body.clear();
    co_await write(head, body);
  }

  Task<> begin_events() override {
    status_ = 200;
    if (is_old_)
      keep_alive_ = false;  // HTTP/1.0 has no chunks: the end of the connection is the end
    HttpHeaders headers;
    headers.emplace_back("Cache-Control", "no-cache");
    headers.emplace_back("X-Accel-Buffering", "no");  // no proxy holds events back
    std::string head = begin("text/event-stream; charset=utf-8", headers);
    head += is_old_ ? "\r\n" : "Transfer-Encoding: chunked\r\n\r\n";
    co_await write(head);
  }

  void add_event(std::string_view data, std::string_view name) override {
    if (!name.empty()) (events_ += "event: ").append(name) += '\n';
    (events_ += "data: ").append(data) += "\n\n";
  }

  Task<> flush() override {
    if (events_.empty()) co_return;
    const std::string size = fmt::format("{:x}\r\n", events_.size());
    if (is_old_) co_await write(events_);
    else co_await write(size, events_, "\r\n");
    events_.clear();
  }

  Task<> end_events() override {
    co_await flush();
    if (!is_old_) co_await write("0\r\n\r\n");
  }

  void on_gone(std::function<void()> then) override {
    if (!state_) {
      state_ =
          std::make_shared<State>(State{stream_.get_executor(), stream_.socket().native_handle()});
      stream_.socket().async_wait(asio::socket_base::wait_read, [state = state_](error_code error) {
        char next = 0;
        if (error || !state->then) return;
        // More bytes are the next request of a client that does not wait.
        if (::recv(state->socket, &next, 1, MSG_PEEK | MSG_DONTWAIT) > 0) wait_for_hang_up(state);
        else state->leave();
      });
    }
    state_->then = std::move(then);
  }

  int status() const override { return status_; }
  bool keep_alive() const { return keep_alive_; }
  bool client_is_gone() const { return state_ && state_->is_gone; }

 private:
  struct State {
    asio::any_io_executor executor;
    int socket;
    std::function<void()> then = nullptr;
    std::optional<asio::posix::stream_descriptor> hang_up = std::nullopt;
    bool is_gone = false;

    void leave() {
      is_gone = true;
      then();
    }
  };

  /// Asio can only wait for bytes, and those that nobody reads would end every such wait. So the
  /// end of the connection gets an epoll of its own.
  static void wait_for_hang_up(const std::shared_ptr<State>& state) {
    FileDescriptor hang_up(::epoll_create1(EPOLL_CLOEXEC));
    error_code error;
    if (hang_up.get() >= 0) state->hang_up.emplace(state->executor).assign(hang_up.get(), error);
    // No file descriptor or memory is free: a write will notice the end.
    if (hang_up.get() < 0 || error) return;
    epoll_event event{};
    event.events = EPOLLRDHUP;
    ::epoll_ctl(hang_up.release(), EPOLL_CTL_ADD, state->socket, &event);
    state->hang_up->async_wait(asio::posix::descriptor_base::wait_read, [state](error_code error) {
      if (!error && state->then) state->leave();
    });
  }

  std::string begin(std::string_view content_type, const HttpHeaders& headers) const {
    std::string head = fmt::format(
        "HTTP/1.1 {} {}\r\nDate: {:%a, %d %b %Y %H:%M:%S} GMT\r\nContent-Type: {}\r\n"
        "X-Request-Id: {}\r\n",
        status_, to_view(http::obsolete_reason(static_cast<http::status>(status_))),
        fmt::gmtime(std::time(nullptr)), content_type, request_.id);
    for (const HttpHeaders* more : {&headers, &more_headers})
      for (const auto& [name, value] : *more) head += fmt::format("{}: {}\r\n", name, value);
    if (!keep_alive_) head += "Connection: close\r\n";
    else if (is_old_) head += "Connection: keep-alive\r\n";
    return head;
  }

  /// First tries a plain send(). Nearly always the socket has room, and then this system call is
  /// the whole cost of the write. An asynchronous write would cost twice as much, because it also
  /// sets a timer and goes through the event loop.
  Task<> write(std::string_view a, std::string_view b = {}, std::string_view c = {}) {
    std::array<asio::const_buffer, 3> buffers = {asio::buffer(a), asio::buffer(b), asio::buffer(c)};
    error_code error;
    size_t written = stream_.socket().send(buffers, 0, error);
    if (error == asio::error::would_block) error.clear();
    if (error) throw boost::system::system_error(error);
    if (written == a.size() + b.size() + c.size()) co_return;
    for (asio::const_buffer& buffer : buffers) {
      const size_t skipped = std::min(written, buffer.size());
      buffer += skipped;
      written -= skipped;
    }
    stream_.expires_after(limits_.write_timeout);
    co_await asio::async_write(stream_, buffers, asio::use_awaitable);
    stream_.expires_never();
  }

  Stream& stream_;
  const HttpLimits& limits_;
  const HttpRequest& request_;
  bool keep_alive_;
  const bool is_old_;
  int status_ = 0;
  std::string events_;
  std::shared_ptr<State> state_;
};

/// Ends the reads of a request that take too long. The stream's own timeout would close the
/// connection, and the client would get no answer.
class ReadLimit {
 public:
  ReadLimit(Stream& stream, std::chrono::seconds seconds)
      : timer_(stream.get_executor()), state_(std::make_shared<State>(State{&stream})) {
    restart(seconds);
  }
  ReadLimit(const ReadLimit&) = delete;
  ~ReadLimit() { state_->stream = nullptr; }
  void restart(std::chrono::seconds seconds) {
    timer_.expires_after(seconds);
    timer_.async_wait([state = state_](error_code cancelled) {
      if (cancelled || state->stream == nullptr) return;
      state->has_expired = true;
      error_code ignored;
      state->stream->socket().cancel(ignored);
    });
  }
  bool has_expired() const { return state_->has_expired; }

 private:
  struct State {  // the handler of the timer may run after the object is gone
    Stream* stream = nullptr;
    bool has_expired = false;
  };
  asio::steady_timer timer_;
  std::shared_ptr<State> state_;
};

/// The error for a request that could not be read; nothing if no answer makes sense.
std::optional<ApiError> error_of(error_code error, const HttpLimits& limits) {
  if (error == http::error::body_limit) return ApiError::too_large(limits.body_bytes);
  if (error == http::error::header_limit || error == http::error::buffer_overflow)
    return ApiError(431, fmt::format("the headers are larger than {} bytes", limits.header_bytes));
  if (error.category() == make_error_code(http::error::bad_method).category() &&
      error != http::error::end_of_stream && error != http::error::partial_message)
    return ApiError(400, fmt::format("not a valid HTTP request: {}", error.message()));
  return std::nullopt;
}

/// The error for headers that Beast accepts and this server does not.
std::optional<ApiError> error_of(const http::request<http::string_body>& head) {
  const size_t num_hosts = head.count(http::field::host);
  if (num_hosts > 1 || (num_hosts == 0 && head.version() >= 11))
    return ApiError(400, "not a valid HTTP request: it must have one header 'Host'");
  const size_t num_encodings = head.count(http::field::transfer_encoding);
  if (num_encodings > 1 ||
      (num_encodings == 1 &&
       !equal_in_any_case(to_view(head[http::field::transfer_encoding]), "chunked")))
    return ApiError(501, "the only Transfer-Encoding that is supported is 'chunked'");
  return std::nullopt;
}

/// The path of a request's target. A client of a proxy writes a whole URL.
std::string path_of(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!equal_in_any_case(target.substr(0, scheme.size()), scheme)) continue;
    target.remove_prefix(std::min(target.find_first_of("/?", scheme.size()), target.size()));
    if (!target.starts_with('/')) target = "/";
  }
  return std::string(target.substr(0, target.find('?')));
}

class Connection {
 public:
  Connection(Protocol::socket socket, HttpService& service)
      : stream_(std::move(socket)), service_(service) {
    error_code ignored;
    stream_.socket().non_blocking(true, ignored);  // for Reply::write()
  }

  Task<> run() {
    while (co_await serve_one()) continue;
    error_code error;
    stream_.socket().shutdown(asio::socket_base::shutdown_send, error);
    // What the client still sends is read for a moment: closing a socket with unread bytes would
    // also take back the response.
    stream_.expires_after(kLinger);
    buffer_.consume(buffer_.size());
    while (!error)
      co_await stream_.async_read_some(buffer_.prepare(kFirstRead),
                                       asio::redirect_error(asio::use_awaitable, error));
  }

 private:
  /// Reads and answers a request. Returns false if the connection has to end.
  Task<bool> serve_one() {
    stream_.expires_after(limits_.idle_timeout);
    while (!has_begun())
      buffer_.commit(
          co_await stream_.async_read_some(buffer_.prepare(kFirstRead), asio::use_awaitable));
    const double start = steady_seconds();
    Parser parser;
    parser.header_limit(static_cast<uint32_t>(limits_.header_bytes));
    parser.body_limit(limits_.body_bytes);
    error_code error;
    stream_.expires_never();
    std::optional<ReadLimit> limit(std::in_place, stream_, limits_.header_timeout);
    co_await http::async_read_header(stream_, buffer_, parser,
                                     asio::redirect_error(asio::use_awaitable, error));
    HttpRequest request = read_head(parser);
    Counted body_bytes(service_.body_bytes);
    std::optional<ApiError> refusal;
    if (!error) refusal = error_of(parser.get());
    if (!error && !refusal && !parser.is_done()) refusal = refusal_of(request, parser);
    if (!error && !refusal && equal_in_any_case(request.header("Expect"), "100-continue"))
      co_await asio::async_write(stream_,
                                 asio::buffer(std::string_view("HTTP/1.1 100 Continue\r\n\r\n")),
                                 asio::use_awaitable);
    limit->restart(limits_.body_timeout);
    while (!error && !refusal && !parser.is_done()) {
      co_await http::async_read_some(stream_, buffer_, parser,
                                     asio::redirect_error(asio::use_awaitable, error));
      body_bytes.set(parser.get().body().size());
      if (!has_room_for(0)) refusal = ApiError::bodies_too_large(limits_.all_body_bytes);
    }
    if (error) refusal = limit->has_expired() ? ApiError::too_slow() : error_of(error, limits_);
    limit.reset();
    Reply reply(stream_, limits_, request, !error && !refusal && parser.get().keep_alive(),
                parser.get().version() < 11);
    reply.more_headers = service_.more_headers(request);
    if (refusal) {
      body_bytes.set(0);
      parser.get().body() = std::string();
      const HttpHeaders headers = refusal->headers();
      co_await reply.send(refusal->status, "application/json", refusal->body(request.path),
                          headers);
      log(request, reply, start, /*client_is_gone=*/false);
    }
    if (error || refusal) co_return false;
    request.body = std::move(parser.get().body());
    request.body_bytes = std::move(body_bytes);
    try {
      co_await service_.handler(request, reply);
    } catch (...) {
      log(request, reply, start, /*client_is_gone=*/true);
      throw;
    }
    log(request, reply, start, reply.client_is_gone());
    if (buffer_.size() == 0) buffer_.shrink_to_fit();
    co_return reply.keep_alive();
  }

  /// Whether bytes of a request have arrived. Some clients send an empty line before it.
  bool has_begun() {
    for (;; buffer_.consume(2)) {
      const std::string_view text(static_cast<const char*>(buffer_.data().data()), buffer_.size());
      if (!text.starts_with("\r\n")) return !text.empty() && text != "\r";
    }
  }

  /// The error for a request with a body that is not read.
  std::optional<ApiError> refusal_of(const HttpRequest& request, Parser& parser) const {
    try {
      service_.check(request);
    } catch (const ApiError& error) {
      return error;
    }
    if (!has_room_for(parser.content_length().value_or(0)))
      return ApiError::bodies_too_large(limits_.all_body_bytes);
    return std::nullopt;
  }

  bool has_room_for(size_t body) const {
    return service_.body_bytes <= limits_.all_body_bytes &&
           body <= limits_.all_body_bytes - service_.body_bytes;
  }

  void log(const HttpRequest& request, const Reply& reply, double start, bool client_is_gone) {
    const AccessLog* const access_log = service_.access_log;
    if (access_log != nullptr) access_log->write(request, reply, start, client_is_gone);
  }

  static HttpRequest read_head(const Parser& parser) {
    HttpRequest request;
    const auto& message = parser.get();
    request.method = std::string(to_view(message.method_string()));
    request.path = path_of(to_view(message.target()));
    for (const auto& field : message)
      request.headers.emplace_back(to_view(field.name_string()), to_view(field.value()));
    request.id = std::string(request.header("X-Request-Id"));
    const auto is_plain = [](char c) { return c > ' ' && c < 127; };
    if (request.id.empty() || request.id.size() > kLongestId ||
        !std::ranges::all_of(request.id, is_plain))
      request.id = new_id("req-");
    return request;
  }

  static constexpr size_t kFirstRead = 4096, kLongestId = 128;
  static constexpr std::chrono::seconds kLinger{2};
  Stream stream_;
  HttpService& service_;
  const HttpLimits& limits_ = service_.limits;
  beast::flat_buffer buffer_{limits_.header_bytes + kFirstRead};
};

}  // namespace

Task<> serve_connection(Protocol::socket socket, HttpService& service) {
  Connection connection(std::move(socket), service);
  try {
    co_await connection.run();
  } catch (const boost::system::system_error&) {  // the client is gone or too slow
  }
}

}  // namespace nanovllm::server
