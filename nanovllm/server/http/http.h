#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/server/http/asio.h"
#include "nanovllm/server/http/body_budget.h"
#include "nanovllm/server/http/host.h"

// The interface of HTTP for the rest of the server: requests that were read completely, and replies
// that are whole or streams of events. connection.h speaks the protocol.
namespace nanovllm::server {

/// A summand that is part of a sum for as long as this object lives.
class Counted {
 public:
  Counted() = default;
  explicit Counted(size_t& sum) : sum_(&sum) {}
  Counted(Counted&& other) noexcept { *this = std::move(other); }
  Counted& operator=(Counted&& other) noexcept {
    std::swap(sum_, other.sum_);
    std::swap(summand_, other.summand_);
    return *this;
  }
  ~Counted() { set(0); }
  void set(size_t summand) {
    if (sum_ != nullptr) *sum_ += summand - summand_;
    summand_ = summand;
  }

 private:
  size_t* sum_ = nullptr;
  size_t summand_ = 0;
};

struct HttpRequest {
  std::string method, path, body;
  std::string id;  ///< the client's X-Request-Id, or a new one
  std::vector<std::pair<std::string, std::string>> headers;
  /// The name by which the client calls the server: from the target if that is a whole URL, else
  /// from the header Host, which HTTP/1.0 need not have.
  std::optional<Authority> authority;
  /// The client's address. For IPv6 it is only the first 64 bits, since a client has all addresses
  /// that begin with them. Empty for a Unix socket.
  std::string address;
  bool has_body = false;  ///< the body is not read if the route takes none
  BodyBytes body_bytes;   ///< the body's bytes in HttpService::bodies

  /// The value of a header, or an empty text; `name` in any case.
  std::string_view header(std::string_view name) const;
  /// Frees the body early, because an answer may take far longer than reading the body.
  void drop_body() {
    body = std::string();
    body_bytes.set(0);
  }
};

/// The access log's data of the text that was generated for a request.
struct GenerationRecord {
  int64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
  double first_token_time = 0;  ///< on the steady clock; 0: there is none
  std::string end;              ///< stop, length or error; the last one of several answers
};

/// More headers of a response: names and values.
using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

/// The reply to one request. Every member throws boost::system::system_error if the client is gone
/// or too slow.
class HttpReply {
 public:
  virtual ~HttpReply() = default;
  /// Sends a whole response.
  virtual Task<> send(int status, std::string_view content_type, std::string body,
                      const HttpHeaders& headers = {}) = 0;
  /// Begins a response of server-sent events.
  virtual Task<> begin_events() = 0;
  /// Adds an event to those that flush() sends. `data` has no newline.
  virtual void add_event(std::string_view data, std::string_view name = {}) = 0;
  /// Adds a comment, which clients ignore; it shows that the server still works on the request.
  virtual void add_comment() = 0;
  /// How many events were added to the stream.
  size_t num_events() const { return num_events_; }
  /// Whether there is something to flush.
  virtual bool has_events() const = 0;
  virtual Task<> flush() = 0;
  /// Ends the events.
  virtual Task<> end_events() = 0;
  /// Calls `then` once if the client closes the connection before the response has ended. An empty
  /// `then` cancels the previous one.
  virtual void on_gone(std::function<void()> then) = 0;
  /// The status that was sent; 0 means that none was sent yet.
  virtual int status() const = 0;

  HttpHeaders more_headers;  ///< headers of the response, besides those of send()
  GenerationRecord record;

 protected:
  size_t num_events_ = 0;
};

struct HttpLimits {
  size_t header_bytes = size_t{64} << 10;
  size_t body_bytes = size_t{32} << 20;
  /// The most bytes of all bodies that are received or wait to be read, and of those of one client
  /// (BodyBudget::has_room()): as many as 16 and 4 bodies of the largest size have.
  size_t all_body_bytes = size_t{512} << 20, client_body_bytes = size_t{128} << 20;
  std::chrono::seconds idle_timeout{75};  ///< between two requests
  /// The time for beginning the first request of a connection, and for sending a request's headers.
  std::chrono::seconds header_timeout{10};
  /// The time for sending the next `least_body_bytes` of the body, or the rest if that is less. A
  /// slow client may take long, but not one that sends a byte each second.
  std::chrono::seconds body_timeout{60};
  size_t least_body_bytes = size_t{60} << 10;
  std::chrono::seconds write_timeout{60};  ///< in which a client must take some bytes
};

/// Whether the texts differ at most in the case of ASCII letters.
bool equal_in_any_case(std::string_view a, std::string_view b);
/// `text` with each escape such as "%2F" replaced by the byte that it stands for. A "%" without two
/// hexadecimal digits behind it is left as it is.
std::string url_decoded(std::string_view text);

using HttpHandler = std::function<Task<>(HttpRequest&, HttpReply&)>;

}  // namespace nanovllm::server
