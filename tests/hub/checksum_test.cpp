#include "nanovllm/hub/checksum.h"

#include "hub_test_util.h"

namespace nanovllm::hub {
namespace {

// What `printf 'hello\n' | sha256sum` and `printf 'hello\n' | git hash-object --stdin` print.
TEST(Checksum, IsThatOfSha256sumAndGit) {
  Checksum lfs(ChecksumKind::kSha256, 6);
  lfs.add("hel");
  lfs.add("lo\n");
  EXPECT_EQ(lfs.digits(), "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03");
  Checksum git(ChecksumKind::kGitBlob, 6);
  git.add("hello\n");
  EXPECT_EQ(git.digits(), "ce013625030ba8dba906f756967f9e9ca394464a");
  EXPECT_EQ(Checksum(ChecksumKind::kGitBlob, 0).digits(),
            "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
}

}  // namespace
}  // namespace nanovllm::hub
