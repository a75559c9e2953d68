// Rank 0 is in this process, which calls the library; the others are processes of the nanovllm
// binary.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "digit_constraint.h"
#include "goldens.h"
#include "nanovllm/engine/llm_engine.h"
#include "nanovllm/llm.h"
#include "nanovllm/runtime/ranks/executor.h"
#include "nanovllm/runtime/setup.h"
#include "tests/children.h"
#include "tests/model/model_test_util.h"

namespace nanovllm::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

EngineConfig config_of(int world) {
  EngineConfig config;
  config.device = "cpu";
  config.dtype = "float32";
  config.kv_cache_memory_bytes = 64 << 20;
  config.tensor_parallel_size = world;
  config.worker_path = NANOVLLM_BINARY;
  config.step_timeout = 2;
  return config;
}

SamplingParams greedy() {
  SamplingParams params;
  params.temperature = 0;
  params.max_tokens = 64;
  return params;
}

SamplingParams endless() {
  SamplingParams params;
  params.max_tokens = 450;
  params.ignore_eos = true;
  return params;
}

void expect_goldens(LLM& llm) {
  for (const Json& row : goldens("llama"))
    if (!row.value("tie", false)) {
      EXPECT_EQ(generate_one(llm, row["prompt_token_ids"].get<std::vector<int32_t>>(), greedy())
                    .token_ids,
                row["greedy_token_ids"].get<std::vector<int32_t>>());
    }
}

const std::string kLlama = model_folder("llama");
const std::vector<int32_t> kPrompt = {1, 2, 3};

// `ranks.one-failure-ends-all`
TEST(LibraryRanks, StepThatRank0RefusesEndsAll) {
  EngineSetup setup;
  const std::unique_ptr<Executor> ranks = start_ranks(kLlama, config_of(2), setup);
  StepArrays arrays;
  arrays.setups.emplace_back();
  arrays.block_updates.emplace_back();
  arrays.rows.push_back({.slot = 0, .num_tokens = 1});
  arrays.token_ids = {1};
  std::vector<std::byte> buffer;
  const StepInput step = arrays.write(0, buffer);
  ranks->submit(step);
  ranks->submit(step);
  const auto refused = ThrowsMessage<EngineDead>(HasSubstr("more than two steps in flight"));
  EXPECT_THAT([&] { ranks->submit(step); }, refused);
  const auto wait_for_all = [&] {  // the first two steps may have been computed before
    for (int i = 0; i < 3; ++i) ranks->wait();
  };
  EXPECT_THAT(wait_for_all, refused);
  EXPECT_TRUE(holds_within(10, [] { return children_of(getpid()).empty(); }));
}

TEST(LibraryRanks, GiveTheReferenceTokensWithAndWithoutAsyncScheduling) {
  for (const bool ahead : {true, false}) {
    EngineConfig config = config_of(2);
    config.async_scheduling = ahead;
    LLM llm(kLlama, config);
    const std::vector<pid_t> workers = wait_for_children(getpid(), 1);
    expect_goldens(llm);
    llm.exit();  // joins its workers
    EXPECT_TRUE(children_of(getpid()).empty());
    expect_gone(workers);
  }
}

// order.late, over the channel to another process.
TEST(LibraryRanks, LatePartsOfStepsReachAllRanks) {
  std::vector<std::vector<int32_t>> answers;
  for (const int world : {1, 2}) {
    LLMEngine engine = LLMEngine::load(kLlama, config_of(world));
    for (uint64_t seed = 0; seed < 6; ++seed) {
      SamplingParams params;
      params.max_tokens = 30;
      params.ignore_eos = true;
      params.seed = seed;
      params.frequency_penalty = 0.5;  // of tokens that the slots count when a step is waited for
      if (seed % 3 == 0) params.allowed_token_ids = {10, 11, 12};
      NewRequest request = engine.request_factory()->make(kPrompt, params);
      if (seed % 3 != 0) request.choices[0]->constraint = std::make_unique<DigitConstraint>();
      engine.add(std::move(request));
    }
    std::vector<std::vector<int32_t>> of_world(6);
    while (!engine.is_finished())
      for (const RequestUpdate& update : engine.step())
        if (update.finished) of_world[update.request_id] = update.finished->token_ids;
    for (size_t t = 0; t < of_world[1].size(); ++t)
      EXPECT_EQ(of_world[1][t] % 10, static_cast<int32_t>(t % 10));
    answers.insert(answers.end(), of_world.begin(), of_world.end());
  }
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(answers[i], answers[i + 6]) << i;
}

TEST(LibraryRanks, TwoEnginesInOneProcess) {
  LLM first(kLlama, config_of(2)), second(model_folder("qwen2"), config_of(3));
  expect_goldens(first);
  EXPECT_EQ(children_of(getpid()).size(), 3u);
}

// Output of a process with closed standard streams must not be written to the memory of the ranks.
TEST(LibraryRanks, DoNotUseTheNumberOfAClosedStandardStream) {
  std::cout.flush();
  std::array<int, 3> saved;
  for (int fd = 0; fd < 3; ++fd) saved[static_cast<size_t>(fd)] = fcntl(fd, F_DUPFD_CLOEXEC, 3);
  for (int fd = 0; fd < 3; ++fd) close(fd);
  std::array<int, 3> in_use = {};
  std::vector<int32_t> answer;
  const Json row = goldens("llama").at(0);
  {
    LLM llm(kLlama, config_of(2));
    for (int fd = 0; fd < 3; ++fd) in_use[static_cast<size_t>(fd)] = fcntl(fd, F_GETFD) >= 0;
    answer =
        generate_one(llm, row["prompt_token_ids"].get<std::vector<int32_t>>(), greedy()).token_ids;
  }
  for (int fd = 0; fd < 3; ++fd) dup2(saved[static_cast<size_t>(fd)], fd);
  for (const int fd : saved) close(fd);
  EXPECT_EQ(in_use, (std::array<int, 3>{}));
  EXPECT_EQ(answer, row["greedy_token_ids"].get<std::vector<int32_t>>());
}

TEST(LibraryRanks, ChangedWeightFilesDoNotAffectARunningEngine) {
  for (const int world : {1, 2}) {
    const TempFolder copy;
    for (const auto& file : std::filesystem::directory_iterator(kLlama))
      std::filesystem::copy_file(file.path(), copy.path(file.path().filename().string()));
    LLM llm(copy.path(), config_of(world));
    const std::string weights = copy.path("model.safetensors");
    const auto size = std::filesystem::file_size(weights);
    std::fstream(weights, std::ios::in | std::ios::out | std::ios::binary)
        << std::string(size, '\x3f');
    expect_goldens(llm);
    std::filesystem::resize_file(weights, 0);
    expect_goldens(llm);
  }
}

// The caller gets an exception, continues to run, and can make a new engine.
TEST(LibraryRanks, DeathInAStepOrWhileIdleIsAnException) {
  for (const bool at_work : {true, false})
    for (const int signal : {SIGKILL, SIGTERM, SIGUSR1}) {
      LLM llm(kLlama, config_of(3));
      const std::vector<pid_t> workers = wait_for_children(getpid(), 2);
      ASSERT_EQ(workers.size(), 2u);
      if (at_work) {
        llm.add_request(kPrompt, endless());
        for (int i = 0; i < 5; ++i) llm.step();
      }
      kill(workers[1], signal);
      if (!at_work) expect_gone(workers);
      try {
        for (int i = 0; i < 100'000; ++i) {
          if (llm.is_finished()) llm.add_request(kPrompt, endless());
          llm.step();
        }
        ADD_FAILURE() << "no exception";
      } catch (const EngineDead& e) {
        EXPECT_NE(std::string(e.what()).find("signal " + std::to_string(signal)), std::string::npos)
            << e.what();
      }
      EXPECT_THROW(llm.step(), EngineDead);
      EXPECT_THROW(llm.add_request(kPrompt, greedy()), EngineDead);
      expect_gone(workers);
    }
  LLM again(kLlama, config_of(2));
  expect_goldens(again);
}

TEST(LibraryRanks, RankThatHangsInACollectiveIsAnException) {
  LLM llm(kLlama, config_of(2));
  const std::vector<pid_t> workers = wait_for_children(getpid(), 1);
  llm.add_request(kPrompt, endless());
  llm.step();
  kill(workers.at(0), SIGSTOP);
  try {
    while (!llm.is_finished()) llm.step();
    ADD_FAILURE() << "no exception";
  } catch (const EngineDead& e) {
    EXPECT_NE(std::string(e.what()).find("--step-timeout"), std::string::npos) << e.what();
  }
  expect_gone(workers);
}

/// A worker binary that runs `script` with the arguments of a worker.
std::string worker_script(const TempFolder& folder, const std::string& script) {
  folder.write("worker.sh", "#!/bin/bash\n" + script + "\n");
  std::string path = folder.path("worker.sh");
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

// A rank whose largest step is smaller than rank 0's cannot run the prompt's step.
TEST(LibraryRanks, ExceptionInOneRankReachesTheCallerWithItsText) {
  const TempFolder folder;
  EngineConfig config = config_of(2);
  config.max_num_batched_tokens = 1111;
  config.worker_path = worker_script(folder, "exec " NANOVLLM_BINARY " \"${@/#1111/16}\"");
  LLM llm(kLlama, config);
  const std::vector<pid_t> workers = wait_for_children(getpid(), 1);
  try {
    generate_one(llm, std::vector<int32_t>(30, 5), greedy());
    ADD_FAILURE() << "no exception";
  } catch (const EngineDead& e) {
    EXPECT_NE(std::string(e.what()).find("rank 1: "), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("30"), std::string::npos) << e.what();
  }
  expect_gone(workers);
}

TEST(LibraryRanks, WorkerThatCannotStartIsAUserError) {
  const TempFolder folder;
  EngineConfig config = config_of(2);
  const auto error = [&] { return user_error([&] { LLM llm(kLlama, config); }); };
  config.worker_path = "/nowhere/nanovllm";
  EXPECT_NE(error().find("/nowhere/nanovllm: cannot be started"), std::string::npos);
  config.worker_path = worker_script(folder, "exit 3");
  EXPECT_NE(error().find("not from the same build"), std::string::npos);
  config.worker_path = "";  // neither this program nor a file in its folder is nanovllm
  EXPECT_NE(error().find("worker_path"), std::string::npos);
  EXPECT_TRUE(children_of(getpid()).empty());
}

TEST(LibraryRanks, RankThatEndsAtTheStartIsAnException) {
  const TempFolder folder;
  EngineConfig config = config_of(3);
  config.worker_path = worker_script(folder, "sleep 0.1; exit 7");
  EXPECT_THROW(LLM(kLlama, config), EngineDead);
  EXPECT_TRUE(children_of(getpid()).empty());
}

/// Processor time of all threads so far, in ticks of 10 ms.
int64_t ticks_used(pid_t pid) {
  const auto stat = process_stat(pid);
  return std::stol(stat.at(11)) + std::stol(stat.at(12));
}

TEST(LibraryRanks, IdleEngineUsesNoProcessorTime) {
  LLM llm(kLlama, config_of(3));
  generate_one(llm, kPrompt, greedy());
  std::vector<pid_t> processes = wait_for_children(getpid(), 2);
  processes.push_back(getpid());
  // On a busy machine a rank may still be polling when the answer arrives.
  EXPECT_TRUE(holds_within(30, [&] {
    std::vector<int64_t> before(processes.size());
    std::ranges::transform(processes, before.begin(), ticks_used);
    std::this_thread::sleep_for(std::chrono::seconds(1));
    bool idle = true;
    for (size_t i = 0; i < processes.size(); ++i)
      idle = idle && ticks_used(processes[i]) - before[i] <= 1;
    return idle;
  }));
}

}  // namespace
}  // namespace nanovllm::testing
