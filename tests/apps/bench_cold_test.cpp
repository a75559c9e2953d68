#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "binary.h"
#include "pty.h"
#include "tests/children.h"

namespace nanovllm::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

std::vector<std::string> cold(const std::vector<std::string>& more) {
  std::vector<std::string> args = {"bench", "cold", kTinyTales};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

/// A run that takes little time; later options replace these.
std::vector<std::string> small(const std::vector<std::string>& more) {
  std::vector<std::string> args = cold({"--num-prompts", "4", "--max-len", "8", "--rounds", "2"});
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

TEST(BenchCold, PrintsTheDocumentedKeys) {
  const Result r = run(small({"--max-len", "120", "--request-rate", "500", "--json"}));
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(r.err, "");
  const Json both = Json::parse(r.out);
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(both[0]["traffic"], "at-once");
  EXPECT_TRUE(both[0]["request_rate"].is_null());
  EXPECT_EQ(both[1]["traffic"], "arriving");
  EXPECT_EQ(both[1]["request_rate"], 500);
  for (const Json& one : both) {
    EXPECT_THAT(keys(one), ElementsAre("traffic", "request_rate", "num_requests", "shortest_len",
                                       "longest_len", "device", "dtype", "seconds_to_ready",
                                       "seconds_to_first_token", "rounds", "first_to_last"));
    EXPECT_EQ(one["num_requests"], 4);
    EXPECT_EQ(one["shortest_len"], 100);
    EXPECT_EQ(one["longest_len"], 120);
    EXPECT_GE(one["seconds_to_ready"], 0);
    EXPECT_GT(one["seconds_to_first_token"], one["seconds_to_ready"]);
    ASSERT_EQ(one["rounds"].size(), 2u);
    for (const Json& round : one["rounds"]) {
      EXPECT_THAT(keys(round),
                  ElementsAre("elapsed_time", "output_tokens", "output_tokens_per_second", "steps",
                              "longest_step_ms", "slow_steps", "slow_steps_ms", "ttft_p50_ms",
                              "ttft_p99_ms"));
      EXPECT_EQ(round["output_tokens"], both[0]["rounds"][0]["output_tokens"]);
      EXPECT_GE(round["output_tokens"], 400);
      EXPECT_LE(round["output_tokens"], 480);
      EXPECT_GE(round["steps"], 100);
      EXPECT_GE(round["ttft_p99_ms"], round["ttft_p50_ms"]);
      EXPECT_GT(round["ttft_p50_ms"], 0);
    }
    EXPECT_THAT(
        keys(one["first_to_last"]),
        ElementsAre("output_tokens_per_second", "longest_step_ms", "ttft_p50_ms", "ttft_p99_ms"));
  }
}

TEST(BenchCold, TableHasALineForEachRound) {
  const Result r = run(small({}));
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(r.err, "");
  std::vector<std::string> rows;
  std::istringstream stream(r.out);
  for (std::string line; std::getline(stream, line);) rows.push_back(line);
  ASSERT_EQ(rows.size(), 7u + 1 + 7);
  for (const std::string& row : rows) EXPECT_LE(row.size(), 80u) << row;
  EXPECT_EQ(rows[0], "all at once: 4 requests of 8 to 8 tokens in and out");
  EXPECT_EQ(rows[8], "arriving at 40 a second: 4 requests of 8 to 8 tokens in and out");
  for (const size_t table : {0, 8}) {
    EXPECT_THAT(rows[table + 1],
                MatchesRegex("[a-z0-9]+ on [a-z]+; ready [0-9.]+ s after the start, "
                             "first token after [0-9.]+ s"));
    EXPECT_THAT(rows[table + 4], MatchesRegex("round 1( +[0-9.]+){6}"));
    EXPECT_THAT(rows[table + 5], MatchesRegex("round 2( +[0-9.]+){6}"));
    EXPECT_THAT(rows[table + 6], MatchesRegex("first / last( +[0-9.]+){4}"));
  }
}

// Also in ranks, and with requests that wait because others run.
TEST(BenchCold, OptionsOfTheEngineReachTheNewProcesses) {
  const Result r = run(small(
      {"--device", "cpu", "--dtype", "float32", "-tp", "2", "--max-num-seqs", "1", "--json"}));
  ASSERT_EQ(r.status, 0) << r.err;
  for (const Json& one : Json::parse(r.out)) {
    EXPECT_EQ(one["dtype"], "float32");
    EXPECT_EQ(one["rounds"][0]["steps"], 4 * 8);
  }
}

TEST(BenchCold, LengthsFitInTheContext) {
  const Result r = run(cold({"--num-prompts", "1", "--rounds", "1", "--traffic", "at-once",
                             "--max-model-len", "21", "--json"}));
  ASSERT_EQ(r.status, 0) << r.err;
  const Json one = Json::parse(r.out);
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0]["longest_len"], 10);
  EXPECT_EQ(one[0]["rounds"][0]["output_tokens"], 10);
}

TEST(BenchCold, WrongOptionsAreRefused) {
  expect_refused(small({"--rounds", "0"}), "--rounds is 0; it must be from 1 to 1000");
  expect_refused(small({"--num-prompts", "0"}), "--num-prompts is 0");
  expect_refused(small({"--num-prompts", "9223372036854775807"}), "must be from 1 to 65536");
  expect_refused(small({"--max-len", "0"}), "--max-len is 0");
  expect_refused(small({"--request-rate", "-1"}), "--request-rate is -1; it must be more than 0");
  expect_refused(small({"--request-rate", "0"}), "--request-rate is 0");
  expect_refused(small({"--request-rate", "nan"}), "'nan' is not a number");
  expect_refused(small({"--traffic", "arrivin"}), "did you mean 'arriving'?");
  expect_refused(small({"--trace", "trace.json"}), "--trace needs --traffic");
  // The new process refuses these, and prints the error once.
  expect_refused({"bench", "cold", "no/such/folder"}, "no/such/folder: no such folder");
  expect_refused(small({"--max-num-seqs", "0"}), "max_num_seqs is 0");
}

TEST(BenchCold, SignalsEndBothProcesses) {
  for (const int number : {SIGINT, SIGTERM, SIGKILL}) {
    const Process process{.when_started = [&](pid_t pid) {
      const std::vector<pid_t> children = wait_for_children(pid, 1);
      ::kill(pid, number);
      expect_gone(children);
    }};
    const Result r = process.run(cold({"--json"}));
    EXPECT_EQ(r.status, number == SIGKILL ? 1000 + SIGKILL : 128 + number);
    EXPECT_EQ(r.out + r.err, "");
  }
}

TEST(BenchCold, SignalIsNoticedBetweenArrivals) {
  const Process process{.when_started = [&](pid_t pid) {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    ::kill(pid, SIGINT);
  }};
  EXPECT_EQ(process.run(small({"--traffic", "arriving", "--request-rate", "1e-9"})).status, 130);
}

TEST(BenchCold, EndOfTheNewProcessIsAnError) {
  const Process process{.when_started = [&](pid_t pid) {
    for (const pid_t child : wait_for_children(pid, 1)) ::kill(child, SIGKILL);
  }};
  const Result r = process.run(cold({}));
  EXPECT_EQ(r.status, 1);
  EXPECT_EQ(r.out, "");
  EXPECT_EQ(r.num_error_lines(), 1) << r.err;
  EXPECT_THAT(r.err, HasSubstr("the process of the traffic at-once was ended by signal 9"));
}

TEST(BenchCold, CtrlCInATerminalLeavesALineForThePrompt) {
  Terminal terminal(cold({}), {});
  terminal.read_until("Measuring at-once");
  terminal.type(kCtrlC);
  EXPECT_EQ(terminal.wait(), 130);
  EXPECT_THAT(terminal.unread(), HasSubstr("stopping after this step"));
}

}  // namespace
}  // namespace nanovllm::testing
