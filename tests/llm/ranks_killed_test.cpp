// The process of a rank is killed or stopped at each stage of an engine, on the CPU and on two
// GPUs. The caller must get an exception that names the reason, no process may remain, and the next
// engine must work. (tests/apps/ranks_test.cpp and gpu_ranks_test.cpp also kill rank 0, at random
// times.)
#include <gtest/gtest.h>

#include <csignal>
#include <map>

#include "goldens.h"
#include "nanovllm/llm.h"
#include "tests/children.h"
#include "tests/gpus.h"

namespace nanovllm::testing {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

enum class Stage { kStart, kLoad, kFirstPrefill, kDecode, kIdle };

struct Kill {
  friend void PrintTo(const Kill& k, std::ostream* out) { *out << k.name; }
  std::string name, device;
  Stage stage;
  int signal = SIGKILL;
};

EngineConfig config_of(const Kill& k) {
  EngineConfig config;
  config.device = k.device;
  config.dtype = "float32";
  config.kv_cache_memory_bytes = 64 << 20;
  config.tensor_parallel_size = 2;
  config.worker_path = NANOVLLM_BINARY;
  // Only this timeout detects a stopped process. It is longer on a GPU, whose first steps autotune
  // GEMMs.
  if (k.signal == SIGSTOP) config.step_timeout = k.device == "cpu" ? 2 : 10;
  return config;
}

void add_requests(LLM& llm) {
  SamplingParams params;
  params.max_tokens = 1500;
  params.ignore_eos = true;
  for (int32_t i = 0; i < 4; ++i) llm.add_request(std::vector<int32_t>(400, 100 + i), params);
}

void step_for_ever(LLM& llm) {
  for (;;) {
    if (llm.is_finished()) add_requests(llm);
    llm.step();
  }
}

/// How long the stages take on this machine if no process is killed.
struct Times {
  Seconds load, first_prefill;
};
const Times& times_of(const Kill& k) {
  static std::map<std::string, Times> known;
  if (const auto found = known.find(k.device); found != known.end()) return found->second;
  Kill nobody = k;
  nobody.signal = 0;
  const auto start = Clock::now();
  LLM llm(kTinyTales, config_of(nobody));
  const auto loaded = Clock::now();
  add_requests(llm);
  llm.step();
  llm.step();  // returns the tokens of the first step
  return known[k.device] = {loaded - start, Clock::now() - loaded};
}

class RanksKilled : public ::testing::TestWithParam<Kill> {
 protected:
  void SetUp() override {
    if (GetParam().device == "cuda" && num_gpus() < 2)
      GTEST_SKIP() << "needs two GPUs; " << num_gpus() << " are here";
  }

  /// Starts a thread that sends the signal to the worker after this time.
  std::jthread kill_after(Seconds delay) {
    return std::jthread([this, delay] {
      workers_ = wait_for_children(getpid(), 1);
      std::this_thread::sleep_for(delay);
      killed_ = Clock::now();
      if (!workers_.empty()) ::kill(workers_[0], GetParam().signal);
    });
  }
  void kill_now() { kill_after({}).join(); }

  /// Calls `run` and expects EngineDead with the signal as its reason.
  template <class F>
  void expect_death(F run) {
    const Kill& k = GetParam();
    try {
      run();
      ADD_FAILURE() << "no exception";
    } catch (const EngineDead& e) {
      const std::string what = e.what();
      const std::string reason =
          k.signal == SIGSTOP ? "--step-timeout" : "ended by signal " + std::to_string(k.signal);
      EXPECT_NE(what.find(reason), std::string::npos) << what;
    }
    EXPECT_LT(Seconds(Clock::now() - killed_).count(), k.signal == SIGSTOP ? 30 : 10);
  }

  std::vector<pid_t> workers_;
  Clock::time_point killed_ = Clock::now();
};

TEST_P(RanksKilled, TheCallerGetsAnExceptionAndNoProcessRemains) {
  const Kill& k = GetParam();
  const Times& times = times_of(k);
  const bool has_moments = k.stage == Stage::kLoad || k.stage == Stage::kFirstPrefill;
  for (const double moment : has_moments ? std::vector{0.1, 0.3, 0.5, 0.7, 0.9} : std::vector{0.}) {
    SCOPED_TRACE(moment);
    if (k.stage == Stage::kStart || k.stage == Stage::kLoad) {
      const std::jthread killer = kill_after(times.load * moment);
      expect_death([&] {
        LLM llm(kTinyTales, config_of(k));
        step_for_ever(llm);
      });
    } else {
      LLM llm(kTinyTales, config_of(k));
      if (k.stage == Stage::kIdle) {
        generate_one(llm, {1, 2, 3}, {.max_tokens = 5});
        kill_now();
        if (k.signal == SIGKILL) expect_gone(workers_);
        expect_death([&] { step_for_ever(llm); });
      } else if (k.stage == Stage::kDecode) {
        add_requests(llm);
        for (int i = 0; i < 8; ++i) llm.step();
        kill_now();
        expect_death([&] { step_for_ever(llm); });
      } else {
        add_requests(llm);
        const std::jthread killer = kill_after(times.first_prefill * moment);
        expect_death([&] { step_for_ever(llm); });
      }
      EXPECT_THROW(llm.step(), EngineDead);
      EXPECT_THROW(add_requests(llm), EngineDead);
    }
    expect_gone(workers_);
  }
  Kill nobody = k;
  nobody.signal = 0;
  LLM again(kTinyTales, config_of(nobody));
  const Json row = goldens("tiny-tales").at(0);
  EXPECT_EQ(generate_one(again, row["prompt_token_ids"].get<std::vector<int32_t>>(),
                         {.temperature = 0, .max_tokens = 64})
                .token_ids,
            row["greedy_token_ids"].get<std::vector<int32_t>>());
}

std::vector<Kill> kills() {
  std::vector<Kill> all;
  for (const std::string device : {"cpu", "cuda"}) {
    for (const auto& [name, stage] : {std::pair("start", Stage::kStart),
                                      {"load", Stage::kLoad},
                                      {"first_prefill", Stage::kFirstPrefill},
                                      {"decode", Stage::kDecode},
                                      {"idle", Stage::kIdle}})
      all.push_back({device + "_" + name, device, stage});
    all.push_back({device + "_stopped_in_decode", device, Stage::kDecode, SIGSTOP});
    all.push_back({device + "_stopped_at_rest", device, Stage::kIdle, SIGSTOP});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Stages, RanksKilled, ::testing::ValuesIn(kills()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace nanovllm::testing
