#include "nanovllm/front/async_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <semaphore>
#include <thread>

#include "nanovllm/base/system/file_descriptor.h"
#include "tests/engine/test_engine.h"

namespace nanovllm::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// Steps that end when the test allows it. It also records which thread submitted each step.
class GatedExecutor : public Executor {
 public:
  explicit GatedExecutor(std::unique_ptr<Executor> inner) : inner_(std::move(inner)) {}

  void submit(const StepInput& input) override {
    steppers_.push_back(std::this_thread::get_id());
    inner_->submit(input);
  }
  void complete(const StepInput& late) override { inner_->complete(late); }
  const StepOutput& wait() override {
    if (gated_) {
      waiting_.release();
      gate_.acquire();
    }
    return inner_->wait();
  }

  /// From now on steps do not end before open() is called.
  void close() { gated_ = true; }
  void open(int steps = 1) { gate_.release(steps); }
  void open_for_ever() {
    gated_ = false;
    gate_.release(1000);
  }
  /// Returns when a step waits for open().
  void await_step() { waiting_.acquire(); }
  /// May only be called while no thread runs a step.
  const std::vector<std::thread::id>& steppers() const { return steppers_; }

 private:
  std::unique_ptr<Executor> inner_;
  std::atomic<bool> gated_ = false;
  std::counting_semaphore<> gate_{0}, waiting_{0};
  std::vector<std::thread::id> steppers_;
};

struct Front {
  explicit Front(const TestEngine::Options& options = {}) : test(options) {
    const TestEngine::Options& o = test.options;
    auto executor = std::make_unique<FakeExecutor>(o.model, o.max_num_seqs, o.num_blocks,
                                                   o.block_size, o.max_model_len);
    fake = executor.get();
    auto gated = std::make_unique<GatedExecutor>(std::move(executor));
    gate = gated.get();
    engine = std::make_unique<AsyncEngine>(
        std::make_unique<LLMEngine>(test.engine->setup(), std::move(gated), /*tokenizer=*/nullptr));
  }

  static SamplingParams params(int64_t max_tokens, int64_t n = 1) {
    SamplingParams p;
    p.max_tokens = max_tokens;
    p.seed = 7;
    p.n = n;
    return p;
  }
  uint64_t submit(const std::shared_ptr<Inbox>& inbox, const std::vector<int32_t>& prompt,
                  int64_t max_tokens) const {
    return engine->submit(inbox, engine->requests().make(prompt, params(max_tokens)));
  }
  /// Waits until `count` calls wait, so that the next call is behind them in the queue.
  void await_turns(size_t count) const {
    while (engine->num_waiting_calls() < count) std::this_thread::sleep_for(1ms);
  }

  TestEngine test;  // only for its alone()
  FakeExecutor* fake = nullptr;
  GatedExecutor* gate = nullptr;
  std::unique_ptr<AsyncEngine> engine;
};

std::shared_ptr<Inbox> answers() { return std::make_shared<Inbox>(/*wants_pieces=*/false); }
std::shared_ptr<Inbox> pieces() { return std::make_shared<Inbox>(/*wants_pieces=*/true); }

TEST(AsyncEngine, ThreadsSubmitStreamAndCancelAndNothingIsLost) {
  TestEngine::Options options;
  options.num_blocks = 40;
  Front front(options);
  AsyncEngine& engine = *front.engine;
  std::vector<std::jthread> threads;
  for (int32_t t = 0; t < 6; ++t)
    threads.emplace_back([&front, &engine, t] {
      for (int32_t round = 0; round < 100; ++round) {
        const auto prompt = made_prompt(1 + (round + t) % 17, 100 * t + round);
        if (t < 2) {  // whole answers, three at a time
          const auto inbox = answers();
          std::map<uint64_t, int64_t> lengths;
          for (int64_t k = 1; k <= 3; ++k) lengths[front.submit(inbox, prompt, 3 * k)] = 3 * k;
          for (const RequestUpdate& update : engine.wait(*inbox)) {
            const auto at = lengths.find(update.request_id);
            ASSERT_NE(at, lengths.end());
            EXPECT_EQ(update.finished->token_ids, front.test.alone(prompt, at->second));
            lengths.erase(at);
          }
          EXPECT_TRUE(lengths.empty());
        } else if (t < 4) {  // a stream
          const auto inbox = pieces();
          front.submit(inbox, prompt, 8);
          std::vector<int32_t> streamed;
          while (!engine.is_finished(*inbox))
            for (const RequestUpdate& update : engine.wait(*inbox))
              streamed.insert(streamed.end(), update.token_ids.begin(), update.token_ids.end());
          EXPECT_EQ(streamed, front.test.alone(prompt, 8));
        } else if (t == 4) {  // a stream that is cancelled
          const auto inbox = pieces();
          const uint64_t id = front.submit(inbox, prompt, 20);
          std::string reason;
          const auto read = [&] {
            for (const RequestUpdate& update : engine.wait(*inbox))
              if (update.finished) reason = update.finished->finish_reason;
          };
          for (int32_t i = 0; i < round % 5; ++i) read();
          const bool cancelled =
              engine.cancel(id);  // returns false if other threads have finished the request
          while (!engine.is_finished(*inbox)) read();
          EXPECT_TRUE(reason == "length" || (cancelled && reason == "abort")) << reason;
        } else {  // answers that nobody reads
          const auto inbox = answers();
          for (int32_t i = 0; i < 3; ++i) front.submit(inbox, prompt, 20);
          engine.wait(*inbox, 0);
          engine.cancel_all(*inbox);
          EXPECT_TRUE(engine.is_finished(*inbox));
        }
      }
    });
  threads.clear();
  const auto last = answers();
  front.submit(last, made_prompt(3), 2);
  EXPECT_EQ(engine.wait(*last).size(), 1u);
  EXPECT_EQ(engine.stats().num_free_blocks, 40);
}

TEST(AsyncEngine, AFailedStepReachesEveryWaiter) {
  Front front;
  front.fake->fail_at(5);
  std::atomic<int> num_dead = 0;
  std::vector<std::jthread> threads;
  std::latch submitted(4);
  for (int32_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      const auto inbox = t % 2 == 0 ? answers() : pieces();
      front.submit(inbox, made_prompt(4, t), 30);
      submitted.arrive_and_wait();
      try {
        while (!front.engine->is_finished(*inbox)) front.engine->wait(*inbox);
      } catch (const EngineDead& e) {
        EXPECT_THAT(e.what(), HasSubstr("the device fell off"));
        ++num_dead;
      }
      front.engine->cancel_all(*inbox);
    });
  threads.clear();
  EXPECT_EQ(num_dead, 4);
  const auto dies = [](const auto& call) {
    EXPECT_THAT(call, ThrowsMessage<EngineDead>(HasSubstr("the device fell off")));
  };
  const auto inbox = answers();
  dies([&] { front.submit(inbox, made_prompt(4), 1); });
  dies([&] { front.engine->wait(*inbox); });
  dies([&] { front.engine->take(*inbox); });
  dies([&] { front.engine->cancel(0); });
  front.engine->exit();
  dies([&] { front.submit(inbox, made_prompt(4), 1); });
}

TEST(AsyncEngine, SubmittingAndCancellingDoNotWaitForAStep) {
  Front front;
  front.gate->close();
  const auto slow = answers(), other = answers();
  const uint64_t id = front.submit(slow, made_prompt(4), 30);
  std::jthread stepper([&] {
    const std::vector<RequestUpdate> arrived = front.engine->wait(*slow);
    ASSERT_EQ(arrived.size(), 1u);
    EXPECT_EQ(arrived[0].finished->finish_reason, "abort");
  });
  front.gate->await_step();
  // The step cannot end before open().
  const int64_t num_steps = front.engine->stats().steps;
  const uint64_t next = front.submit(other, made_prompt(5), 3);
  EXPECT_THROW(front.submit(other, {}, 3), UserError);
  EXPECT_TRUE(front.engine->cancel(id));
  EXPECT_FALSE(front.engine->cancel(id));
  EXPECT_TRUE(front.engine->take(*other).empty());
  EXPECT_EQ(front.engine->stats().steps, num_steps);
  front.gate->open_for_ever();
  stepper.join();
  const std::vector<RequestUpdate> arrived = front.engine->wait(*other);
  ASSERT_EQ(arrived.size(), 1u);
  EXPECT_EQ(arrived[0].request_id, next);
  EXPECT_EQ(arrived[0].finished->token_ids, front.test.alone(made_prompt(5), 3));
}

TEST(AsyncEngine, CancelBeforeTheFirstStepAndOfUnknownRequests) {
  Front front;
  const auto inbox = answers();
  const uint64_t id = front.submit(inbox, made_prompt(4), 30);
  EXPECT_FALSE(front.engine->cancel(id + 1));
  EXPECT_TRUE(front.engine->cancel(id));
  EXPECT_FALSE(front.engine->cancel(id));
  const std::vector<RequestUpdate> arrived = front.engine->wait(*inbox);
  ASSERT_EQ(arrived.size(), 1u);
  EXPECT_EQ(arrived[0].finished->finish_reason, "abort");
  EXPECT_TRUE(arrived[0].finished->token_ids.empty());
  EXPECT_FALSE(front.engine->cancel(id));
  EXPECT_TRUE(front.engine->is_finished(*inbox));
  EXPECT_TRUE(front.engine->wait(*inbox).empty());  // returns at once, because no request runs
  EXPECT_EQ(front.fake->num_submitted(), 0);
}

TEST(AsyncEngine, ACancellationIsAppliedAtOnceIfNoCallSteps) {
  Front front;
  const auto inbox = pieces();
  for (int32_t i = 0; i < 3; ++i) front.submit(inbox, made_prompt(6, i), 20);
  const auto single = answers();
  const uint64_t id = front.submit(single, made_prompt(5), 20);
  front.engine->wait(*inbox);
  EXPECT_EQ(front.engine->stats().num_running, 4);
  front.engine->cancel_all(*inbox);
  EXPECT_EQ(front.engine->stats().num_running, 1);
  EXPECT_TRUE(front.engine->cancel(id));
  EXPECT_EQ(front.engine->stats().num_running, 0);
  EXPECT_EQ(front.engine->stats().num_free_blocks, 16);
  const std::vector<RequestUpdate> arrived = front.engine->wait(*single);
  ASSERT_EQ(arrived.size(), 1u);
  EXPECT_EQ(arrived[0].finished->finish_reason, "abort");
  EXPECT_EQ(front.engine->stats().num_free_blocks, 16);
}

TEST(AsyncEngine, TheLastCallThatLeavesAppliesWhatWasCancelledDuringItsStep) {
  Front front;
  front.gate->close();
  const auto inbox = answers(), other = answers();
  front.submit(inbox, made_prompt(4), 20);
  front.submit(other, made_prompt(5), 20);
  EXPECT_TRUE(front.engine->wait(*inbox, 0).empty());  // submits a step; the next one waits for it
  std::jthread stepper([&] { EXPECT_TRUE(front.engine->wait(*inbox, 0).empty()); });
  front.gate->await_step();
  front.engine->cancel_all(*other);
  front.gate->open();
  stepper.join();
  EXPECT_EQ(front.engine->stats().num_running, 1);
  front.engine->cancel_all(*inbox);
  EXPECT_EQ(front.engine->stats().num_free_blocks, 16);
  front.gate->open_for_ever();
}

TEST(AsyncEngine, InvalidRequestsAreRefusedAtOnce) {
  Front front;
  const auto inbox = answers();
  EXPECT_THAT([&] { front.submit(inbox, {1000}, 1); },
              ThrowsMessage<UserError>(HasSubstr("0 to 999")));
  SamplingParams bad;
  bad.n = 1000;
  EXPECT_THROW(front.engine->requests().prepare(bad), UserError);
  EXPECT_TRUE(front.engine->is_finished(*inbox));
  EXPECT_EQ(front.submit(inbox, {1}, 1), 0u);
}

TEST(AsyncEngine, ExitIsAnErrorForThreadsThatWait) {
  Front front;
  front.gate->close();
  std::atomic<int> num_dead = 0;
  std::vector<std::jthread> threads;
  for (int32_t t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      const auto inbox = answers();
      front.submit(inbox, made_prompt(4, t), 30);
      try {
        front.engine->wait(*inbox);
      } catch (const EngineDead& e) {
        EXPECT_THAT(e.what(), HasSubstr("exit()"));
        ++num_dead;
      }
    });
  front.gate->await_step();
  front.await_turns(3);
  std::jthread ender([&] { front.engine->exit(); });
  while (num_dead < 2) std::this_thread::sleep_for(1ms);  // all but the one in the step
  front.gate->open();
  ender.join();
  threads.clear();
  EXPECT_EQ(num_dead, 3);
  EXPECT_THROW(front.engine->require_alive(), EngineDead);
  EXPECT_THROW(front.submit(answers(), {1}, 1), EngineDead);
  front.engine->exit();  // a second call does nothing
}

TEST(AsyncEngine, TurnsAreInTheOrderOfTheCalls) {
  Front front;
  front.gate->close();
  constexpr int32_t kThreads = 4;
  std::vector<std::jthread> threads;
  std::vector<std::thread::id> ids;
  for (int32_t t = 0; t < kThreads; ++t) {
    // Each answer is longer than the previous ones, so the thread that asked first is done first.
    threads.emplace_back([&front, t] {
      const auto inbox = answers();
      front.submit(inbox, made_prompt(4, t), 4 * (t + 1));
      const std::vector<RequestUpdate> arrived = front.engine->wait(*inbox);
      ASSERT_EQ(arrived.size(), 1u);
      EXPECT_EQ(arrived[0].finished->token_ids, front.test.alone(made_prompt(4, t), 4 * (t + 1)));
    });
    ids.push_back(threads.back().get_id());
    front.await_turns(static_cast<size_t>(t) + 1);
  }
  front.gate->open_for_ever();
  threads.clear();
  std::vector<std::thread::id> order = front.gate->steppers();
  order.erase(std::unique(order.begin(), order.end()), order.end());
  EXPECT_THAT(order, ElementsAre(ids[0], ids[1], ids[2], ids[3]));
}

TEST(AsyncEngine, WaitOfZeroSecondsRunsOneStep) {
  Front front;
  const auto inbox = answers();
  front.submit(inbox, made_prompt(4), 3);
  for (int64_t step = 1; step <= 3; ++step) {
    EXPECT_TRUE(front.engine->wait(*inbox, 0).empty());
    EXPECT_EQ(front.fake->num_submitted(), step);
  }
  EXPECT_EQ(front.engine->wait(*inbox, 0).size(), 1u);
}

TEST(AsyncEngine, RunServesCallersThatDoNotWait) {
  Front front;
  std::jthread runner([&] { front.engine->run(); });
  front.await_turns(1);
  const FileDescriptor wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const auto inbox = std::make_shared<Inbox>(/*wants_pieces=*/true, wake.get());
  const auto is_woken = [&] {
    pollfd fd = {wake.get(), POLLIN, 0};
    eventfd_t count = 0;
    return poll(&fd, 1, 10'000) == 1 && eventfd_read(wake.get(), &count) == 0;
  };
  for (int32_t round = 0; round < 20; ++round) {
    front.submit(inbox, made_prompt(5, round), 6);
    std::vector<int32_t> streamed;
    while (!front.engine->is_finished(*inbox)) {
      ASSERT_TRUE(is_woken());
      for (const RequestUpdate& update : front.engine->take(*inbox))
        streamed.insert(streamed.end(), update.token_ids.begin(), update.token_ids.end());
    }
    EXPECT_EQ(streamed, front.test.alone(made_prompt(5, round), 6));
  }
  // A caller of wait() gets its answers too.
  const auto waits = answers();
  front.submit(waits, made_prompt(3), 2);
  EXPECT_EQ(front.engine->wait(*waits).size(), 1u);
  // exit() wakes the callers whose requests run.
  front.gate->close();
  front.submit(inbox, made_prompt(5), 6);
  front.gate->await_step();
  std::jthread ender([&] { front.engine->exit(); });
  for (bool is_dead = false; !is_dead;) {
    ASSERT_TRUE(is_woken());
    try {
      front.engine->take(*inbox);
    } catch (const EngineDead&) {
      is_dead = true;
    }
  }
  front.gate->open_for_ever();
}

TEST(AsyncEngine, AForkedProcessGetsAnErrorWhileAThreadSteps) {
  Front front;
  front.gate->close();
  const auto inbox = answers();
  front.submit(inbox, made_prompt(4), 3);
  std::jthread stepper([&] { EXPECT_EQ(front.engine->wait(*inbox).size(), 1u); });
  front.gate->await_step();
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    int errors = 0;
    const auto fails = [&](const auto& call) {
      try {
        call();
      } catch (const EngineDead&) {
        ++errors;
      }
    };
    fails([&] { front.engine->wait(*inbox); });
    fails([&] { front.engine->cancel(0); });
    fails([&] { front.submit(inbox, {1}, 1); });
    fails([&] { front.engine->require_alive(); });
    front.engine->cancel_all(*inbox);
    front.engine->exit();
    _exit(errors);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 4);
  front.gate->open_for_ever();
}

}  // namespace
}  // namespace nanovllm::testing
