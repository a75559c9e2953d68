#include "nanovllm/hub/cache.h"

#include <sys/file.h>

#include "hub_test_util.h"

namespace nanovllm::hub {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

namespace fs = std::filesystem;

RemoteFile file_of(const std::string& name, char digit) {
  return {.name = name, .size = 3, .digits = std::string(40, digit)};
}

/// A model a/b in the cache, with its weights in one file.
CachedModel complete_model(const TempFolder& folder) {
  const CachedModel cached(folder.path(), "a/b");
  cached.create_folders();
  char digit = '0';
  for (const char* name : {"config.json", "tokenizer.json", "model.safetensors"}) {
    const RemoteFile file = file_of(name, digit++);
    folder.write(fs::relative(cached.blob(file), folder.path()), "abc");
    cached.link(kCommit, file);
  }
  cached.set_ref("main", kCommit);
  return cached;
}

TEST(Cache, LinksAreRelativeAndRefsNameCommits) {
  const TempFolder folder;
  const CachedModel cached = complete_model(folder);
  EXPECT_EQ(fs::read_symlink(cached.snapshot(kCommit) + "/config.json"),
            "../../blobs/" + std::string(40, '0'));
  EXPECT_EQ(cached.commit_of("main"), kCommit);
  EXPECT_EQ(cached.commit_of(kCommit), kCommit);
  EXPECT_EQ(cached.commit_of("other"), std::nullopt);
  folder.write("models--a--b/refs/odd", "../../x");
  EXPECT_EQ(cached.commit_of("odd"), std::nullopt);
  folder.write("models--a--b/refs/long", std::string(1000, 'c'));
  EXPECT_EQ(cached.commit_of("long"), std::nullopt);
  const RemoteFile nested = file_of("additional_chat_templates/tool_use.jinja", '0');
  cached.link(kCommit, nested);
  fs::remove(cached.snapshot(kCommit) + "/" + nested.name);
  fs::create_symlink("x", cached.snapshot(kCommit) + "/" + nested.name);
  cached.link(kCommit, nested);  // a link that exists is replaced
  EXPECT_EQ(fs::read_symlink(cached.snapshot(kCommit) + "/" + nested.name),
            "../../../blobs/" + std::string(40, '0'));
  cached.set_ref("refs/pr/1", kCommit);
  EXPECT_TRUE(fs::exists(folder.path("models--a--b/refs/refs/pr/1")));
}

TEST(Cache, BytesThatNeedNotBeDownloaded) {
  const TempFolder folder;
  const CachedModel cached = complete_model(folder);
  EXPECT_EQ(cached.bytes_there(file_of("x", '0')), 3U);
  EXPECT_EQ(cached.bytes_there(file_of("x", '9')), 0U);
  folder.write("models--a--b/blobs/" + std::string(40, '9') + ".incomplete", "ab");
  EXPECT_EQ(cached.bytes_there(file_of("x", '9')), 2U);
  folder.write("models--a--b/blobs/" + std::string(40, '9'), "a");  // too short to be the file
  EXPECT_FALSE(cached.has_blob(file_of("x", '9')));
  EXPECT_EQ(cached.bytes_there(file_of("x", '9')), 2U);
}

TEST(Cache, LeftoversOfCompleteFilesAreRemoved) {
  const TempFolder folder;
  const CachedModel cached = complete_model(folder);
  const RemoteFile complete = file_of("x", '0'), locked = file_of("y", '1'),
                   other = file_of("z", '9');
  const auto left = [&](const RemoteFile& file) { return cached.blob(file) + ".1f.incomplete"; };
  for (const RemoteFile& file : {complete, locked, other})
    folder.write(fs::relative(left(file), folder.path()), "ab");
  const FileDescriptor lock = cached.open_lock(locked);
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
  cached.remove_leftovers({complete, locked, other});
  EXPECT_FALSE(fs::exists(left(complete)));
  EXPECT_TRUE(fs::exists(left(locked)));  // by another process
  EXPECT_TRUE(fs::exists(left(other)));   // of a download that can still be needed
}

TEST(Cache, MissingFiles) {
  const TempFolder folder;
  const CachedModel cached = complete_model(folder);
  const std::string snapshot = cached.snapshot(kCommit);
  EXPECT_THAT(missing_files(snapshot, true), IsEmpty());
  fs::remove(cached.blob(file_of("", '2')));  // a link without a blob counts as missing
  EXPECT_THAT(missing_files(snapshot, true), ElementsAre("model.safetensors"));
  EXPECT_THAT(missing_files(snapshot, false), IsEmpty());
  folder.write("models--a--b/snapshots/" + kCommit + "/" + kWeightsIndex,
               R"({"weight_map": {"t": "1.safetensors", "u": "2.safetensors"}})");
  fs::remove(snapshot + "/model.safetensors");
  EXPECT_THAT(missing_files(snapshot, true), ElementsAre("1.safetensors", "2.safetensors"));
  fs::remove(snapshot + "/tokenizer.json");
  EXPECT_THAT(missing_files(snapshot, false), ElementsAre("tokenizer.json"));
  EXPECT_TRUE(lacks_only_tokenizer(snapshot, {"tokenizer.json"}));
  fs::create_symlink("../../blobs/x", snapshot + "/tokenizer.json");  // its blob is lost
  EXPECT_FALSE(lacks_only_tokenizer(snapshot, missing_files(snapshot, false)));
}

TEST(Cache, ListAndRemove) {
  const TempFolder folder;
  EXPECT_THAT(list_models(folder.path("none")), IsEmpty());
  complete_model(folder);
  folder.write("models--a--part/blobs/x.incomplete", "12345");
  folder.write("datasets--a--c/blobs/x", "1");
  folder.write("version.txt", "1");
  const auto entries = list_models(folder.path());
  ASSERT_EQ(entries.size(), 2U);
  EXPECT_EQ(entries[0].id, "a/b");
  EXPECT_EQ(entries[0].bytes, 9U);
  EXPECT_TRUE(entries[0].is_complete);
  EXPECT_GT(entries[0].last_used, 0);
  EXPECT_EQ(entries[1].bytes, 5U);
  EXPECT_FALSE(entries[1].is_complete);

  EXPECT_THAT(error_of([&] { remove_model(folder.path(), "a/parts"); }),
              HasSubstr("did you mean 'a/part'"));
  for (const std::string id : {"", "..", "a/../..", "/"})
    EXPECT_THAT(error_of([&] { remove_model(folder.path(), id); }),
                HasSubstr("is not in the cache"));
  EXPECT_EQ(error_of([&] { remove_model(folder.path(), "a/b@main"); }),
            "a/b@main: all revisions are removed together: nanovllm remove a/b");
  remove_model(folder.path(), "a/b");
  EXPECT_FALSE(fs::exists(folder.path("models--a--b")));
  EXPECT_FALSE(fs::exists(folder.path(".locks/models--a--b")));
  EXPECT_THAT(list_ids(folder.path()), ElementsAre("a/part"));
}

TEST(Cache, SizesWithoutLinks) {
  const TempFolder folder;
  folder.write("models--a--b/snapshots/" + kCommit + "/config.json", "abc");
  folder.write("models--a--b/snapshots/" + kCommit + "/more/x", "ab");
  EXPECT_EQ(list_models(folder.path())[0].bytes, 5U);
}

TEST(Cache, AModelOnAnotherDiskIsRemovedThere) {
  const TempFolder folder, disk;
  complete_model(disk);
  disk.write("models--a--b/mine", "x");
  fs::create_directory_symlink(disk.path("models--a--b"), folder.path("models--a--b"));
  remove_model(folder.path(), "a/b");
  EXPECT_FALSE(fs::is_symlink(folder.path("models--a--b")));
  EXPECT_TRUE(fs::exists(disk.path("models--a--b/mine")));
  EXPECT_FALSE(fs::exists(disk.path("models--a--b/blobs")));

  fs::remove(disk.path("models--a--b/mine"));
  complete_model(disk);
  fs::create_directory_symlink(disk.path("models--a--b"), folder.path("models--a--b"));
  remove_model(folder.path(), "a/b");
  EXPECT_FALSE(fs::exists(disk.path("models--a--b")));
}

TEST(Cache, AModelThatIsBeingDownloadedIsNotRemoved) {
  const TempFolder folder;
  const CachedModel cached = complete_model(folder);
  const FileDescriptor lock = cached.open_lock(file_of("x", '0'));
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
  EXPECT_THAT(error_of([&] { remove_model(folder.path(), "a/b"); }),
              HasSubstr("is being downloaded"));
  EXPECT_THAT(missing_files(cached.snapshot(kCommit), true), IsEmpty());
}

}  // namespace
}  // namespace nanovllm::hub
