#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "apps/bench/nano_vllm.h"
#include "binary.h"

namespace nanovllm::testing {
namespace {

using ::testing::HasSubstr;

TEST(Bench, FailedRequestGivesAnErrorAndNoFigure) {
  const std::filesystem::path file =
      ::testing::TempDir() + "bench_test_errors_" + std::to_string(::getpid());
  std::ofstream(file) << "{\"prompt\": \"The\"}\n" << kTwoOfFourFail;
  expect_refused({"bench", "throughput", kTinyTales, "--dtype", "float32", "--dataset",
                  file.string(), "--json"},
                 "prompt 1 ended with an error: no token can be drawn");
  std::filesystem::remove(file);
}

TEST(Bench, WrongPromptIsNamedByItsLine) {
  const std::filesystem::path file =
      ::testing::TempDir() + "bench_test_empty_" + std::to_string(::getpid());
  std::ofstream(file) << "{\"prompt\": \"The\"}\n\n{\"prompt\": \"\"}\n";
  expect_refused({"bench", "throughput", kTinyTales, "--dataset", file.string()}, "line 3: ");
  std::filesystem::remove(file);
}

TEST(Bench, SizesOutOfRangeAreRefused) {
  const std::string most = "9223372036854775807";
  const std::vector<std::string> latency = {"bench", "latency", kTinyTales};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = latency;
    args.insert(args.end(), more.begin(), more.end());
    return args;
  };
  expect_refused(with({"--input-len", most, "--output-len", most}), "--input-len " + most);
  expect_refused(with({"--input-len", "1", "--output-len", most}), "--output-len " + most);
  expect_refused(with({"--batch-size", most}), "--batch-size is " + most);
  expect_refused(with({"--num-iters", "0"}), "--num-iters");
  expect_refused({"bench", "throughput", kTinyTales, "--num-prompts", "-1"}, "--num-prompts is -1");
}

// The file was written by nano-vLLM's bench.py, with Python's random numbers.
TEST(Bench, ItsRequestsAreThoseOfNanoVllm) {
  std::ifstream file(kSource + "/bench/nanovllm_256.jsonl");
  const std::vector<std::string> requests = nano_vllm_requests();
  ASSERT_EQ(requests.size(), 256u);
  for (const std::string& request : requests) {
    std::string line;
    std::getline(file, line);
    ASSERT_EQ(request, line);
  }
}

// The binary may be moved to a machine without the sources.
TEST(Bench, NeedsNoFilesOfItsOwn) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("bench-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  const std::string copy = folder / "nanovllm";
  std::filesystem::copy_file(NANOVLLM_BINARY, copy);
  const Result r = Process{.program = copy}.run(
      {"bench", "throughput", kTinyTales, "--num-prompts", "1", "--json"});
  EXPECT_EQ(r.status, 0) << r.err;
#ifdef NDEBUG  // information for debuggers names the sources
  std::ifstream binary(copy, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(binary)), {});
  EXPECT_EQ(bytes.find(kSource + "/"), std::string::npos);
#endif
  std::filesystem::remove_all(folder);
}

TEST(Bench, PrintsTheDocumentedKeys) {
  const Result t = run({"bench", "throughput", kTinyTales, "--num-prompts", "4", "--json"});
  ASSERT_EQ(t.status, 0) << t.err;
  const Json throughput = Json::parse(t.out);
  EXPECT_THAT(keys(throughput),
              ::testing::UnorderedElementsAre(
                  "elapsed_time", "num_requests", "prompt_tokens", "output_tokens",
                  "requests_per_second", "output_tokens_per_second", "total_tokens_per_second",
                  "num_preemptions", "prefix_cache_hit_tokens", "steps", "device", "dtype"));
  std::ifstream file(kSource + "/bench/nanovllm_256.jsonl");
  int64_t prompt_tokens = 0, output_tokens = 0;
  for (int i = 0; i < 4; ++i) {
    std::string line;
    std::getline(file, line);
    const Json row = Json::parse(line);
    prompt_tokens += static_cast<int64_t>(row["prompt_token_ids"].size());
    output_tokens += row["sampling_params"]["max_tokens"].get<int64_t>();
  }
  EXPECT_EQ(throughput["prompt_tokens"], prompt_tokens);
  EXPECT_EQ(throughput["output_tokens"], output_tokens);

  const Result l = run({"bench", "latency", kTinyTales, "--batch-size", "2", "--input-len", "8",
                        "--output-len", "4", "--num-iters", "1", "--json"});
  ASSERT_EQ(l.status, 0) << l.err;
  EXPECT_THAT(keys(Json::parse(l.out)),
              ::testing::UnorderedElementsAre(
                  "batch_size", "input_len", "output_len", "prefill_s", "prefill_s_min",
                  "prefill_s_max", "decode_ms_per_step", "decode_ms_per_step_min",
                  "decode_ms_per_step_max", "prefill_tokens_per_second", "output_tokens_per_second",
                  "total_s", "total_s_min", "total_s_max"));
  expect_refused({"bench", "latency", kTinyTales, "--input-len", "2000", "--output-len", "100"},
                 "2048");
}

std::vector<std::string> latency(const std::vector<std::string>& more) {
  std::vector<std::string> args = {"bench", "latency", kTinyTales, "--num-iters", "2"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

TEST(Bench, LatencyOfListsIsALineForEachCombination) {
  const std::vector<std::string> sizes = {"--batch-size", "1,2",          "--input-len",
                                          "3,40",         "--output-len", "1,4"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = latency(sizes);
    args.insert(args.end(), more.begin(), more.end());
    const Result r = run(args);
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_EQ(r.err, "");
    return r.out;
  };
  const std::vector<Json> json = lines(with({"--json"}));
  ASSERT_EQ(json.size(), 8u);
  EXPECT_EQ(json[1]["batch_size"], 1);
  EXPECT_EQ(json[1]["input_len"], 3);
  EXPECT_EQ(json[1]["output_len"], 4);
  EXPECT_EQ(json[6]["decode_ms_per_step"], 0);  // there is no later step
  EXPECT_EQ(json[6]["batch_size"], 2);
  EXPECT_EQ(json[6]["input_len"], 40);

  const auto split = [](const std::string& text) {
    std::vector<std::string> rows;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) rows.push_back(line);
    return rows;
  };
  const std::vector<std::string> table = split(with({}));
  ASSERT_EQ(table.size(), 2u + 8);
  for (const std::string& row : table) EXPECT_LE(row.size(), 80u) << row;
  EXPECT_THAT(table.back(),
              ::testing::MatchesRegex(" +2 +40 +4  [0-9.]+ \\([0-9.]+-[0-9.]+\\) .*"));
  const std::vector<std::string> csv = split(with({"--format", "csv"}));
  ASSERT_EQ(csv.size(), 1u + 8);
  for (const std::string& row : csv) EXPECT_EQ(std::ranges::count(row, ','), 13) << row;
  EXPECT_THAT(with({"--format", "markdown"}),
              HasSubstr("\n|---|---|---|---|---|---|---|---|\n| 1 | 3 |"));
}

TEST(Bench, WrongListsAreRefused) {
  expect_refused(latency({"--batch-size", "1,,2"}), "--batch-size: '' is not a whole number");
  expect_refused(latency({"--batch-size", "1,"}), "--batch-size: '' is not a whole number");
  expect_refused(latency({"--batch-size", ""}), "--batch-size: '' is not a whole number");
  expect_refused(latency({"--input-len", "8,x"}), "--input-len: 'x' is not a whole number");
  expect_refused(latency({"--output-len", "4,0"}), "--output-len is 0; it must be at least 1");
  expect_refused(latency({"--input-len", "8,2048"}), "--input-len 2048 and --output-len 128");
  expect_refused(latency({"--json", "--format", "csv"}), "excludes");
  expect_refused({"bench", "throughput", kTinyTales, "--num-prompts", ""}, "'' is not a whole");
}

TEST(Bench, SequencesThatWouldHaveToWaitAreRefused) {
  const auto two = [](const std::vector<std::string>& more) {
    std::vector<std::string> args =
        latency({"--batch-size", "2", "--input-len", "64", "--output-len", "8", "--json"});
    args.insert(args.end(), more.begin(), more.end());
    return args;
  };
  expect_refused(two({"--max-num-seqs", "1"}),
                 "--batch-size is 2, and at most 1 may run at the same time; raise --max-num-seqs");
  expect_refused(two({"--num-gpu-blocks-override", "2"}),
                 "2 sequences of 72 tokens need 4 KV-cache blocks, and there are 2; raise "
                 "--num-gpu-blocks-override");
  expect_refused(two({"--kv-cache-memory-bytes", "800K"}), "raise --kv-cache-memory-bytes");
}

}  // namespace
}  // namespace nanovllm::testing
