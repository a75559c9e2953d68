#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "nanovllm/front/async_engine.h"
#include "nanovllm/server/http/http.h"
#include "nanovllm/server/metrics.h"

namespace nanovllm::server {

class EngineCall;

/// The engine for coroutines of one I/O thread. The thread that steps puts updates into one inbox
/// and writes to an eventfd; run() takes them from there to the calls that wait. Used by the I/O
/// thread only.
class EngineClient {
 public:
  /// `model_name`: the label of the metrics.
  EngineClient(asio::io_context& io, AsyncEngine& engine, const std::string& model_name);
  EngineClient(const EngineClient&) = delete;
  ~EngineClient();

  /// Delivers updates until the engine is dead or the client is destroyed.
  Task<> run();
  /// Makes all calls that wait throw EngineDead.
  void fail_all(const std::string& why);
  AsyncEngine& engine() const { return engine_; }
  /// The text of GET /metrics.
  std::string metrics() const { return metrics_.text(engine_.stats()); }

 private:
  friend class EngineCall;
  struct Running {
    EngineCall* call = nullptr;  // null: the client has disconnected
    RequestProgress progress;
  };
  AsyncEngine& engine_;
  Metrics metrics_;
  asio::posix::stream_descriptor wake_;  // an eventfd
  std::shared_ptr<Inbox> inbox_;
  std::unordered_map<uint64_t, Running> running_;  // by the engine's number of the request
  std::string dead_;
};

/// The requests of one HTTP request. The destructor cancels those that still run.
class EngineCall {
 public:
  /// `record` is filled for the access log.
  EngineCall(EngineClient& client, asio::io_context& io, GenerationRecord& record)
      : client_(client), record_(record), arrived_(io) {}
  EngineCall(const EngineCall&) = delete;
  ~EngineCall();

  /// Submits a request; the first one has the index 0.
  void submit(NewRequest request);
  /// The index of the request that an update belongs to.
  size_t index_of(const RequestUpdate& update) const;
  /// Waits for updates, at most until `patience` ends, and puts them into `updates`, which is empty
  /// if there are none. Throws EngineDead, and Cancelled after interrupt().
  Task<> next(std::vector<RequestUpdate>& updates, std::chrono::steady_clock::time_point patience);
  void interrupt();

 private:
  friend class EngineClient;
  void deliver(RequestUpdate& update);

  EngineClient& client_;
  GenerationRecord& record_;
  std::vector<uint64_t> ids_;
  std::vector<RequestUpdate> updates_;
  bool interrupted_ = false;
  asio::steady_timer arrived_;  // cancelled to wake next()
};

}  // namespace nanovllm::server
