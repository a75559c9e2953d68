#include "nanovllm/hub/model_id.h"

#include "hub_test_util.h"
#include "nanovllm/hub/hub.h"

namespace nanovllm::hub {
namespace {

TEST(ModelId, NameAndRevision) {
  const auto plain = parse_model_id("Qwen/Qwen3-0.6B");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->name, "Qwen/Qwen3-0.6B");
  EXPECT_EQ(plain->revision, "main");
  EXPECT_EQ(plain->text(), "Qwen/Qwen3-0.6B");
  const auto other = parse_model_id("a/b@refs/pr/1");
  ASSERT_TRUE(other);
  EXPECT_EQ(other->revision, "refs/pr/1");
  EXPECT_EQ(other->text(), "a/b@refs/pr/1");
}

TEST(ModelId, PathsAreNone) {
  for (const std::string text :
       {"",       "/",      "a",      "a/",      "/a",         "a/b/c",    "./a",
        "../a",   "a/..",   "a/.b",   "a b/c",   "a/b c",      "a/-b",     "a--b/c",
        "a/b--c", "a/b..c", "~/a",    "a/b@",    "a/b@..",     "a/b@../c", "a/b@x/../y",
        "a/b@/x", "a/b@x/", "a/b@.x", "a/b@x y", "a/\xc3\xa4", "a/b\n"})
    EXPECT_FALSE(parse_model_id(text)) << text;
  EXPECT_FALSE(parse_model_id("a/" + std::string(100, 'b')));
  EXPECT_FALSE(parse_model_id("a/b@" + std::string(300, 'c')));
}

TEST(ModelId, FolderNames) {
  EXPECT_EQ(folder_name("Qwen/Qwen3-0.6B"), "models--Qwen--Qwen3-0.6B");
  EXPECT_EQ(id_of_folder_name("models--Qwen--Qwen3-0.6B"), "Qwen/Qwen3-0.6B");
  EXPECT_EQ(id_of_folder_name("models--gpt2"), "gpt2");
  EXPECT_EQ(id_of_folder_name("datasets--a--b"), "");
  EXPECT_EQ(id_of_folder_name("models--"), "");
}

TEST(ModelId, ASnapshotIsShownAsItsId) {
  const std::string commit(40, 'a');
  EXPECT_EQ(shown_name("/x/hub/models--a--b/snapshots/" + commit), "a/b");
  EXPECT_EQ(shown_name("/x/hub/models--a--b/snapshots/main"), "/x/hub/models--a--b/snapshots/main");
  EXPECT_EQ(shown_name("/x/snapshots/" + commit), "/x/snapshots/" + commit);
  EXPECT_EQ(shown_name("models/tiny-tales"), "models/tiny-tales");
}

}  // namespace
}  // namespace nanovllm::hub
