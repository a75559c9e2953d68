#include "nanovllm/server/engine_client.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <utility>

#include "nanovllm/base/check.h"

namespace nanovllm::server {

EngineClient::EngineClient(asio::io_context& io, AsyncEngine& engine)
    : engine_(engine), wake_(io, ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  inbox_ = std::make_shared<Inbox>(/*wants_pieces=*/true, wake_.native_handle());
}

EngineClient::~EngineClient() { engine_.cancel_all(*inbox_); }

Task<> EngineClient::run() {
  uint64_t count = 0;
  try {
    for (;;) {
      co_await wake_.async_read_some(asio::buffer(&count, sizeof count), asio::use_awaitable);
      for (RequestUpdate& update : engine_.take(*inbox_)) {
        const auto at = calls_.find(update.request_id);
        if (at == calls_.end()) continue;  // its client is gone
        EngineCall& call = *at->second;
        if (update.finished) calls_.erase(at);
        if (call.updates_.empty()) call.arrived_.cancel();
        call.updates_.push_back(std::move(update));
      }
    }
  } catch (const EngineDead& dead) {
    fail_all(dead.what());
  }
}

void EngineClient::fail_all(const std::string& why) {
  dead_ = why;
  for (const auto& [id, call] : calls_) call->arrived_.cancel();
}

EngineCall::~EngineCall() {
  for (const uint64_t id : ids_) {
    if (client_.calls_.erase(id) == 0 || !client_.dead_.empty()) continue;
    try {
      client_.engine_.cancel(id);
    } catch (const EngineDead&) {  // then nothing runs any more
    }
  }
}

void EngineCall::submit(NewRequest request) {
  ids_.push_back(client_.engine_.submit(client_.inbox_, std::move(request)));
  client_.calls_[ids_.back()] = this;
}

size_t EngineCall::index_of(const RequestUpdate& update) const {
  return static_cast<size_t>(std::ranges::find(ids_, update.request_id) - ids_.begin());
}

Task<> EngineCall::next(std::vector<RequestUpdate>& updates) {
  updates.clear();
  while (updates_.empty() && !interrupted_ && client_.dead_.empty()) {
    boost::system::error_code cancelled;
    arrived_.expires_at(std::chrono::steady_clock::time_point::max());
    co_await arrived_.async_wait(asio::redirect_error(asio::use_awaitable, cancelled));
  }
  if (interrupted_) co_return;
  if (updates_.empty()) throw EngineDead(client_.dead_);
  std::swap(updates, updates_);
}

void EngineCall::interrupt() {
  interrupted_ = true;
  arrived_.cancel();
}

}  // namespace nanovllm::server
