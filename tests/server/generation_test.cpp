#include "nanovllm/server/generation.h"

#include <gmock/gmock.h>

#include <future>
#include <stdexcept>
#include <thread>

#include "nanovllm/server/http/api_error.h"
#include "nanovllm/server/openai/limits.h"

namespace nanovllm::server {
namespace {

/// For requests that are never scheduled.
class NoExecutor : public Executor {
 public:
  void submit(const StepInput&) override { throw std::logic_error("a step"); }
  void complete(const StepInput&) override { throw std::logic_error("a step"); }
  const StepOutput& wait() override { throw std::logic_error("a step"); }
};

std::unique_ptr<LLMEngine> make_engine() {
  EngineSetup setup;
  setup.config.max_model_len = 40;
  setup.config.max_num_seqs = 4;
  setup.config.max_num_batched_tokens = 64;
  setup.config.block_size = 4;
  setup.num_blocks = 16;
  setup.model.vocab_size = 10;
  return std::make_unique<LLMEngine>(setup, std::make_unique<NoExecutor>(), nullptr);
}

/// A reply whose stream cannot begin.
class BrokenReply : public HttpReply {
 public:
  Task<> send(int, std::string_view, std::string, const HttpHeaders&) override { co_return; }
  Task<> begin_events() override {
    throw std::runtime_error("no events");
    co_return;
  }
  void add_event(std::string_view, std::string_view) override {}
  void add_comment() override {}
  bool has_events() const override { return false; }
  Task<> flush() override { co_return; }
  Task<> end_events() override { co_return; }
  void on_gone(std::function<void()> then) override {
    was_asked |= then != nullptr;
    gone = std::move(then);
  }
  int status() const override { return 0; }

  bool was_asked = false;
  std::function<void()> gone;
};

Generation read_stream(const Serving& serving, const std::string&, const std::stop_token&) {
  Generation generation;
  generation.add(serving, {1, 2}, serving.requests.prepare({}), "");
  generation.stream = true;
  return generation;
}

/// A Serving over an engine that is never stepped.
struct TestServing {
  asio::io_context io;
  WorkPool pool;
  AsyncEngine engine{make_engine()};
  LiveServing serving{{.setup = engine.setup(),
                       .requests = engine.requests(),
                       .vocabulary = {},
                       .chat_template = {},
                       .defaults = {},
                       .template_defaults = {},
                       .names = {"m"}},
                      io,
                      pool,
                      EngineClient(io, engine, "m"),
                      4,
                      {}};
};

// The reply outlives the call: an error event may still be on its way when the client goes.
TEST(Generation, AReplyDoesNotKnowACallThatHasFailed) {
  TestServing test;
  HttpRequest request;
  BrokenReply reply;
  bool has_failed = false;
  asio::co_spawn(test.io, generate(test.serving, request, reply, read_stream),
                 [&](const std::exception_ptr& failure) { has_failed = failure != nullptr; });
  test.io.run();
  EXPECT_TRUE(has_failed);
  EXPECT_TRUE(reply.was_asked);
  EXPECT_FALSE(reply.gone);
  EXPECT_EQ(test.serving.num_sequences, 0);
}

// The parameters count once, and what the ranks get for each choice as often as there are choices.
TEST(Generation, TheMemoryOfARequestIsOneSum) {
  const TestServing t;
  const RequestFactory& factory = t.engine.requests();
  SamplingParams params;
  params.max_tokens = 1;
  params.n = 128;
  for (int32_t id = 0; id < 10; ++id) params.logit_bias[id] = 1;
  const auto prepared = factory.prepare(params);
  Generation generation;
  generation.add(t.serving, {1}, prepared, "");
  const size_t once = generation.num_bytes;
  EXPECT_LT(once, size_t{2} << 20);
  generation.add(t.serving, {1}, prepared, "");
  EXPECT_LT(generation.num_bytes, 2 * once);
  EXPECT_EQ(generation.requests[0].choices[0]->params.get(),
            generation.requests[1].choices[127]->params.get());

  const auto add = [&] {
    for (int i = 0; i < 10'000; ++i) generation.add(t.serving, {1}, prepared, "");
  };
  generation.num_bytes = kMaxRequestBytes - once / 2;
  EXPECT_THAT(add, ::testing::ThrowsMessage<ApiError>(::testing::HasSubstr("1024 MiB")));
  EXPECT_EQ(generation.requests.size(), 2u);
}

TEST(Generation, EqualParametersArePreparedOnce) {
  const TestServing t;
  const RequestFactory& factory = t.engine.requests();
  SamplingParams params;
  params.allowed_token_ids = {{3, 1, 3, 2}};
  const auto first = factory.prepare(params);
  EXPECT_THAT(first->allowed_ids.empty(), true);  // a mask of one word is shorter
  EXPECT_THAT(first->allowed_mask, ::testing::ElementsAre(0b1110));
  EXPECT_EQ(factory.prepare(params), first);
  params.seed = 3;
  EXPECT_NE(factory.prepare(params), first);
}

TEST(WorkPool, SmallWorkDoesNotWaitForLargeWork) {
  WorkPool pool;
  std::promise<void> ends;
  const std::shared_future<void> end = ends.get_future();
  std::vector<std::future<void>> done;
  const auto post = [&](size_t bytes, auto work) {
    auto task = std::make_shared<std::packaged_task<void()>>(work);
    done.push_back(task->get_future());
    asio::post(pool.lane(bytes), [task] { (*task)(); });
  };
  for (const size_t large : {size_t{100'000}, size_t{1} << 20, size_t{8} << 20, size_t{32} << 20})
    for (int i = 0; i < 3; ++i) post(large, [end] { end.wait(); });
  post(0, [] {});
  post(60'000, [] {});
  done[done.size() - 2].get();
  done.back().get();
  ends.set_value();
}

// The body is read only while somebody waits for the answer.
TEST(Generation, WorkForAClientThatHasGoneIsCancelled) {
  TestServing t;
  HttpRequest request;
  BrokenReply reply;
  std::stop_source stop;
  bool was_cancelled = false, ran = false;
  const auto work = [&] {
    ran = true;
    asio::post(t.io, [&] { reply.gone(); });
    while (!stop.stop_requested()) std::this_thread::yield();
    throw Cancelled();
  };
  asio::co_spawn(t.io, work_for_client(t.pool, request, reply, stop, work),
                 [&](const std::exception_ptr& failure) {
                   try {
                     std::rethrow_exception(failure);
                   } catch (const Cancelled&) {
                     was_cancelled = true;
                   }
                 });
  t.io.run();
  EXPECT_TRUE(ran);
  EXPECT_TRUE(was_cancelled);
  EXPECT_FALSE(reply.gone);
}

}  // namespace
}  // namespace nanovllm::server
