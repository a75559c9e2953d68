#include "nanovllm/server/http/reply.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/beast/http/status.hpp>
#include <ctime>

#include "nanovllm/base/system/file_descriptor.h"
#include "nanovllm/server/http/time_limit.h"

namespace nanovllm::server {

namespace {

using Buffers = std::array<asio::const_buffer, 3>;

void skip(Buffers& buffers, size_t bytes) {
  for (asio::const_buffer& buffer : buffers) {
    const size_t skipped = std::min(bytes, buffer.size());
    buffer += skipped;
    bytes -= skipped;
  }
}

/// The number of bytes in the kernel that the client has not taken yet.
int64_t num_waiting_bytes(int socket) {
  int bytes = 0;
  ::ioctl(socket, SIOCOUTQ, &bytes);
  return bytes;
}

std::string_view reason_of(int status) {
  const auto text =
      boost::beast::http::obsolete_reason(static_cast<boost::beast::http::status>(status));
  return {text.data(), text.size()};
}

}  // namespace

Reply::~Reply() {
  error_code ignored;
  if (watch_) {
    watch_->then = nullptr;
    watch_->hang_up.reset();
    socket_.cancel(ignored);
  }
}

Task<> Reply::send(int status, std::string_view content_type, std::string body,
                   const HttpHeaders& headers) {
  status_ = status;
  std::string head = begin(content_type, headers);
  head += fmt::format("Content-Length: {}\r\n\r\n", body.size());
  if (request_.method == "HEAD") body.clear();
  co_await write(head, body);
}

Task<> Reply::begin_events() {
  status_ = 200;
  if (is_old_) keep_alive_ = false;  // HTTP/1.0 has no chunks: a body ends with the connection
  HttpHeaders headers;
  headers.emplace_back("Cache-Control", "no-cache");
  headers.emplace_back("X-Accel-Buffering", "no");  // proxies should not hold events back
  std::string head = begin("text/event-stream; charset=utf-8", headers);
  head += is_old_ ? "\r\n" : "Transfer-Encoding: chunked\r\n\r\n";
  co_await write(head);
}

void Reply::add_event(std::string_view data, std::string_view name) {
  if (!name.empty()) (events_ += "event: ").append(name) += '\n';
  (events_ += "data: ").append(data) += "\n\n";
  ++num_events_;
}

Task<> Reply::flush() {
  if (events_.empty()) co_return;
  const std::string size = fmt::format("{:x}\r\n", events_.size());
  if (is_old_) co_await write(events_);
  else co_await write(size, events_, "\r\n");
  events_.clear();
}

Task<> Reply::end_events() {
  co_await flush();
  if (!is_old_) co_await write("0\r\n\r\n");
}

void Reply::on_gone(std::function<void()> then) {
  if (!watch_) {
    watch_ = std::make_shared<Watch>(Watch{socket_.get_executor(), socket_.native_handle()});
    socket_.async_wait(asio::socket_base::wait_read, [watch = watch_](error_code error) {
      char next = 0;
      if (error || !watch->then) return;
      // Bytes that arrive are the next request of a client that does not wait for the response.
      if (::recv(watch->socket, &next, 1, MSG_PEEK | MSG_DONTWAIT) > 0) wait_for_hang_up(watch);
      else watch->leave();
    });
  }
  watch_->then = std::move(then);
}

/// Waits for the end of the connection with an epoll of its own. Asio can only wait for bytes, and
/// bytes that are not read yet would end each of its waits at once.
void Reply::wait_for_hang_up(const std::shared_ptr<Watch>& watch) {
  FileDescriptor hang_up(::epoll_create1(EPOLL_CLOEXEC));
  error_code error;
  if (hang_up.get() >= 0) watch->hang_up.emplace(watch->executor).assign(hang_up.get(), error);
  // No file descriptor or memory is free: a write will notice the end.
  if (hang_up.get() < 0 || error) return;
  epoll_event event{};
  event.events = EPOLLRDHUP;
  ::epoll_ctl(hang_up.release(), EPOLL_CTL_ADD, watch->socket, &event);
  watch->hang_up->async_wait(asio::posix::descriptor_base::wait_read, [watch](error_code error) {
    if (!error && watch->then) watch->leave();
  });
}

std::string Reply::begin(std::string_view content_type, const HttpHeaders& headers) const {
  std::string head = fmt::format(
      "HTTP/1.1 {} {}\r\nDate: {:%a, %d %b %Y %H:%M:%S} GMT\r\nContent-Type: {}\r\n"
      "X-Request-Id: {}\r\n",
      status_, reason_of(status_), fmt::gmtime(std::time(nullptr)), content_type, request_.id);
  for (const HttpHeaders* more : {&headers, &more_headers})
    for (const auto& [name, value] : *more) head += fmt::format("{}: {}\r\n", name, value);
  if (!keep_alive_) head += "Connection: close\r\n";
  else if (is_old_) head += "Connection: keep-alive\r\n";
  return head;
}

/// Writes to the socket. It first tries a plain send(). Nearly always the socket has room, and then
/// this system call is the whole cost. An asynchronous write would cost twice as much, because it
/// also sets a timer and goes through the event loop.
Task<> Reply::write(std::string_view a, std::string_view b, std::string_view c) {
  Buffers buffers = {asio::buffer(a), asio::buffer(b), asio::buffer(c)};
  const size_t total = a.size() + b.size() + c.size();
  error_code error;
  size_t written = socket_.send(buffers, 0, error);
  if (error == asio::error::would_block) error.clear();
  if (error) throw boost::system::system_error(error);
  if (written == total) co_return;
  skip(buffers, written);
  // The kernel accepts more only after the client has taken a large part of what waits there, which
  // may take a slow client minutes. So progress is what the client has taken.
  const auto taken = [&] {
    return static_cast<int64_t>(written) - num_waiting_bytes(socket_.native_handle());
  };
  const auto has_progress = [&taken, last = taken()]() mutable {
    return std::exchange(last, taken()) != last;
  };
  const TimeLimit limit(socket_, limits_.write_timeout, has_progress);
  while (written < total) {
    const size_t more = co_await socket_.async_write_some(buffers, asio::use_awaitable);
    skip(buffers, more);
    written += more;
    if (limit.has_expired()) throw boost::system::system_error(asio::error::operation_aborted);
  }
}

}  // namespace nanovllm::server
