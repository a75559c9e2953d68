#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "nanovllm/server/http/asio.h"

namespace nanovllm::server {

/// Ends reads and writes of a socket that take too long: they fail with operation_aborted. The
/// socket stays open, so that a response can say what was wrong.
class TimeLimit {
 public:
  using Socket = asio::generic::stream_protocol::socket;

  /// If `has_progress` is given and returns true when the time is over, the time begins again.
  TimeLimit(Socket& socket, std::chrono::seconds seconds,
            std::function<bool()> has_progress = nullptr)
      : timer_(socket.get_executor()),
        state_(std::make_shared<State>(State{&socket, std::move(has_progress)})) {
    restart(seconds);
  }
  TimeLimit(const TimeLimit&) = delete;
  ~TimeLimit() { state_->socket = nullptr; }

  void restart(std::chrono::seconds seconds) {
    timer_.expires_after(seconds);
    timer_.async_wait([this, seconds, state = state_](error_code cancelled) {
      if (cancelled || state->socket == nullptr) return;
      if (state->has_progress && state->has_progress()) {
        restart(seconds);
        return;
      }
      state->has_expired = true;
      error_code ignored;
      state->socket->cancel(ignored);
    });
  }
  bool has_expired() const { return state_->has_expired; }

 private:
  struct State {  // the handler of the timer may run after the object is gone
    Socket* socket = nullptr;
    std::function<bool()> has_progress;
    bool has_expired = false;
  };
  asio::steady_timer timer_;
  std::shared_ptr<State> state_;
};

}  // namespace nanovllm::server
