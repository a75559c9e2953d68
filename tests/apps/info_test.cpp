#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "binary.h"

namespace nanovllm::testing {
namespace {

using ::testing::HasSubstr;

namespace fs = std::filesystem;

TEST(Info, ShowsShapeMemoryAndKernels) {
  const Result r = run({"info", kTinyTales, "--device", "cpu", "--json"});
  ASSERT_EQ(r.status, 0) << r.err;
  const Json info = Json::parse(r.out);
  EXPECT_EQ(info["architecture"], "Qwen3ForCausalLM");
  EXPECT_EQ(info["max_model_len"], 2048);
  EXPECT_EQ(info["kv_bytes_per_token"], 2 * 6 * 2 * 128 * 2);
  EXPECT_EQ(info["device"], "cpu");
  // The file has a header and then each parameter in two bytes.
  const auto file_bytes = std::filesystem::file_size(kTinyTales + "/model.safetensors");
  EXPECT_LE(info["weight_bytes"].get<size_t>(), file_bytes);
  EXPECT_GE(info["weight_bytes"].get<size_t>(), file_bytes - 32768);
  EXPECT_GT(info["kv_cache_tokens"], 2048);
  EXPECT_EQ(info["would_run"], true);
  EXPECT_EQ(info["reasons"], Json::array());
  EXPECT_EQ(info["num_weight_files"], 1);
  EXPECT_EQ(info["weight_file_bytes"], file_bytes);
  EXPECT_EQ(info["tokenizer_vocab_size"], info["vocab_size"]);
  EXPECT_EQ(info["has_chat_template"], true);
  EXPECT_EQ(info["device_reason"], "--device cpu");
  EXPECT_EQ(info["kv_cache_bytes"].get<size_t>(),
            info["kv_cache_tokens"].get<size_t>() * info["kv_bytes_per_token"].get<size_t>());
  EXPECT_EQ(info["memory_needed_bytes"].get<size_t>(), info["kv_cache_bytes"].get<size_t>() +
                                                           info["weight_bytes"].get<size_t>() +
                                                           info["block_table_bytes"].get<size_t>());
  EXPECT_EQ(info["block_table_bytes"].get<size_t>(),
            info["max_num_seqs"].get<size_t>() * 4 *
                (info["max_model_len"].get<size_t>() / info["block_size"].get<size_t>()));
  EXPECT_GT(info["memory_total_bytes"], info["memory_needed_bytes"]);
  EXPECT_LE(info["kv_cache_kept_bytes"], 128 << 20);
  const Result text = run({"info", kTinyTales});
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_THAT(text.out, ::testing::EndsWith("\nwould run\n"));
  const Result fp8 = run({"info", kTinyTales, "--device", "cpu", "--kv-cache-dtype", "fp8",
                          "--kv-cache-memory-bytes", info["kv_cache_bytes"].dump(), "-c", "2048",
                          "--max-num-seqs", "2048", "--json"});
  ASSERT_EQ(fp8.status, 0) << fp8.err;
  const Json with_fp8 = Json::parse(fp8.out);
  EXPECT_EQ(with_fp8["kv_cache_dtype"], "float8_e4m3fn");
  EXPECT_EQ(with_fp8["kv_bytes_per_token"], 2 * 6 * 2 * (128 + 4));
  EXPECT_GT(with_fp8["kv_cache_tokens"].get<double>(), 1.9 * info["kv_cache_tokens"].get<double>());
}

/// A copy of tiny-tales in which `change` has changed a file.
template <class Change>
std::string changed_model(const char* file, const Change& change) {
  // Other tests of this file run at the same time, in other processes.
  const std::string test = ::testing::UnitTest::GetInstance()->current_test_info()->name();
  const fs::path folder =
      fs::path(::testing::TempDir()) / ("nanovllm_info_" + test + std::to_string(::getpid()));
  fs::remove_all(folder);
  fs::create_directory(folder);
  for (const auto& entry : fs::directory_iterator(kTinyTales))
    if (entry.path().filename() != file)
      fs::create_symlink(entry.path(), folder / entry.path().filename());
  change(folder);
  return folder;
}

std::string with_file(const char* file, const std::string& text) {
  return changed_model(file, [&](const fs::path& folder) { std::ofstream(folder / file) << text; });
}

std::string file_text(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

/// The last line of the text, the only line on stderr and the JSON say the same.
void expect_would_not_run(const std::vector<std::string>& args, const std::string& why) {
  std::vector<std::string> all = {"info"};
  all.insert(all.end(), args.begin(), args.end());
  const Result text = run(all);
  EXPECT_EQ(text.status, 2);
  EXPECT_THAT(text.out, HasSubstr("would not run, because "));
  EXPECT_THAT(text.out, HasSubstr(why));
  EXPECT_THAT(text.err, ::testing::StartsWith("error: "));
  EXPECT_THAT(text.err, HasSubstr(why));
  EXPECT_EQ(text.num_error_lines(), 1);
  all.emplace_back("--json");
  const Result r = run(all);
  EXPECT_EQ(r.status, 2);
  const Json json = Json::parse(r.out);
  EXPECT_EQ(json["would_run"], false);
  EXPECT_THAT(json["reasons"].at(0).get<std::string>(), HasSubstr(why));
}

TEST(Info, EndTokensAreThoseOfAllFiles) {
  const auto end_tokens = [](const std::string& model) {
    const Result r = run({"info", model, "--device", "cpu", "--json"});
    EXPECT_EQ(r.status, 0) << r.err;
    return Json::parse(r.out)["eos_token_ids"];
  };
  EXPECT_EQ(end_tokens(kTinyTales), Json({8168, 8166}));
  EXPECT_EQ(end_tokens(with_file("generation_config.json", R"({"eos_token_id": [5, 6]})")),
            Json({5, 6, 8168}));
  EXPECT_EQ(end_tokens(with_file("tokenizer_config.json", R"({"eos_token": "<|im_start|>"})")),
            Json({8168, 8166, 8167}));
  const Result text = run({"info", kTinyTales, "--device", "cpu"});
  EXPECT_THAT(text.out, HasSubstr("8168, 8166\n"));
}

TEST(Info, BrokenWeightsWouldNotRun) {
  const char* weights = "model.safetensors";
  const std::string whole = file_text(kTinyTales + "/model.safetensors");
  const auto nothing = [](const fs::path&) {};
  expect_would_not_run({changed_model(weights, nothing)}, "no weights: neither model.safetensors");
  expect_would_not_run({with_file(weights, "hello")}, "not a safetensors file");
  expect_would_not_run({with_file(weights, "a text of more than eight bytes")},
                       "not a safetensors file");
  expect_would_not_run({with_file(weights, std::string("\4\0\0\0\0\0\0\0abcd", 12))},
                       "not a safetensors file: its header is no JSON object");
  expect_would_not_run({with_file(weights, "GGUF and so on")}, "a GGUF file; safetensors");
  expect_would_not_run({with_file(weights, whole.substr(0, 1'000'000))}, "is it incomplete?");
  expect_would_not_run({with_file(weights, std::string("\2\0\0\0\0\0\0\0{}", 10))},
                       "tensor \"model.embed_tokens.weight\" is missing");
  std::string other = whole;
  other.replace(other.find("\"BF16\""), 6, "\"I16\" ");
  expect_would_not_run({with_file(weights, other)}, "has dtype I16; it must be BF16, F16 or F32");
  expect_would_not_run({changed_model(weights,
                                      [](const fs::path& folder) {
                                        std::ofstream(folder / "model.safetensors.index.json")
                                            << R"({"weight_map": {"a": "b.safetensors"}})";
                                      })},
                       "shard \"b.safetensors\" is missing; is the download complete?");
  // Random weights need no files.
  EXPECT_EQ(run({"info", changed_model(weights, nothing), "--load-format", "dummy"}).status, 0);
}

TEST(Info, OtherBrokenFilesWouldNotRun) {
  std::string config = file_text(kTinyTales + "/config.json");
  const std::string size = "\"hidden_size\": 256";
  config.replace(config.find(size), size.size(), "\"hidden_size\": 128");
  expect_would_not_run({with_file("config.json", config)},
                       "has shape [8192, 256]; config.json requires [8192, 128]");
  expect_would_not_run({with_file("config.json", R"({"architectures": ["GPT2LMHeadModel"]})")},
                       "architecture \"GPT2LMHeadModel\" is not supported");
  expect_would_not_run({with_file("tokenizer.json", "{")}, "tokenizer.json: not valid JSON");
  expect_would_not_run({with_file("chat_template.jinja", "{% if %}")},
                       "chat_template.jinja, line 1, column 7");
  expect_would_not_run({with_file("generation_config.json", R"({"temperature": "hot"})")},
                       "generation_config.json: temperature must be a number");
  expect_would_not_run({kSource + "/docs"}, "no config.json");
  // Without a tokenizer, prompts are token ids.
  const Result ids = run({"info", kLlama, "--json"});
  EXPECT_EQ(ids.status, 0) << ids.err;
  EXPECT_EQ(Json::parse(ids.out)["tokenizer_vocab_size"], Json());
  EXPECT_THAT(run({"info", kLlama}).out,
              ::testing::EndsWith("\nwould run, with prompts of token ids only\n"));
}

TEST(Info, DescribesExpertsAndLongerContexts) {
  const std::string folder = kSource + "/tests/variants/qwen3-moe-mixed";
  const Json json = Json::parse(run({"info", folder, "--json", "--device", "cpu"}).out);
  EXPECT_EQ(json["num_experts"], 8);
  EXPECT_EQ(json["num_experts_per_tok"], 3);
  EXPECT_EQ(json["moe_intermediate_size"], 48);
  EXPECT_EQ(json["num_expert_layers"], 2);
  EXPECT_EQ(json["would_run"], true);
  EXPECT_THAT(run({"info", folder, "--device", "cpu"}).out,
              HasSubstr("8 of 48 columns in 2 layers, 3 for each token"));
  const std::string yarn = R"({"rope_type": "yarn", "factor": 4})";
  const Json longer =
      Json::parse(run({"info", kTinyTales, "--json", "-c", "8192", "--rope-scaling", yarn}).out);
  EXPECT_EQ(longer["max_model_len"], 8192);
  EXPECT_EQ(longer["max_position_embeddings"], 8192);
}

TEST(Info, SizesThatDoNotFitWouldNotRun) {
  expect_would_not_run({kTinyTales, "-c", "4096"}, "max_position_embeddings allow at most 2048");
  std::string config = file_text(kTinyTales + "/config.json");
  const std::string size = "\"hidden_size\": 256";
  config.replace(config.find(size), size.size(), "\"hidden_size\": 4194304");
  expect_would_not_run(
      {with_file("config.json", config), "--load-format", "dummy", "--device", "cpu"},
      "free: free memory, raise its limit (ulimit, container) or use a smaller model");
}

TEST(Info, SaysWhyADeviceWasNotChosen) {
  if (fs::exists("/proc/driver/nvidia/version")) GTEST_SKIP() << "this machine has a driver";
  const Json info = Json::parse(run({"info", kTinyTales, "--json"}).out);
  EXPECT_EQ(info["device"], "cpu");
  EXPECT_THAT(info["device_reason"].get<std::string>(), HasSubstr("no NVIDIA driver"));
  expect_would_not_run({kTinyTales, "--device", "cuda"}, "no NVIDIA driver");
}

TEST(Info, SizesInBytesHaveUnits) {
  const auto bytes = [](const char* size) {
    const Result r = run({"info", kTinyTales, "--kv-cache-memory-bytes", size, "--json"});
    EXPECT_EQ(r.status, 0) << r.err;
    return Json::parse(r.out)["kv_cache_bytes"].get<int64_t>();
  };
  const int64_t most = int64_t{48} << 20;
  EXPECT_LE(bytes("48M"), most);
  EXPECT_GT(bytes("48M"), most - 64 * 6144);  // whole blocks
  for (const char* same : {"50331648", "48m", "48MiB", "48MB", "49152K", "0.046875G"})
    EXPECT_EQ(bytes(same), bytes("48M")) << same;
}

// Root may read every folder, so another user must try.
TEST(Info, UnreadableFolderIsOneLine) {
  const std::string folder = changed_model("config.json", [](const fs::path& path) {
    std::ofstream(path / "config.json") << "{}";
    fs::permissions(path, fs::perms::none);
  });
  const std::string as_nobody = ::geteuid() == 0 ? "setpriv --reuid=65534 --clear-groups " : "";
  if (run_in_shell(as_nobody + "\"$@\"", {"--version"}).status != 0) {
    fs::remove_all(folder);
    GTEST_SKIP() << "another user cannot run the binary here";
  }
  for (const char* command : {"info", "tokenize", "render", "chat", "bench throughput"}) {
    const Result r = run_in_shell(as_nobody + "\"$1\" " + command + " \"$2\"", {folder});
    EXPECT_EQ(r.status, 2);
    EXPECT_THAT(r.err, HasSubstr(": Permission denied\n"));
    EXPECT_EQ(r.num_error_lines(), 1) << r.err;
  }
  fs::permissions(folder, fs::perms::owner_all);
}

// Sizes so large that a product or a sum of them would overflow to a small number.
TEST(Info, CacheLargerThanAnyMemoryIsRefused) {
  const std::string most = "9223372036854775807";
  for (const char* block_size : {"16", "64", "65536"}) {
    expect_would_not_run({kTinyTales, "--device", "cpu", "--kv-cache-memory-bytes", most,
                          "--block-size", block_size},
                         "--kv-cache-memory-bytes");
    expect_would_not_run({kTinyTales, "--device", "cpu", "--num-gpu-blocks-override", "2147483647",
                          "--block-size", block_size},
                         "--num-gpu-blocks-override");
  }
  for (const char* option :
       {"--num-gpu-blocks-override", "--max-num-batched-tokens", "--max-num-seqs",
        "--max-model-len", "--block-size", "--threads", "--tensor-parallel-size"})
    expect_refused({"info", kTinyTales, option, most}, most);
}

}  // namespace
}  // namespace nanovllm::testing
