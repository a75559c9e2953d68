#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "binary.h"

namespace nanovllm::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::vector<std::vector<std::string>> kCommands = {{},
                                                         {"generate"},
                                                         {"chat"},
                                                         {"tokenize"},
                                                         {"detokenize"},
                                                         {"render"},
                                                         {"info"},
                                                         {"bench"},
                                                         {"bench", "throughput"},
                                                         {"bench", "latency"}};

std::vector<std::string> with(std::vector<std::string> first,
                              const std::vector<std::string>& rest) {
  first.insert(first.end(), rest.begin(), rest.end());
  return first;
}

TEST(Help, HasExamplesAndTheExitStatusIn80Columns) {
  for (const std::vector<std::string>& command : kCommands) {
    const Result r = run(with(command, {"--help"}));
    EXPECT_EQ(r.status, 0);
    EXPECT_THAT(r.out, HasSubstr("Examples:\n  "));
    EXPECT_THAT(r.out, HasSubstr("Exit status: 0 "));
    // The help names values by their meaning, not by CLI11's types.
    EXPECT_THAT(r.out, Not(HasSubstr(" INT")));
    EXPECT_THAT(r.out, Not(HasSubstr(" FLOAT")));
    std::istringstream text(r.out);
    for (std::string line; std::getline(text, line);) EXPECT_LE(line.size(), 80u) << line;
    EXPECT_EQ(run(with({"help"}, command)).out, r.out);
  }
}

TEST(Help, ShowsVersionAndIsAnErrorOnAFullDisk) {
  const std::string version = run({"--version"}).out;
  EXPECT_THAT(version, ::testing::MatchesRegex("nanovllm [0-9.]+\n"));
  for (const char* word : {"version", "-v", "-V"}) EXPECT_EQ(run({word}).out, version);
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  for (const char* word : {"--help", "--version", "help", "version"}) {
    const Result r = Process{.stdout_path = "/dev/full"}.run({word});
    EXPECT_EQ(r.status, 1);
    EXPECT_EQ(r.err, "error: cannot write to stdout: No space left on device\n");
  }
}

TEST(Help, ChatOffersWhatAConversationCanUse) {
  const std::string generate = run({"generate", "--help"}).out, chat = run({"chat", "--help"}).out;
  EXPECT_THAT(generate, HasSubstr("generate (default: 64)"));
  EXPECT_THAT(chat, HasSubstr("tokens to generate\n"));
  for (const char* option : {"  --n ", "  --logprobs ", "  --prompt-logprobs "}) {
    EXPECT_THAT(generate, HasSubstr(option));
    EXPECT_THAT(chat, Not(HasSubstr(option)));
  }
  expect_refused({"chat", kTinyTales, "--n", "2"}, "--n");
}

// The server listens before it loads the model, and says so; here it says only what is wrong.
TEST(Arguments, OfTheServerAreCheckedBeforeItListens) {
  expect_refused({"serve", kTinyTales, "--port", "0", "--max-num-seqs", "0"}, "max_num_seqs is 0");
  expect_refused({"serve", kTinyTales, "--port", "0", "--device", "gpu"},
                 "device is 'gpu'; it must be one of auto, cpu, cuda\n");
}

TEST(Arguments, MisspelledNamesGetASuggestion) {
  expect_refused({"generat"}, "'generat' is not a command; did you mean 'generate'?");
  expect_refused({"bench", "latncy"}, "not a command of bench; did you mean 'latency'?");
  expect_refused({"help", "chta"}, "did you mean 'chat'?");
  expect_refused({"generate", kTinyTales, "--temprature", "1"}, "did you mean '--temperature'?");
  expect_refused({"generate", kTinyTales, "--max_token=5"}, "did you mean '--max-tokens'?");
  expect_refused({"generate", kTinyTales, "-temperature", "1"}, "did you mean '--temperature'?");
  expect_refused({"generate", kTinyTales, "-p", "hi", "--trace", "f.json", "--output", "f.json"},
                 "--trace and --output name the same file");
  // An error beside a short option is not about the short option.
  expect_refused({"generate", kTinyTales, "-p", "hi", "-n", "1.5"}, "'1.5' is not a whole number");
  expect_refused({"generate", kTinyTales, "-p", "hi", "-n", "3", "--temprature", "0"},
                 "did you mean '--temperature'?");
  expect_refused({"info", kTinyTales, "--device", "cdua"}, "did you mean 'cuda'?");
  expect_refused({"bench", "latency", kTinyTales, "--format", "cvs"}, "did you mean 'csv'?");
  expect_refused({"generate", kTinyTales, "--verbose"},
                 "'--verbose' is not an option of nanovllm generate (see");
  expect_refused({"fly"}, "'fly' is not a command (see");
}

TEST(Arguments, MissingAndExcessOnesAreNamed) {
  expect_refused({}, "nanovllm needs a command: generate, chat, ");
  expect_refused({"bench"}, "nanovllm bench needs a command: throughput, latency");
  expect_refused({"--json"}, "'--json' is not an option of nanovllm ");
  expect_refused({"info"}, "MODEL is required (see 'nanovllm info --help')");
  expect_refused({"info", ""}, "MODEL: the name is empty");
  expect_refused({"bench", "throughput", kTinyTales, "--trace", ""}, "--trace: the name is empty");
  expect_refused({"info", kTinyTales, "--dtype"}, "--dtype needs a value");
  expect_refused({"info", kTinyTales, "again"}, "'again' is one argument too many");
  expect_refused({"bench", "throughput", kTinyTales, "--dataset", ""}, "--dataset: the name is");
}

// An empty text is not 0, and a number that is too large is not the largest one.
TEST(Arguments, NumbersAreReadExactly) {
  const std::vector<std::string> info = {"info", kTinyTales};
  expect_refused(with(info, {"--seed", ""}), "--seed: '' is not a whole number");
  expect_refused(with(info, {"--seed", "1 "}), "--seed: '1 ' is not a whole number");
  expect_refused(with(info, {"--seed", "0x10"}), "'0x10' is not a whole number");
  expect_refused(with(info, {"--seed", "1.5"}), "'1.5' is not a whole number");
  expect_refused(with(info, {"--seed", "12345678901234567890123"}), "is out of range; it must be");
  expect_refused(with(info, {"--threads", "-1"}), "threads is -1; it must be from 0 to 4096");
  const char* real = "--gpu-memory-utilization";
  expect_refused(with(info, {real, ""}), "'' is not a number");
  expect_refused(with(info, {real, "half"}), "'half' is not a number");
  expect_refused(with(info, {real, "nan"}), "'nan' is not a number");
  expect_refused(with(info, {real, "inf"}), "'inf' is not a number");
  expect_refused(with(info, {real, "1e999"}), "1e999 is out of range; it must be");
  expect_refused(with(info, {real, "0"}), "gpu_memory_utilization is 0; it must be above 0");
}

TEST(Arguments, AnEmptyValueAfterAnEqualsSignIsEmpty) {
  expect_refused({"info", kTinyTales, "--dtype=", "--json"}, "dtype is ''; it must be one of");
  expect_refused({"generate", kTinyTales, "-p", "a", "--stop=", "--json"},
                 "stop contains an empty text");
  expect_refused({"serve", kTinyTales, "--api-key=", "--enforce-eager"},
                 "an API key must be printable ASCII without spaces, and not empty");
  const Result r = run({"generate", kTinyTales, "--prompt=", "--json"});
  EXPECT_EQ(r.status, 2);
  EXPECT_THAT(lines(r.out).at(0)["error"].get<std::string>(), HasSubstr("empty"));
  EXPECT_EQ(run({"info", kTinyTales, "--json="}).status, 0);  // a flag
}

TEST(Arguments, OnlyNamesOfOptionsHaveOtherSpellings) {
  const auto prompt = [](const std::vector<std::string>& words) {
    const Result r = run(with({"generate", kTinyTales, "-n", "1", "-tp", "1", "-tp=1"}, words));
    EXPECT_EQ(r.status, 0) << r.err;
    return r.out.substr(0, r.out.find("\nCompletion"));
  };
  EXPECT_EQ(prompt({"-p", "-tp"}), "\nPrompt: '-tp'");
  EXPECT_EQ(prompt({"--prompt=-tp"}), "\nPrompt: '-tp'");
  EXPECT_EQ(prompt({"--prompt", "--a_b=c"}), "\nPrompt: '--a_b=c'");
  const std::vector<std::string> serve = {"serve",    "--served_model_name", "a", "b", "--model",
                                          kTinyTales, "--api_key=_k"};
  expect_refused(with(serve, {"--api_key_file", "--my_file"}), "--my_file: No such file");
  expect_refused(with(serve, {"--max_num_seqs", "0"}), "max_num_seqs is 0");
  expect_refused(with(serve, {"--max_num_seq", "0"}), "did you mean '--max-num-seqs'?");
}

constexpr const char* kNoEffect = "info: these options of vLLM have no effect here: ";

/// What `info --json` prints, apart from the memory that is free just now.
Json report_of(const Result& info) {
  EXPECT_EQ(info.status, 0) << info.err;
  Json report = info.status == 0 ? Json::parse(info.out) : Json::object();
  report.erase("memory_free_bytes");
  return report;
}

TEST(VllmOptions, WithoutAnEffectAreNamedInOneLine) {
  const std::vector<std::string> info = {"info", kTinyTales, "--device", "cpu", "--json"};
  const Json plain = report_of(run(info));
  const auto note = [&](const std::vector<std::string>& options) {
    const Result r = run(with(info, options));
    EXPECT_EQ(report_of(r), plain);
    return r.err;
  };
  EXPECT_EQ(note({"--swap-space", "4", "--enable_expert_parallel", "--swap_space=8"}),
            kNoEffect + std::string("--swap-space, --enable-expert-parallel\n"));
  for (const std::vector<std::string>& level : {std::vector<std::string>{"-O3"},
                                                {"-O", "3"},
                                                {"-O0"},
                                                {"-O=3"},
                                                {"--optimization-level=2"}})
    EXPECT_EQ(note(level), kNoEffect + std::string("--optimization-level\n"));
  for (const std::vector<std::string>& config :
       {std::vector<std::string>{"--compilation-config", "3"},
        {"-cc", R"({"mode": 3})"},
        {"-cc.mode=3", "--compilation_config.pass_config.fuse_norm_quant", "true"},
        {"-O.mode", "3"},
        {"--compilation-config.cudagraph_capture_sizes+", "1,2"}})
    EXPECT_EQ(note(config), kNoEffect + std::string("--compilation-config\n"));
  EXPECT_EQ(note({"--no-enable-chunked-prefill"}),
            kNoEffect + std::string("--enable-chunked-prefill\n"));
  EXPECT_EQ(note({"--disable-chunked-prefill", "--no-enable-lora"}),
            kNoEffect + std::string("--enable-chunked-prefill, --enable-lora\n"));
  EXPECT_EQ(note({"--cudagraph-capture-sizes", "1", "2", "4"}),
            kNoEffect + std::string("--cudagraph-capture-sizes\n"));
  EXPECT_EQ(note({"--tokenizer", kTinyTales, "-pp", "1"}),
            kNoEffect + std::string("--tokenizer, --pipeline-parallel-size\n"));
}

TEST(VllmOptions, ThatAskForMoreAreRefusedWithTheReason) {
  expect_refused({"generate", kTinyTales, "-p", "a", "--enable-lora"},
                 "--enable-lora is not supported: adapters, such as LoRA's, are not supported\n");
  expect_refused({"info", kTinyTales, "-pp", "2"}, "--pipeline-parallel-size 2 is not supported");
  expect_refused({"info", kTinyTales, "--tokenizer", "org/other"},
                 "--tokenizer org/other is not supported: the tokenizer is the one in the model's");
  expect_refused({"info", kTinyTales, "--distributed-executor-backend", "ray"},
                 "--distributed-executor-backend ray is not supported");
  expect_refused({"bench", "throughput", kTinyTales, "--dataset-name", "sharegpt"},
                 "--dataset-name sharegpt is not supported: use --dataset FILE");
  expect_refused({"info", kTinyTales, "--kv-cache-dtype", "fp8_e5m2"},
                 "kv_cache_dtype is 'fp8_e5m2'; it must be one of auto, fp8");
  expect_refused({"info", kTinyTales, "--revision", "v2"},
                 "is not an id of the hub, so it has no --revision 'v2'");
  expect_refused({"generate", kTinyTales, "-p", "a", "--hf-overrides.num_hidden_layers", "4"},
                 "--hf-overrides: \"num_hidden_layers\" cannot be overridden");
  expect_refused({"info", kTinyTales, "--swap-space"}, "--swap-space needs a value");
  expect_refused({"info", kTinyTales, "--hf-overrides..x", "4"}, "'--hf-overrides..x' must have a");
  expect_refused({"bench", "serve", "--host", "localhost"},
                 "--host localhost is not supported: use");
  expect_refused({"bench", "serve", "--save-result"}, "--save-result is not supported: use --json");
  // Of the server, and of no other command.
  expect_refused({"serve", kTinyTales, "--ssl-keyfile", "k"}, "--ssl-keyfile k is not supported");
  expect_refused({"generate", kTinyTales, "--ssl-keyfile", "k"}, "is not an option of nanovllm");
}

TEST(VllmOptions, OfTheEngineHaveTheirUsualEffect) {
  const auto info = [&](const std::vector<std::string>& options) {
    const Result r = run(with({"info", kTinyTales, "--device", "cpu", "--json"}, options));
    EXPECT_EQ(r.err, "");
    return report_of(r);
  };
  EXPECT_EQ(info({"--max-model-len", "1k", "--revision", "main"})["max_model_len"], 1000);
  EXPECT_EQ(info({"--max-model-len", "auto"})["max_model_len"], 2048);
  EXPECT_EQ(info({"--dtype", "half"})["dtype"], "float16");
  EXPECT_EQ(info({"--dtype=float"})["dtype"], "float32");
  EXPECT_EQ(info({"--kv-cache-dtype", "fp8_e4m3"})["kv_cache_dtype"], "float8_e4m3fn");
  // The last of two opposites counts.
  EXPECT_EQ(info({"--enforce-eager", "--no-enforce-eager", "--enable-prefix-caching",
                  "--disable-prefix-caching", "--async-scheduling"}),
            info({"--no-enable-prefix-caching"}));
  const Json longer =
      info({"--hf-overrides.rope_parameters.rope_type", "yarn",
            "--hf-overrides.rope_parameters.factor=4.0", "--hf_overrides.max_position_embeddings",
            "8192", "--hf-overrides.rope_parameters.original_max_position_embeddings", "2048"});
  EXPECT_EQ(longer["max_model_len"], 8192);
  EXPECT_EQ(report_of(run({"info", "--json", "--model", kTinyTales, "--device=cpu"})), info({}));
}

TEST(Arguments, FlagsTakeNoValue) {
  expect_refused({"info", kTinyTales, "--json=maybe"}, "--json takes no value; 'maybe' was given");
  expect_refused({"info", kTinyTales, "--enforce-eager=maybe"},
                 "--enforce-eager takes no value; 'maybe' was given");
}

TEST(Arguments, TheLastOneOfAnOptionCounts) {
  expect_refused({"generate", kTinyTales, "--prompts-file", "/nowhere/1", "--prompts-file",
                  "/nowhere/2", "--system", "a", "--system", "b"},
                 "/nowhere/2: No such file");
  expect_refused(
      {"generate", kTinyTales, "-p", "a", "--output", "/nowhere/1", "--output", "/nowhere/2"},
      "/nowhere/2: No such file");
  expect_refused(
      {"bench", "throughput", kTinyTales, "--dataset", "/nowhere/1", "--dataset", "/nowhere/2"},
      "/nowhere/2: No such file");
  const Result r = run({"info", kTinyTales, "-c", "128", "--max-model-len", "256", "--json"});
  EXPECT_EQ(Json::parse(r.out)["max_model_len"], 256) << r.err;
}

TEST(Arguments, ShortOptionsAreThoseOfLlamaCpp) {
  const Result r = run({"generate", kTinyTales, "-p", "Once", "-n", "3", "-t", "1", "-c", "64",
                        "--ignore-eos", "--json"});
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(lines(r.out).at(0)["token_ids"].size(), 3u);
}

// One rule and one message, wherever a text comes from.
TEST(Utf8, OtherBytesAreRefusedWithTheirPosition) {
  const std::string bad = "Caf\xe9 noir", error = "byte 4 (0xe9) is not valid UTF-8";
  expect_refused({"generate", kTinyTales, "-p", bad}, "--prompt: " + error);
  expect_refused({"generate", kTinyTales, "-p", "a", "--chat", "--system", bad},
                 "--system: " + error);
  expect_refused({"generate", kTinyTales, "-p", "a", "--stop", bad}, "--stop: " + error);
  const Result text = run({"tokenize", kTinyTales}, bad + "\na\n");
  EXPECT_EQ(text.status, 2);
  EXPECT_EQ(text.out, "64\n");
  EXPECT_EQ(text.err, "error: line 1: " + error + "\n");
  const Result chat = run({"chat", kTinyTales, "--max-tokens", "1"}, bad + "\n");
  EXPECT_EQ(chat.status, 2);
  EXPECT_EQ(chat.err, "error: the message: " + error + "\n");
  const std::string json = "byte 14 (0xe9) is not valid UTF-8";
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"tokenize", kTinyTales, "--json"},
        {"render", kTinyTales, "--json"},
        {"generate", kTinyTales, "--prompts-file", "-", "--json"}}) {
    const Result r = run(command, "{\"text\": \"Caf\xe9 noir\"}\n");
    EXPECT_THAT(r.out, HasSubstr(json)) << r.err;
  }
}

TEST(Signals, TermIsExitStatus143) {
  const auto terminated = [](const std::vector<std::string>& args, const std::string& input) {
    return Process{.input = input,
                   .keep_stdin_open = true,
                   .signal_when = [](const std::string& out) { return out.empty() ? 0 : SIGTERM; }}
        .run(args);
  };
  const std::string messages = R"({"messages": [{"role": "user", "content": "Hi"}]})";
  for (const Result& r :
       {terminated({"tokenize", kTinyTales}, "a\n"), terminated({"detokenize", kTinyTales}, "64\n"),
        terminated({"render", kTinyTales}, messages + "\n"),
        terminated({"bench", "latency", kTinyTales, "--num-iters", "9999"}, "")}) {
    EXPECT_EQ(r.status, 143) << r.out;
    EXPECT_EQ(r.err, "");
  }
}

}  // namespace
}  // namespace nanovllm::testing
