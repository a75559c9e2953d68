#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "nanovllm/base/error.h"
#include "test_engine.h"
#include "tests/trace_events.h"

namespace nanovllm::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

class Traces : public ::testing::TestWithParam<bool> {
 protected:
  TestEngine::Options options() const {
    TestEngine::Options o;
    o.async_scheduling = GetParam();
    o.trace = path_;
    return o;
  }
  TraceEvents read() const { return TraceEvents::read(path_); }
  ~Traces() override { std::filesystem::remove(path_); }

  const std::string path_ = ::testing::TempDir() + "trace_" + (GetParam() ? "async" : "sync") +
                            std::to_string(::getpid()) + ".json";
};

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Everything that the engine counts is in the trace exactly once.
void expect_sums(TraceEvents& trace, const EngineStats& stats) {
  EXPECT_THAT(trace.errors, IsEmpty());
  const auto sum = [&](const char* arg) { return trace.sum("host", "engine step", arg); };
  EXPECT_EQ(sum("prefill_tokens"), stats.prefill_tokens);
  EXPECT_EQ(sum("decode_tokens"), stats.decode_tokens);
  EXPECT_EQ(sum("cached_tokens"), stats.prefix_hits);
  EXPECT_EQ(sum("generated_tokens"), stats.generated_tokens);
  EXPECT_EQ(sum("blocks_taken"), stats.blocks_taken);
  EXPECT_EQ(sum("blocks_shared"), stats.blocks_shared);
  EXPECT_EQ(sum("blocks_freed"), stats.blocks_freed);
  EXPECT_EQ(trace.sum("device", "step", "tokens"), stats.prefill_tokens + stats.decode_tokens);
  EXPECT_EQ(static_cast<int64_t>(trace.tracks.at("device").size()), stats.steps);
  int64_t num_decodes = 0, num_prefill = 0, num_cached = 0, num_preempted = 0;
  for (const TraceSlice& slice : trace.tracks.at("host")) {
    if (slice.name != "engine step") continue;
    num_decodes += static_cast<int64_t>(slice.args["decodes"].size());
    num_preempted += static_cast<int64_t>(slice.args["preempted"].size());
    for (const Json& row : slice.args["prefills"]) {
      num_prefill += row["tokens"].get<int64_t>();
      num_cached += row["cached"].get<int64_t>();
    }
  }
  EXPECT_EQ(num_decodes, stats.decode_tokens);
  EXPECT_EQ(num_prefill, stats.prefill_tokens);
  EXPECT_EQ(num_cached, stats.prefix_hits);
  EXPECT_EQ(num_preempted, stats.preemptions);
}

TEST_P(Traces, RequestPassesThroughItsPhases) {
  EngineStats stats;
  {
    TestEngine t(options());
    t.add(made_prompt(10), 3);
    t.run();
    t.add(made_prompt(10), 3);  // 8 of its 10 tokens are cached
    t.add(made_prompt(5, 2), 1);
    t.run();
    stats = t.engine->stats();
  }
  EXPECT_NO_THROW(Json::parse(text_of(path_)));
  TraceEvents trace = read();
  expect_sums(trace, stats);
  EXPECT_THAT(trace.phases("request 0"), ElementsAre("queue", "prefill", "decode"));
  EXPECT_THAT(trace.phases("request 2"), ElementsAre("queue", "prefill"));
  EXPECT_THAT(trace.errors, IsEmpty());
  const std::vector<TraceSlice>& first = trace.tracks.at("request 0");
  EXPECT_EQ(first[0].args["prompt_tokens"], 10);
  EXPECT_EQ(first.back().args["finish_reason"], "length");
  EXPECT_EQ(trace.tracks.at("request 1")[2].name, "2 tokens");
  EXPECT_EQ(trace.counters.at("free blocks").back(), 16);
  EXPECT_EQ(trace.counters.at("running").back(), 0);
  EXPECT_GT(stats.host_seconds, 0);
  EXPECT_GT(stats.device_seconds, 0);
}

// Long prompts in chunks, choices, more sequences than slots and blocks, requests that are
// cancelled: whatever happens, slices nest, phases have no gaps, and the sums are the engine's.
TEST_P(Traces, AddsUpForRandomRequests) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](int64_t n) {
      return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
    };
    EngineStats stats;
    int64_t num_sequences = 0;
    {
      TestEngine::Options o = options();
      o.max_num_batched_tokens = 4 + below(20);
      o.num_blocks = 10 + below(8);
      o.model.not_finite_every = below(2) * 50;
      TestEngine t(o);
      for (int i = 0; i < 30; ++i) {
        const int64_t n = 1 + below(2) * below(3);
        const auto family = static_cast<int32_t>(below(3));
        const uint64_t id = t.add(made_prompt(1 + below(25), family), 1 + below(14), n);
        num_sequences += n;
        for (int64_t steps = below(4); steps > 0 && !t.engine->is_finished(); --steps) t.step();
        if (below(5) == 0) t.engine->abort(id - static_cast<uint64_t>(below(2)));
      }
      t.run();
      stats = t.engine->stats();
    }
    TraceEvents trace = read();
    expect_sums(trace, stats);
    for (const auto& [track, slices] : trace.tracks) {
      if (!track.starts_with("request")) continue;
      --num_sequences;
      const std::vector<std::string> phases = trace.phases(track);
      EXPECT_EQ(phases[0], "queue");
      for (size_t i = 1; i < phases.size(); ++i)
        EXPECT_EQ(phases[i] == "prefill", phases[i - 1] == "queue" || phases[i - 1] == "preempted")
            << ::testing::PrintToString(phases);
      const auto is_end = [](const TraceSlice& s) { return s.args.contains("finish_reason"); };
      EXPECT_EQ(std::ranges::count_if(slices, is_end), 1) << track;
    }
    EXPECT_EQ(num_sequences, 0);
    EXPECT_THAT(trace.errors, IsEmpty());
    EXPECT_EQ(trace.counters.at("free blocks").back(), stats.num_blocks);
  }
}

TEST_P(Traces, ShowsAPreemption) {
  TestEngine::Options o = options();
  o.num_blocks = 7;
  o.max_model_len = 28;
  {
    TestEngine t(o);
    t.add(made_prompt(10, 1), 8);
    t.add(made_prompt(10, 2), 8);
    t.run();
    EXPECT_EQ(t.engine->stats().preemptions, 1);
  }
  TraceEvents trace = read();
  EXPECT_THAT(trace.phases("request 0"), ElementsAre("queue", "prefill", "decode"));
  EXPECT_THAT(trace.phases("request 1"),
              ElementsAre("queue", "prefill", "decode", "preempted", "prefill", "decode"));
}

TEST_P(Traces, ChoicesHaveTracksOfTheirOwn) {
  {
    TestEngine t(options());
    t.add(made_prompt(6), 3, 2);
    t.add(made_prompt(7), 30, 3);
    t.engine->abort(1);  // its other choices have not started
    t.run();
  }
  TraceEvents trace = read();
  for (const char* choice : {"request 0.0", "request 0.1"})
    EXPECT_THAT(trace.phases(choice), ElementsAre("queue", "prefill", "decode")) << choice;
  for (const char* choice : {"request 1.0", "request 1.1", "request 1.2"}) {
    EXPECT_THAT(trace.phases(choice), ElementsAre("queue")) << choice;
    EXPECT_EQ(trace.tracks.at(choice)[0].args["finish_reason"], "abort");
  }
}

// An engine that is idle has written everything. A process that is killed has written whole lines.
TEST_P(Traces, FileIsReadableWhileTheEngineRuns) {
  TestEngine t(options());
  t.add(made_prompt(10), 3);
  t.run();
  TraceEvents trace = read();
  EXPECT_THAT(trace.phases("request 0"), ElementsAre("queue", "prefill", "decode"));
  EXPECT_FALSE(text_of(path_).ends_with("]\n"));
}

INSTANTIATE_TEST_SUITE_P(Engine, Traces, ::testing::Bool());

TEST(TraceFiles, PathsThatCannotBeWrittenAreRefused) {
  EXPECT_THAT([] { Trace trace("/nowhere/trace.json"); },
              ThrowsMessage<UserError>("cannot write the trace to /nowhere/trace.json: No such "
                                       "file or directory"));
  EXPECT_THAT([] { Trace trace("/"); }, ThrowsMessage<UserError>(HasSubstr("Is a directory")));
}

TEST(TraceFiles, FullDiskEndsTheTraceWithOneWarning) {
  TestEngine::Options o;
  o.trace = "/dev/full";
  ::testing::internal::CaptureStderr();
  TestEngine t(o);
  for (int i = 0; i < 3; ++i) {
    t.add(made_prompt(10), 3);
    t.run();
  }
  EXPECT_EQ(t.outputs.size(), 3u);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "warning: the trace ends early: cannot write to /dev/full: No space left on device\n");
}

}  // namespace
}  // namespace nanovllm::testing
