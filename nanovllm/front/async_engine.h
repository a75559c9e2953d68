#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <limits>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "nanovllm/engine/llm_engine.h"

namespace nanovllm {

/// The requests of one caller, and the updates that have arrived for them.
class Inbox {
 public:
  /// With `wants_pieces` every update is delivered (a stream), otherwise only the last one of each
  /// request. `wake_fd` is an eventfd for an event loop that must not block: it becomes readable
  /// when an update arrives or the engine dies. It must stay open until AsyncEngine::cancel_all().
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
/// the answers. The engine has no thread of its own: the caller that has waited longest steps the
/// engine for all callers (`threads.turns`) until its own answer is complete; then the next one
/// takes over. Each update goes to the inbox of its request, whichever thread steps. Submissions
/// and cancellations are queued and applied between two steps (`threads.queue`), so only wait(),
/// run() and exit() can take as long as a step. While no call steps, a cancellation is applied at
/// once, so that the request frees its slot and its blocks. The last update of the request comes
/// with the next step.
///
/// After exit() and after a step that failed, submit(), cancel(), reset_prefix_cache(),
/// wait(), take(), is_finished() and require_alive() throw EngineDead, and run() returns. They all
/// throw it in a process that was forked from the one that made the engine: the threads that run
/// steps do not exist there. Such a process must not destroy the engine either.
class AsyncEngine {
 public:
  explicit AsyncEngine(std::unique_ptr<LLMEngine> engine);
  ~AsyncEngine();

  /// The factory that makes the requests for submit(). It finds every mistake in a request, on the
  /// caller's thread.
  const RequestFactory& requests() const { return *factory_; }
  /// Queues a request, whose updates go to `inbox`; returns its number.
  uint64_t submit(const std::shared_ptr<Inbox>& inbox, NewRequest request);
  /// Queues the cancellation of a request. The last update of the request has the tokens so far and
  /// the finish_reason "abort", unless it ended by itself first. Returns false if it has already
  /// ended or been cancelled.
  bool cancel(uint64_t request_id);
  /// Ends the inbox's requests; no more updates arrive for them. Does not throw.
  void cancel_all(Inbox& inbox);
  /// Queues LLMEngine::reset_prefix_cache().
  void reset_prefix_cache();
  /// Waits until all requests of the inbox have ended, an update has arrived (if the inbox wants
  /// pieces) or, after at least one step, `seconds` have passed. Returns the updates.
  std::vector<RequestUpdate> wait(Inbox& inbox,
                                  double seconds = std::numeric_limits<double>::infinity());
  /// Returns the updates that have arrived, without waiting.
  std::vector<RequestUpdate> take(Inbox& inbox);
  /// Steps the engine whenever there is work. This is for a thread that serves callers that cannot
  /// block. Returns when the engine is dead; take() then throws the reason.
  void run();

  /// Frees the model as soon as the running step has ended. Calls that wait throw EngineDead.
  void exit();
  void require_alive() const;
  bool belongs_to_this_process() const;
  /// Whether all requests of the inbox have ended and their updates were taken.
  bool is_finished(const Inbox& inbox) const;
  /// The figures after the last step, or after a cancellation without one.
  EngineStats stats() const;
  /// How many calls of wait() and run() have not returned yet.
  size_t num_waiting_calls() const;
  const EngineSetup& setup() const { return setup_; }
  std::shared_ptr<const Tokenizer> tokenizer() const { return tokenizer_; }

 private:
  struct Turn;
  using Commands = std::list<std::function<void(LLMEngine&)>>;
  struct Running {
    std::shared_ptr<Inbox> inbox;
    Commands abort;  // the command that ends the request; none after its cancellation
  };
  std::unique_lock<std::mutex> lock() const;
  std::unique_lock<std::mutex> lock_alive() const;
  void queue(Commands commands);
  void apply_if_idle(std::unique_lock<std::mutex>& locked);
  void advance(std::unique_lock<std::mutex>& locked, bool with_step);
  void deliver(RequestUpdate& update);
  void die(const std::string& why);

  const int process_;
  const EngineSetup setup_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const std::shared_ptr<const RequestFactory> factory_;
  std::unique_ptr<LLMEngine> engine_;  // used by the thread whose turn it is, freed by exit()

  mutable std::mutex mutex_;  // guards all members below; never held during a step
  std::vector<Turn*> turns_;  // in the order of the calls; the first one steps
  Commands queue_;            // applied by the first of turns_, in order
  std::unordered_map<uint64_t, Running> running_;
  uint64_t next_id_ = 0, num_steps_ = 0;
  bool has_work_ = false;  // whether work remains after the last step
  EngineStats stats_;
  std::string dead_;  // why the engine is dead; empty if it is not
};

}  // namespace nanovllm
