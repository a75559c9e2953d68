#include "nanovllm/server/engine_client.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/clock.h"
#include "nanovllm/base/terminal/logging.h"

namespace nanovllm::server {

EngineClient::EngineClient(asio::io_context& io, AsyncEngine& engine, const std::string& model_name)
    : engine_(engine),
      metrics_(model_name, engine.setup()),
      wake_(io, ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  inbox_ = std::make_shared<Inbox>(/*wants_pieces=*/true, wake_.native_handle());
}

EngineClient::~EngineClient() { engine_.cancel_all(*inbox_); }

Task<> EngineClient::run() {
  uint64_t count = 0;
  try {
    for (;;) {
      error_code error;
      co_await wake_.async_read_some(asio::buffer(&count, sizeof count),
                                     asio::redirect_error(asio::use_awaitable, error));
      if (error == asio::error::operation_aborted) co_return;  // the client was destroyed
      if (error) throw boost::system::system_error(error);
      for (RequestUpdate& update : engine_.take(*inbox_)) {
        const auto at = running_.find(update.request_id);
        if (at == running_.end()) continue;
        metrics_.count(at->second.progress, update);
        EngineCall* const call = at->second.call;
        if (update.finished) running_.erase(at);
        if (call != nullptr) call->deliver(update);
      }
    }
  } catch (const EngineDead& dead) {
    fail_all(dead.what());
  } catch (const std::exception& e) {
    // No call would get updates any more, so all requests and the engine end.
    log().error("updates cannot be delivered: {}", what_of(e));
    fail_all("the server cannot deliver updates");
    engine_.exit();
  }
}

void EngineClient::fail_all(const std::string& why) {
  dead_ = why;
  for (const auto& [id, running] : running_)
    if (running.call != nullptr) running.call->arrived_.cancel();
}

EngineCall::~EngineCall() {
  for (const uint64_t id : ids_) {
    const auto at = client_.running_.find(id);
    if (at == client_.running_.end()) continue;
    at->second.call = nullptr;  // the metrics still count its end
    try {
      client_.engine_.cancel(id);
    } catch (const EngineDead&) {  // nothing runs any more
    }
  }
}

void EngineCall::submit(NewRequest request) {
  RequestProgress progress;
  progress.arrival_time = request.request->arrival_time();
  progress.num_prompt_tokens = request.choices.front()->num_prompt_tokens;
  record_.prompt_tokens += progress.num_prompt_tokens;
  ids_.push_back(client_.engine_.submit(client_.inbox_, std::move(request)));
  client_.running_[ids_.back()] = {this, std::move(progress)};
}

void EngineCall::deliver(RequestUpdate& update) {
  if (!update.token_ids.empty() && record_.first_token_time == 0)
    record_.first_token_time = steady_seconds();
  record_.generated_tokens += static_cast<int64_t>(update.token_ids.size());
  if (update.finished) {
    record_.cached_tokens += update.finished->num_cached_tokens;
    record_.end = update.finished->finish_reason;
  }
  if (updates_.empty()) arrived_.cancel();
  updates_.push_back(std::move(update));
}

size_t EngineCall::index_of(const RequestUpdate& update) const {
  return static_cast<size_t>(std::ranges::find(ids_, update.request_id) - ids_.begin());
}

Task<> EngineCall::next(std::vector<RequestUpdate>& updates,
                        std::chrono::steady_clock::time_point patience) {
  updates.clear();
  bool has_patience = true;
  while (has_patience && updates_.empty() && !interrupted_ && client_.dead_.empty()) {
    boost::system::error_code cancelled;
    arrived_.expires_at(patience);
    co_await arrived_.async_wait(asio::redirect_error(asio::use_awaitable, cancelled));
    has_patience = cancelled.failed();
  }
  if (interrupted_) throw Cancelled();
  if (has_patience && updates_.empty()) throw EngineDead(client_.dead_);
  std::swap(updates, updates_);
}

void EngineCall::interrupt() {
  interrupted_ = true;
  arrived_.cancel();
}

}  // namespace nanovllm::server
