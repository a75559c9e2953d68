#include "nanovllm/front/async_engine.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/clock.h"

namespace nanovllm {

void Inbox::wake() const {
  if (wake_fd_ >= 0) eventfd_write(wake_fd_, 1);
}

/// A place in the queue of the calls that step the engine (`threads.turns`). It is created and
/// destroyed with the mutex held.
struct AsyncEngine::Turn {
  explicit Turn(AsyncEngine& asked, const Inbox* awaited = nullptr)
      : engine(asked), inbox(awaited), first_step(asked.num_steps_) {
    engine.turns_.push_back(this);
  }
  ~Turn() {
    std::erase(engine.turns_, this);
    if (!engine.turns_.empty()) engine.turns_.front()->changed.notify_one();
  }
  bool is_first() const { return engine.turns_.front() == this; }
  bool saw_a_step() const { return engine.num_steps_ > first_step; }

  AsyncEngine& engine;
  const Inbox* const inbox;   // updates for it end the call; null for run(), which awaits none
  const uint64_t first_step;  // the number of steps that had ended when the call began
  std::condition_variable changed;
};

AsyncEngine::AsyncEngine(std::unique_ptr<LLMEngine> engine)
    : process_(getpid()),
      setup_(engine->setup()),
      tokenizer_(engine->tokenizer()),
      factory_(engine->request_factory()),
      engine_(std::move(engine)),
      stats_(engine_->stats()) {
  turns_.reserve(1);  // cancel_all() adds one and must not throw
}

AsyncEngine::~AsyncEngine() { exit(); }

bool AsyncEngine::belongs_to_this_process() const { return getpid() == process_; }

// The process is checked before the mutex is locked: in a forked process, a thread that does not
// exist there may hold the mutex (`threads.fork`).
std::unique_lock<std::mutex> AsyncEngine::lock() const {
  if (!belongs_to_this_process())
    throw EngineDead(fmt::format(
        "process {} was forked from {}, which made this engine, and cannot use it; make one after "
        "the fork",
        getpid(), process_));
  return std::unique_lock(mutex_);
}

std::unique_lock<std::mutex> AsyncEngine::lock_alive() const {
  std::unique_lock locked = lock();
  if (!dead_.empty()) throw EngineDead(dead_);
  return locked;
}

void AsyncEngine::require_alive() const { lock_alive(); }

uint64_t AsyncEngine::submit(const std::shared_ptr<Inbox>& inbox, NewRequest request) {
  const std::unique_lock locked = lock_alive();
  const uint64_t id = next_id_;
  // The command to abort is made now, so that cancel_all() needs no memory.
  running_[id] = {inbox, {[id](LLMEngine& engine) { engine.abort(id); }}};
  inbox->running_.insert(id);
  queue({[id, added = std::make_shared<NewRequest>(std::move(request))](LLMEngine& engine) {
    check(engine.add(std::move(*added)) == id, "request {} has another id", id);
  }});
  return next_id_++;
}

bool AsyncEngine::cancel(uint64_t request_id) {
  std::unique_lock locked = lock_alive();
  const auto at = running_.find(request_id);
  if (at == running_.end() || at->second.abort.empty()) return false;
  queue(std::exchange(at->second.abort, {}));
  apply_if_idle(locked);
  return true;
}

void AsyncEngine::cancel_all(Inbox& inbox) {
  if (!belongs_to_this_process()) return;
  std::unique_lock locked = lock();
  inbox.arrived_.clear();
  for (const uint64_t id : std::exchange(inbox.running_, {})) {
    auto request = running_.extract(id);
    if (dead_.empty()) queue(std::move(request.mapped().abort));
  }
  apply_if_idle(locked);
}

void AsyncEngine::reset_prefix_cache() {
  std::unique_lock locked = lock_alive();
  queue({[](LLMEngine& engine) { engine.reset_prefix_cache(); }});
  apply_if_idle(locked);
}

void AsyncEngine::queue(Commands commands) {
  queue_.splice(queue_.end(), commands);
  if (!turns_.empty()) turns_.front()->changed.notify_one();  // wakes run()
}

std::vector<RequestUpdate> AsyncEngine::wait(Inbox& inbox, double seconds) {
  const auto end = steady_time_in(seconds);
  std::unique_lock locked = lock_alive();
  {
    Turn turn(*this, &inbox);
    while (!inbox.has_enough() && !(turn.saw_a_step() && std::chrono::steady_clock::now() >= end)) {
      if (turn.is_first()) advance(locked, /*with_step=*/true);
      else if (turn.saw_a_step()) turn.changed.wait_until(locked, end);
      else turn.changed.wait(locked);
      if (!dead_.empty()) throw EngineDead(dead_);
    }
  }
  apply_if_idle(locked);  // what was cancelled during the last step
  return std::exchange(inbox.arrived_, {});
}

std::vector<RequestUpdate> AsyncEngine::take(Inbox& inbox) {
  const std::unique_lock locked = lock_alive();
  return std::exchange(inbox.arrived_, {});
}

void AsyncEngine::run() {
  std::unique_lock locked = lock();
  Turn turn(*this);
  while (dead_.empty()) {
    if (turn.is_first() && (has_work_ || !queue_.empty())) advance(locked, /*with_step=*/true);
    else turn.changed.wait(locked);
  }
}

/// Applies the queue if no call will step. A wait() that begins meanwhile steps only when this is
/// done.
void AsyncEngine::apply_if_idle(std::unique_lock<std::mutex>& locked) {
  while (turns_.empty() && !queue_.empty() && dead_.empty()) {
    const Turn turn(*this);
    advance(locked, /*with_step=*/false);
  }
}

void AsyncEngine::advance(std::unique_lock<std::mutex>& locked, bool with_step) {
  const Commands commands = std::exchange(queue_, {});
  locked.unlock();
  std::span<RequestUpdate> updates;
  std::string failure;
  bool has_work = false;
  try {
    for (const auto& command : commands) command(*engine_);
    if (with_step) updates = engine_->step();
    has_work = !engine_->is_finished();
  } catch (const std::exception& e) {
    failure = what_of(e);
  }
  locked.lock();
  if (with_step) ++num_steps_;
  has_work_ = has_work;
  stats_ = engine_->stats();
  try {
    for (RequestUpdate& update : updates) deliver(update);
  } catch (const std::exception& e) {
    failure = what_of(e);
  }
  if (!failure.empty()) die(failure);
  for (Turn* turn : turns_)
    if (turn->inbox && (turn->inbox->has_enough() || turn->first_step + 1 == num_steps_))
      turn->changed.notify_one();
}

void AsyncEngine::deliver(RequestUpdate& update) {
  const auto at = running_.find(update.request_id);
  if (at == running_.end()) return;  // after cancel_all()
  Inbox& inbox = *at->second.inbox;
  const bool finished = update.finished != nullptr;
  if (finished) inbox.running_.erase(update.request_id);
  if (finished || inbox.wants_pieces_) {
    if (inbox.arrived_.empty()) inbox.wake();
    inbox.arrived_.push_back(std::move(update));
  }
  if (finished) running_.erase(at);
}

void AsyncEngine::die(const std::string& why) {
  if (dead_.empty()) dead_ = why;
  for (Turn* turn : turns_) turn->changed.notify_one();
  for (const auto& [id, request] : running_) request.inbox->wake();
}

void AsyncEngine::exit() {
  if (!belongs_to_this_process()) return;
  std::unique_lock locked = lock();
  die("the engine was ended by exit()");
  Turn turn(*this);
  while (!turn.is_first()) turn.changed.wait(locked);  // from then on nobody else steps
  queue_.clear();
  running_.clear();
  locked.unlock();
  engine_.reset();
  locked.lock();  // the Turn is destroyed with the mutex held
}

bool AsyncEngine::is_finished(const Inbox& inbox) const {
  const std::unique_lock locked = lock_alive();
  return inbox.running_.empty() && inbox.arrived_.empty();
}

EngineStats AsyncEngine::stats() const {
  const std::unique_lock locked = lock();
  return stats_;
}

size_t AsyncEngine::num_waiting_calls() const {
  const std::unique_lock locked = lock();
  return turns_.size();
}

}  // namespace nanovllm
