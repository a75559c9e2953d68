#include "nanovllm/engine/request_factory.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace nanovllm {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::unique_ptr<const Tokenizer> tokenizer_with(const std::string& config) {
  const auto folder =
      std::filesystem::path(::testing::TempDir()) / ("end_tokens_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "tokenizer.json")
      << R"({"added_tokens": [{"id": 7, "content": "<e>"}], "decoder": {"type": "Fuse"},
             "model": {"vocab": {"a": 0}, "merges": []}})";
  std::ofstream(folder / "tokenizer_config.json") << config;
  return Tokenizer::load(folder);
}

std::vector<int32_t> ids(std::vector<int32_t> of_model, const std::string& config) {
  ModelSpec model;
  model.eos_token_ids = std::move(of_model);
  return end_tokens(model, tokenizer_with(config).get());
}

TEST(EndTokens, TheTokenizersOwnIsAdded) {
  EXPECT_THAT(ids({5, 6}, R"({"eos_token": "<e>"})"), ElementsAre(5, 6, 7));
  EXPECT_THAT(ids({}, R"({"eos_token": {"content": "<e>", "lstrip": false}})"), ElementsAre(7));
  EXPECT_THAT(ids({7, 5}, R"({"eos_token": "<e>"})"), ElementsAre(7, 5));
  EXPECT_THAT(ids({5}, R"({"eos_token": "a"})"), ElementsAre(5, 0));
}

TEST(EndTokens, ItMayBeMissing) {
  for (const char* config : {"{}", R"({"eos_token": null})", R"({"eos_token": "<x>"})",
                             R"({"eos_token": {}})", R"({"eos_token": {"content": null}})"}) {
    EXPECT_THAT(ids({5}, config), ElementsAre(5)) << config;
    EXPECT_THAT(ids({}, config), IsEmpty()) << config;
  }
  ModelSpec model;
  model.eos_token_ids = {5};
  EXPECT_THAT(end_tokens(model, nullptr), ElementsAre(5));
}

}  // namespace
}  // namespace nanovllm
