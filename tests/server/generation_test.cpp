#include "nanovllm/server/generation.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace nanovllm::server {
namespace {

/// For requests that are never scheduled.
class NoExecutor : public Executor {
 public:
  void submit(const StepInput&) override { throw std::logic_error("a step"); }
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

Generation read_stream(const Serving& serving, const std::string&) {
  Generation generation;
  generation.requests.push_back(serving.client.engine().prepare({1, 2}, {}));
  generation.stream = true;
  return generation;
}

// The reply outlives the call: an error event may still be on its way when the client goes.
TEST(Generation, AReplyDoesNotKnowACallThatHasFailed) {
  asio::io_context io;
  asio::thread_pool pool(1);
  AsyncEngine engine(make_engine());
  Serving serving{.io = io,
                  .pool = pool,
                  .client = EngineClient(io, engine, "m"),
                  .chat_template = {},
                  .defaults = {},
                  .names = {"m"},
                  .most_sequences = 4};
  HttpRequest request;
  BrokenReply reply;
  bool has_failed = false;
  asio::co_spawn(io, generate(serving, request, reply, read_stream),
                 [&](const std::exception_ptr& failure) { has_failed = failure != nullptr; });
  io.run();
  EXPECT_TRUE(has_failed);
  EXPECT_TRUE(reply.was_asked);
  EXPECT_FALSE(reply.gone);
  EXPECT_EQ(serving.num_sequences, 0);
}

}  // namespace
}  // namespace nanovllm::server
