#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "nanovllm/server/http/http.h"

namespace nanovllm::server {

/// The reply to a request of a connection, in HTTP/1.1 or, if the client uses that, HTTP/1.0.
class Reply : public HttpReply {
 public:
  using Socket = asio::generic::stream_protocol::socket;

  Reply(Socket& socket, const HttpLimits& limits, const HttpRequest& request, bool keep_alive,
        bool is_old)
      : socket_(socket),
        limits_(limits),
        request_(request),
        keep_alive_(keep_alive),
        is_old_(is_old) {}
  ~Reply() override;

  Task<> send(int status, std::string_view content_type, std::string body,
              const HttpHeaders& headers) override;
  Task<> begin_events() override;
  void add_event(std::string_view data, std::string_view name) override;
  void add_comment() override { events_ += ": still working\n\n"; }
  bool has_events() const override { return !events_.empty(); }
  Task<> flush() override;
  Task<> end_events() override;
  void on_gone(std::function<void()> then) override;
  int status() const override { return status_; }
  bool keep_alive() const { return keep_alive_; }
  bool client_is_gone() const { return watch_ && watch_->is_gone; }

 private:
  /// Waits for the end of the connection. Its handlers may run after the reply is gone.
  struct Watch {
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
  static void wait_for_hang_up(const std::shared_ptr<Watch>& watch);

  std::string begin(std::string_view content_type, const HttpHeaders& headers) const;
  Task<> write(std::string_view a, std::string_view b = {}, std::string_view c = {});

  Socket& socket_;
  const HttpLimits& limits_;
  const HttpRequest& request_;
  bool keep_alive_;
  const bool is_old_;
  int status_ = 0;
  std::string events_;
  std::shared_ptr<Watch> watch_;
};

}  // namespace nanovllm::server
