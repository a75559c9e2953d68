#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "nanovllm/engine/async_engine.h"
#include "nanovllm/server/http/http.h"

namespace nanovllm::server {

class EngineCall;

/// The engine for coroutines of one I/O thread. The thread that steps puts updates into one inbox
/// and writes to an eventfd; run() takes them from there to the calls that wait. Used by the I/O
/// thread only.
class EngineClient {
 public:
  EngineClient(asio::io_context& io, AsyncEngine& engine);
  EngineClient(const EngineClient&) = delete;
  ~EngineClient();

  /// Delivers updates until the engine is dead or the client is destroyed.
  Task<> run();
  /// Calls that wait throw EngineDead.
  void fail_all(const std::string& why);
  AsyncEngine& engine() const { return engine_; }
  size_t num_calls() const { return calls_.size(); }

 private:
  friend class EngineCall;
  AsyncEngine& engine_;
  asio::posix::stream_descriptor wake_;  // an eventfd
  std::shared_ptr<Inbox> inbox_;
  std::unordered_map<uint64_t, EngineCall*> calls_;  // by the engine's number of the request
  std::string dead_;
};

/// The requests of one HTTP request. Its end cancels those that still run.
class EngineCall {
 public:
  EngineCall(EngineClient& client, asio::io_context& io) : client_(client), arrived_(io) {}
  EngineCall(const EngineCall&) = delete;
  ~EngineCall();

  /// Submits a request; the first one has the index 0.
  void submit(NewRequest request);
  /// Which request an update belongs to.
  size_t index_of(const RequestUpdate& update) const;
  /// Waits for updates, and puts them into `updates`. None: interrupt() was called. Throws
  /// EngineDead.
  Task<> next(std::vector<RequestUpdate>& updates);
  void interrupt();

 private:
  friend class EngineClient;
  EngineClient& client_;
  std::vector<uint64_t> ids_;
  std::vector<RequestUpdate> updates_;
  bool interrupted_ = false;
  asio::steady_timer arrived_;  // cancelled to wake next()
};

}  // namespace nanovllm::server
