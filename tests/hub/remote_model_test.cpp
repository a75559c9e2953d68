#include "nanovllm/hub/remote_model.h"

#include <fmt/format.h>

#include "hub_test_util.h"

namespace nanovllm::hub {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kGit(40, 'a'), kLfs(64, 'b');

std::string plain(const std::string& name, uint64_t size = 10) {
  return fmt::format(R"({{"rfilename": "{}", "size": {}, "blobId": "{}"}})", name, size, kGit);
}
std::string large(const std::string& name, uint64_t size = 1000) {
  return fmt::format(
      R"({{"rfilename": "{}", "size": 134, "blobId": "{}", "lfs": {{"sha256": "{}", "size": {}}}}})",
      name, kGit, kLfs, size);
}
RemoteModel model_of(const std::string& siblings) {
  return parse_remote_model(fmt::format(R"({{"sha": "{}", "siblings": [{}]}})", kCommit, siblings),
                            "the hub");
}
std::vector<std::string> names_of(const std::vector<RemoteFile>& files) {
  std::vector<std::string> names;
  for (const RemoteFile& file : files) names.push_back(file.name);
  return names;
}

TEST(RemoteModel, TheNeededFilesWithTheirChecksums) {
  const RemoteModel model =
      model_of(plain("README.md") + "," + plain("config.json", 7) + "," + large("tokenizer.json") +
               "," + large("model.safetensors", 5000) + "," + large("pytorch_model.bin"));
  EXPECT_EQ(model.commit, kCommit);
  const auto small = model.small_files("a/b");
  EXPECT_THAT(names_of(small), ElementsAre("config.json", "tokenizer.json"));
  EXPECT_EQ(small[0].digits, kGit);
  EXPECT_EQ(small[0].size, 7U);
  EXPECT_EQ(small[0].kind, ChecksumKind::kGitBlob);
  EXPECT_EQ(small[1].digits, kLfs);
  EXPECT_EQ(small[1].kind, ChecksumKind::kSha256);
  EXPECT_FALSE(model.has_shards());
  EXPECT_THAT(names_of(model.weight_files("a/b", {})), ElementsAre("model.safetensors"));
  EXPECT_EQ(model.weight_files("a/b", {})[0].size, 5000U);
}

TEST(RemoteModel, ShardsComeFromTheIndex) {
  const RemoteModel model = model_of(plain("config.json") + "," + plain(kWeightsIndex) + "," +
                                     large("a.safetensors") + "," + large("b.safetensors"));
  EXPECT_TRUE(model.has_shards());
  EXPECT_EQ(model.small_files("a/b").back().name, kWeightsIndex);
  EXPECT_THAT(names_of(model.weight_files("a/b", {"a.safetensors"})), ElementsAre("a.safetensors"));
  EXPECT_THAT(error_of([&] { model.weight_files("a/b", {"c.safetensors"}); }),
              HasSubstr("names c.safetensors, which the hub does not have"));
}

TEST(RemoteModel, ErrorsOfAModel) {
  EXPECT_THAT(error_of([] { model_of(plain("x")).small_files("a/b"); }),
              HasSubstr("a/b has no config.json"));
  EXPECT_THAT(error_of([] { model_of(plain("x")).weight_files("a/b", {}); }),
              HasSubstr("has no weights"));
  EXPECT_THAT(error_of([] { model_of(plain("model.gguf")).weight_files("a/b", {}); }),
              HasSubstr("another format (model.gguf)"));
  EXPECT_THAT(error_of([] { model_of(plain("config.json", 1ULL << 40)).small_files("a/b"); }),
              HasSubstr("has 1099511627776 bytes; at most"));
  const auto one = [](const std::string& entry) {
    return error_of([&] { model_of(entry).small_files("a/b"); });
  };
  EXPECT_THAT(one(R"({"rfilename": "config.json", "size": 1})"), HasSubstr("no valid checksum"));
  EXPECT_THAT(one(R"({"rfilename": "config.json", "size": 1, "blobId": "../../x"})"),
              HasSubstr("no valid checksum"));
  EXPECT_THAT(one(R"({"rfilename": "config.json", "size": -1, "blobId": ")" + kGit + "\"}"),
              HasSubstr("bytes; at most"));
}

TEST(RemoteModel, AnswersThatAreNone) {
  for (const std::string text : {"", "[]", "{", "{}", R"({"sha": "main", "siblings": []})",
                                 R"({"sha": "../x", "siblings": []})"})
    EXPECT_THAT(error_of<std::runtime_error>([&] { parse_remote_model(text, "the hub"); }),
                HasSubstr("the hub does not answer as the Hugging Face hub does"));
  EXPECT_NO_THROW(model_of(R"(1, "x", {}, {"rfilename": 3}, {"lfs": 3})"));
}

TEST(ShardsOfIndex, AreSafetensorsFilesOfTheFolder) {
  const auto index = [](const std::string& name) {
    return R"({"weight_map": {"t": ")" + name + R"(", "u": "b.safetensors"}})";
  };
  EXPECT_THAT(shards_of_index(index("a.safetensors"), "x"),
              ElementsAre("a.safetensors", "b.safetensors"));
  for (const std::string name : {"../a.safetensors", "/a.safetensors", "a/b.safetensors", "..", "",
                                 ".safetensors", "a.bin", "a b.safetensors", "a\\n.safetensors"})
    EXPECT_THAT(error_of([&] { shards_of_index(index(name), "x"); }),
                HasSubstr("is not the name of a safetensors file"));
  for (const std::string text : {"", "{}", R"({"weight_map": []})", R"({"weight_map": {}})"})
    EXPECT_NE(error_of([&] { shards_of_index(text, "x"); }), "");
}

}  // namespace
}  // namespace nanovllm::hub
