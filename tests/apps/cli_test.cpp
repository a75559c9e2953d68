#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "binary.h"
#include "tests/gpus.h"

namespace nanovllm::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Generate, PrintsPromptAndCompletion) {
  const Result r = run({"generate", kTinyTales, "--prompt", "Once upon a time", "--prompt",
                        "The king's", "--temperature", "0", "--max-tokens", "3"});
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(r.err, "");
  EXPECT_THAT(r.out, HasSubstr("Prompt: 'Once upon a time'\nCompletion: ' there was a'\n"));
  EXPECT_THAT(r.out, HasSubstr("Prompt: \"The king's\"\n"));
}

TEST(Generate, ChatRendersTheTemplate) {
  const Result r =
      run({"generate", kTinyTales, "--chat", "--system", "Be short.", "--no-thinking", "--prompt",
           "introduce yourself", "--temperature", "0", "--max-tokens", "5", "--json"});
  ASSERT_EQ(r.status, 0) << r.err;
  const Result ids =
      run({"generate", kTinyTales, "--prompts-file", "-", "--temperature", "0", "--max-tokens", "5",
           "--json"},
          R"({"prompt": "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nintroduce )"
          R"(yourself<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"})");
  EXPECT_EQ(lines(r.out)[0]["prompt_token_ids"], lines(ids.out)[0]["prompt_token_ids"]);
  EXPECT_EQ(lines(r.out)[0]["token_ids"], lines(ids.out)[0]["token_ids"]);
}

TEST(Generate, MessagesMayHaveParts) {
  const Result r =
      run({"generate", kTinyTales, "--prompts-file", "-", "--json", "--max-tokens", "1"},
          R"({"messages": [{"role": "user", "content": "Once\nupon"}]}
{"messages": [{"role": "user", "content": [{"type": "text", "text": "Once"}, {"type": "text", "text": "upon"}]}]}
{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}
)");
  EXPECT_EQ(r.status, 2) << r.err;
  const std::vector<Json> out = lines(r.out);
  ASSERT_EQ(out.size(), 3);
  EXPECT_EQ(out[1]["prompt_token_ids"], out[0]["prompt_token_ids"]);
  EXPECT_THAT(out[2]["error"].get<std::string>(), HasSubstr("image_url"));
}

TEST(Generate, JsonLinesHaveTheDocumentedFieldsInInputOrder) {
  const Result r =
      run({"generate", kTinyTales, "--prompts-file", "-", "--json", "--temperature", "0"},
          R"({"prompt": "The sky was", "sampling_params": {"max_tokens": 30}}

{"prompt_token_ids": [327, 1874, 308], "sampling_params": {"max_tokens": 2, "logprobs": 2, "prompt_logprobs": 1}}
{"messages": [{"role": "user", "content": "hello"}], "enable_thinking": false, "sampling_params": {"n": 2, "max_tokens": 3}}
)");
  ASSERT_EQ(r.status, 0) << r.err;
  const std::vector<Json> out = lines(r.out);
  ASSERT_EQ(out.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(out[i]["index"], i);
  EXPECT_THAT(keys(out[0]), ::testing::UnorderedElementsAre(
                                "index", "prompt_token_ids", "token_ids", "text", "finish_reason",
                                "stop_reason", "num_cached_tokens", "outputs", "usage"));
  EXPECT_EQ(out[0]["usage"],
            Json({{"prompt_tokens", 3}, {"completion_tokens", 30}, {"cached_tokens", 0}}));
  EXPECT_EQ(out[0]["prompt_token_ids"], Json({327, 1874, 308}));
  EXPECT_EQ(out[0]["finish_reason"], "length");
  EXPECT_EQ(out[0]["stop_reason"], Json());
  EXPECT_EQ(out[0]["token_ids"].size(), 30u);
  ASSERT_EQ(out[1]["logprobs"].size(), 2u);
  ASSERT_EQ(out[1]["logprobs"][0].size(), 3u);
  EXPECT_THAT(keys(out[1]["logprobs"][0][0]), ::testing::ElementsAre("id", "logprob", "rank"));
  EXPECT_EQ(out[1]["logprobs"][0][0]["id"], out[1]["token_ids"][0]);
  ASSERT_EQ(out[1]["prompt_logprobs"].size(), 3u);
  EXPECT_EQ(out[1]["prompt_logprobs"][0], Json());
  EXPECT_EQ(out[1]["prompt_logprobs"][1][0]["id"], 1874);
  EXPECT_EQ(keys(out[2]), keys(out[0]));
  ASSERT_EQ(out[2]["outputs"].size(), 2u);
  for (const size_t line : {0, 2})  // one shape for one answer and for several
    for (const char* field : {"token_ids", "text", "finish_reason", "stop_reason"})
      EXPECT_EQ(out[line]["outputs"][0][field], out[line][field]);
  EXPECT_THAT(keys(out[2]["outputs"][1]),
              ::testing::UnorderedElementsAre("token_ids", "text", "finish_reason", "stop_reason"));
  EXPECT_EQ(out[2]["usage"]["completion_tokens"], 6);
}

TEST(Generate, BadLinesAreReportedAndTheOthersRun) {
  std::string deep = "{\"prompt\": " + std::string(100'000, '[') + "}";
  const Result r = run({"generate", kTinyTales, "--prompts-file", "-", "--json", "--max-tokens",
                        "2", "--ignore-eos"},
                       "{\"prompt\": \"a\"}\nnot json\n{\"prompt\": 5}\n{}\n[\"prompt\"]\n" + deep +
                           "\n{\"prompt\": \"a\", \"sampling_params\": {\"temperature\": -1}}\n"
                           "{\"prompt\": \"a\", \"sampling_params\": {\"top_q\": 1}}\n"
                           "{\"prompt\": \"a\", \"sampling_params\": {\"stop\": \"\"}}\n"
                           "{\"prompt\": \"a\", \"sampling_params\": {\"max_tokens\": 1e400}}\n"
                           "{\"prompt\": \"b\"}\n");
  EXPECT_EQ(r.status, 2);
  EXPECT_EQ(r.err, "error: 9 of 11 prompts refused\n");
  const std::vector<Json> out = lines(r.out);
  ASSERT_EQ(out.size(), 11u);
  EXPECT_EQ(out[0]["token_ids"].size(), 2u);
  EXPECT_EQ(out[10]["token_ids"].size(), 2u);
  const char* expected[] = {"",       "line 2", "line 3: prompt", "line 4", "line 5: must be",
                            "line 6", "-1",     "top_q",          "stop",   "line 10"};
  for (size_t i = 1; i < 10; ++i) {
    EXPECT_THAT(keys(out[i]), ::testing::ElementsAre("index", "error")) << i;
    EXPECT_THAT(out[i]["error"].get<std::string>(), HasSubstr(expected[i]));
    EXPECT_EQ(out[i]["index"], i);
  }
}

TEST(Generate, ErrorInAnyChoiceIsExitStatus2) {
  const std::vector<std::string> args = {"generate", kTinyTales,       "--dtype", "float32",
                                         "--json",   "--prompts-file", "-"};
  const Result r = run(args, kTwoOfFourFail + "{\"prompt\": \"The\"}\n");
  std::vector<std::string> reasons;
  const Json first = lines(r.out).at(0);
  for (const Json& choice : first["outputs"]) reasons.push_back(choice["finish_reason"].string());
  EXPECT_THAT(reasons, ::testing::ElementsAre("length", "length", "error", "error"));
  EXPECT_EQ(r.status, 2);
  EXPECT_EQ(r.err, "error: 1 of 2 prompts ended with an error\n");
}

TEST(Generate, NumbersAreDecimalAndSeedsMayBeNegative) {
  const std::vector<std::string> args = {"generate", kTinyTales,     "--prompt", "Once",
                                         "--json",   "--max-tokens", "010",      "--ignore-eos"};
  const auto answer = [&](const char* seed) {
    std::vector<std::string> all = args;
    all.insert(all.end(), {"--sample-seed", seed});
    return run(all).out;
  };
  const std::string out = answer("-5");
  EXPECT_EQ(lines(out).at(0)["token_ids"].size(), 10u);
  EXPECT_EQ(out, answer("18446744073709551611"));
}

TEST(Generate, TooLongPromptIsAnErrorLineWithTheNumbers) {
  std::string prompt = "hello";
  for (int i = 0; i < 3000; ++i) prompt += " hello";
  const Result r = run({"generate", kTinyTales, "--prompts-file", "-", "--json", "--max-tokens",
                        "2", "--ignore-eos"},
                       "{\"prompt\": \"" + prompt + "\"}\n{\"prompt\": \"a\"}\n");
  EXPECT_EQ(r.status, 2);
  const std::vector<Json> out = lines(r.out);
  ASSERT_EQ(out.size(), 2u);
  EXPECT_EQ(out[0]["finish_reason"], "error");
  EXPECT_THAT(out[0]["error"].get<std::string>(), HasSubstr("at most 2047"));
  EXPECT_EQ(out[1]["token_ids"].size(), 2u);
}

TEST(Generate, FolderWithoutTokenizerTakesIds) {
  const Result r = run({"generate", kLlama, "--prompts-file", "-", "--json", "--max-tokens", "2"},
                       "{\"prompt_token_ids\": [5, 6]}\n{\"prompt\": \"a\"}\n");
  EXPECT_EQ(r.status, 2);
  const std::vector<Json> out = lines(r.out);
  ASSERT_EQ(out.size(), 2u);
  EXPECT_EQ(out[0]["text"], "");
  EXPECT_GE(out[0]["token_ids"].size(), 1u);
  EXPECT_THAT(out[1]["error"].get<std::string>(), HasSubstr("tokenizer.json"));
}

TEST(Generate, RefusalsAreOneClearLine) {
  expect_refused({"generate", kTinyTales}, "--prompt");
  expect_refused({"generate", kTinyTales, "--prompt", "a", "--temprature", "1"}, "--temprature");
  expect_refused({"generate", kTinyTales, "--prompt", "a", "--max-tokens", "many"}, "--max-tokens");
  expect_refused({"generate", kTinyTales, "--prompt", "a", "--max-tokens", "0"}, "max_tokens is 0");
  expect_refused({"generate", kTinyTales, "--prompt", "a", "--temperature", "nan"}, "temperature");
  expect_refused({"generate", kTinyTales, "--prompt", "a", "--top-p", "0"}, "top_p");
  expect_refused({"generate", kTinyTales, "--prompt", "a", "--stop", ""}, "stop");
  expect_refused({"generate", kTinyTales, "--prompt", "a", "--presence-penalty", "3"},
                 "presence_penalty");
  expect_refused({"generate", kTinyTales, "--prompt", "a", "--temperature", "1e300"},
                 "temperature is 1e+300");
  expect_refused({"generate", kTinyTales, "--prompt", "a", "--top-p", "1e-20000"},
                 "1e-20000 is out of range");
  expect_refused({"generate", kTinyTales, "--prompt", "a", "--min-tokens", "9223372036854775807"},
                 "min_tokens is 9223372036854775807");
  expect_refused({"generate", kTinyTales, "--prompt", "a", "--max-tokens", "9223372036854775808"},
                 "--max-tokens");
  expect_refused({"generate", kTinyTales, "--prompt", "a", "--stop-token-id", "4294967296"},
                 "--stop-token-id");
  expect_refused({"generate", kTinyTales, "--prompt", "a", "--sample-seed", "18446744073709551616"},
                 "--sample-seed");
  expect_refused({"generate", kTinyTales, "--prompt", "a", "--top-k", "99999999999999999999"},
                 "99999999999999999999");
  expect_refused({"generate", kTinyTales, "--prompt", "a", "--block-size", "20"}, "multiple of 16");
  expect_refused({"generate", kTinyTales, "--prompt", "a", "--device", "tpu"}, "tpu");
  if (num_gpus() == 0)
    expect_refused({"generate", kTinyTales, "--prompt", "a", "--device", "cuda"}, "cuda");
  expect_refused({"generate", kTinyTales, "--prompt", "a", "--device", "cpu", "-tp", "5"},
                 "num_attention_heads of 4");
  expect_refused({"generate", kTinyTales, "--prompt", "a", "--dtype", "int4"}, "dtype");
  expect_refused({"generate", kTinyTales, "--prompt", "a", "--max-model-len", "4096"}, "2048");
  expect_refused({"generate", kTinyTales, "--prompt", "a", "--num-gpu-blocks-override", "2",
                  "--max-model-len", "512"},
                 "--num-gpu-blocks-override 8");
  expect_refused({"generate", kTinyTales, "--prompts-file", "/nowhere/prompts.jsonl"},
                 "/nowhere/prompts.jsonl");
  expect_refused({"generate", "/nowhere/model", "--prompt", "a"}, "/nowhere/model");
  expect_refused({"generate", "Qwen/Qwen3-0.6B", "--prompt", "a"}, "download");
  expect_refused({"generate", kSource + "/docs", "--prompt", "a"}, "config.json");
  expect_refused({"fly"}, "fly");
}

TEST(Generate, AFormIsReadBeforeTheModel) {
  const auto refuse = [](std::vector<std::string> more, const std::string& what) {
    std::vector<std::string> args = {"generate", "/nowhere/model", "--prompt", "a"};
    args.insert(args.end(), more.begin(), more.end());
    expect_refused(args, what);
  };
  refuse({"--json-schema", "/nowhere/schema"}, "--json-schema: /nowhere/schema");
  refuse({"--json-schema", kSource + "/README.md"}, "--json-schema: " + kSource + "/README.md");
  refuse({"--json-schema", "{"}, "--json-schema: not valid JSON");
  refuse({"--grammar", "/nowhere/grammar"}, "--grammar: /nowhere/grammar");
  refuse({"--regex", "a", "--choice", "b", "--choice", "c"}, "--regex and --choice");
  refuse({"--json-schema", "{}"}, "/nowhere/model");
}

TEST(Generate, InterruptKeepsWhatWasPrinted) {
  std::string input;
  for (int i = 0; i < 64; ++i)
    input += "{\"prompt\": \"a\", \"sampling_params\": {\"max_tokens\": " +
             std::to_string(i == 0 ? 1 : 2000) + ", \"ignore_eos\": true}}\n";
  for (const int signal : {SIGINT, SIGTERM}) {
    const Result r = Process{
        .input = input, .signal_when = [&](const std::string& out) {
          return out.find('\n') != std::string::npos ? signal : 0;
        }}.run({"generate", kTinyTales, "--prompts-file", "-", "--json"});
    EXPECT_EQ(r.status, 128 + signal);
    EXPECT_EQ(r.err, "");
    ASSERT_GE(lines(r.out).size(), 1u);
    EXPECT_EQ(lines(r.out)[0]["index"], 0);
    EXPECT_LT(lines(r.out).size(), 64u);
  }
}

TEST(Generate, BrokenPipeIsSilentAndFullDiskOneLine) {
  const std::vector<std::string> args = {"generate", kTinyTales,     "--prompt",
                                         "a",        "--max-tokens", "4"};
  const Result broken = Process{.close_stdout_early = true}.run(args);
  EXPECT_EQ(broken.status, 1);
  EXPECT_EQ(broken.err, "");
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  const Result full = Process{.stdout_path = "/dev/full"}.run(args);
  EXPECT_EQ(full.status, 1);
  EXPECT_EQ(full.num_error_lines(), 1) << full.err;
  EXPECT_THAT(full.err, HasSubstr("No space left"));
}

// A file with the name of the driver's library that is not a library, as in a broken installation.
TEST(Cli, BrokenDriverMeansTheCpuIsUsed) {
  if (std::filesystem::exists("/proc/driver/nvidia/version"))
    GTEST_SKIP() << "this machine has a driver";
  const std::string folder = ::testing::TempDir() + "no_driver_" + std::to_string(::getpid());
  std::filesystem::create_directory(folder);
  std::filesystem::remove(folder + "/libcuda.so.1");
  Dl_info libc;
  ASSERT_NE(::dladdr(reinterpret_cast<const void*>(&::puts), &libc), 0);
  std::filesystem::create_symlink(libc.dli_fname, folder + "/libcuda.so.1");
  const auto generate = [&](std::vector<std::string> more) {
    std::vector<std::string> args = {"generate", kTinyTales,     "--prompt",
                                     "Once",     "--max-tokens", "2"};
    args.insert(args.end(), more.begin(), more.end());
    return run_in_shell("LD_LIBRARY_PATH='" + folder + "' exec \"$@\"", args);
  };
  const Result one = generate({});
  EXPECT_EQ(one.status, 0) << one.err;
  EXPECT_NE(one.err.find("warning: running on the CPU: "), std::string::npos) << one.err;
  const Result two = generate({"-tp", "2"});
  EXPECT_EQ(two.status, 2) << two.err;
  EXPECT_NE(two.err.find("use --device cpu to run on the CPU"), std::string::npos) << two.err;
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace nanovllm::testing
