#pragma once

#include <condition_variable>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "nanovllm/engine/llm_engine.h"

namespace nanovllm {

/// The requests of one caller and what arrived for them.
class Inbox {
 public:
  /// `wants_pieces`: each update arrives (a stream), else only the end of each request. `wake_fd`:
  /// an eventfd that gets readable when something arrived or the engine died, for an event loop
  /// that must not block. It stays open until AsyncEngine::cancel_all().
  explicit Inbox(bool wants_pieces, int wake_fd = -1)
      : wants_pieces_(wants_pieces), wake_fd_(wake_fd) {}
  bool wants_pieces() const { return wants_pieces_; }

 private:
  friend class AsyncEngine;
  bool has_enough() const { return running_.empty() || (wants_pieces_ && !arrived_.empty()); }
  void wake() const;

  const bool wants_pieces_;
  const int wake_fd_;
  // Guarded by the engine's mutex.
  std::unordered_set<uint64_t> running_;
  std::vector<RequestUpdate> arrived_;
};

/// The engine for several threads at once. A caller submits requests for its inbox and waits for
/// it. No thread of its own: of the callers that wait, the one that has waited longest steps the
/// engine for all (`threads.one-steps`) until it has what it waits for; then the next one does. An
/// update goes to the inbox of its request whoever steps, so that nobody needs a turn to get an
/// answer. Submissions and cancellations are queued and taken in between two steps: no call but
/// wait() lasts as long as a step.
///
/// Every member throws EngineDead after exit(), after a step that failed, and in a process that was
/// forked from the one that made the engine, where no thread is that would end a step. Such a
/// process must not destroy it either.
class AsyncEngine {
 public:
  explicit AsyncEngine(std::unique_ptr<LLMEngine> engine);
  ~AsyncEngine();

  /// What LLMEngine::prepare() does; all that can be wrong with a request is found here, on the
  /// caller's thread. Throws UserError.
  NewRequest prepare(std::vector<int32_t> prompt_token_ids, const SamplingParams& params) const;
  /// Queues a request, whose updates go to `inbox`; returns its number.
  uint64_t submit(const std::shared_ptr<Inbox>& inbox, NewRequest request);
  /// Queues the end of a request: what it has arrives as finished, with finish_reason "abort" where
  /// it had not ended meanwhile. False if it has ended already, or was cancelled.
  bool cancel(uint64_t request_id);
  /// Ends the inbox's requests; nothing more arrives. Does not throw.
  void cancel_all(Inbox& inbox);
  /// Waits until all requests of the inbox ended, a piece arrived where it wants pieces, or
  /// `seconds` are over, for one step at least; returns what arrived.
  std::vector<RequestUpdate> wait(Inbox& inbox,
                                  double seconds = std::numeric_limits<double>::infinity());
  /// What arrived, without waiting.
  std::vector<RequestUpdate> take(Inbox& inbox);
  /// Steps the engine whenever there is something to do: for a thread that serves callers that
  /// cannot block. Returns when the engine is dead; callers learn the reason from take().
  void run();

  /// Frees the model now. Waits for the step under way; calls that wait throw EngineDead.
  void exit();
  void require_alive() const;
  bool belongs_to_this_process() const;
  /// Whether all requests of the inbox ended and were taken out of it.
  bool is_finished(const Inbox& inbox) const;
  /// As of the last step.
  EngineStats stats() const;
  /// Calls of wait() and run() under way.
  size_t num_waiting_calls() const;
  const EngineSetup& setup() const { return setup_; }
  std::shared_ptr<const Tokenizer> tokenizer() const { return tokenizer_; }

 private:
  struct Turn;
  struct Running {
    std::shared_ptr<Inbox> inbox;
    bool cancelled = false;
  };
  /// A request to add or, without one, to end.
  struct Command {
    uint64_t id = 0;
    NewRequest request;
  };
  std::unique_lock<std::mutex> lock() const;
  std::unique_lock<std::mutex> lock_alive() const;
  void queue(Command command);
  void step(std::unique_lock<std::mutex>& locked);
  void deliver(RequestUpdate& update);
  void die(const std::string& why);

  const int process_;
  const EngineSetup setup_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  /// Freed by exit() with the exclusive lock. Else used by the thread whose turn it is and, with
  /// the shared lock, for what never changes in it.
  std::unique_ptr<LLMEngine> engine_;
  mutable std::shared_mutex engine_lifetime_;

  mutable std::mutex mutex_;    // of all that follows; never held during a step
  std::vector<Turn*> turns_;    // in the order in which they were asked for; the first one steps
  std::vector<Command> queue_;  // for the next step, in order
  std::unordered_map<uint64_t, Running> running_;
  uint64_t next_id_ = 0, num_steps_ = 0;
  bool has_work_ = false;  // that the last step left
  EngineStats stats_;
  std::string dead_;  // why, once it is
};

}  // namespace nanovllm
