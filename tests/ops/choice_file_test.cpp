#include "nanovllm/ops/choice_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/base/terminal/logging.h"

namespace nanovllm {
namespace {

namespace fs = std::filesystem;

/// A temporary folder, and what was logged.
class ChoiceFiles : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "choicesXXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder = name;
  }
  void TearDown() override {
    ::chmod(folder.c_str(), 0700);
    fs::remove_all(folder);
  }
  static std::string contents(const std::string& path) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  static void replace(const std::string& path, const std::string& text) {
    std::ofstream(path) << text;
  }
  /// What the file reads, and how many lines it logs.
  static std::pair<std::string, int64_t> read(const ChoiceFile& file) {
    testing::internal::CaptureStderr();
    const std::string text = file.read();
    log().flush();
    const std::string logged = testing::internal::GetCapturedStderr();
    return {text, std::count(logged.begin(), logged.end(), '\n')};
  }

  std::string folder;
};

TEST_F(ChoiceFiles, KeepsChoicesForTheSameEnvironmentOnly) {
  const ChoiceFile file(folder + "/new/folder", "GPU 1\nbuild 2");
  EXPECT_EQ(read(file), std::pair(std::string(), int64_t{0}));
  file.write("1 2 3\n4 5 6\n");
  EXPECT_EQ(read(file), std::pair(std::string("1 2 3\n4 5 6\n"), int64_t{0}));
  file.write("7\n");
  EXPECT_EQ(ChoiceFile(folder + "/new/folder", "GPU 1\nbuild 2").read(), "7\n");
  EXPECT_EQ(ChoiceFile(folder + "/new/folder", "GPU 1\nbuild 3").read(), "");
  // Nothing else is left in the folder.
  EXPECT_EQ(std::distance(fs::directory_iterator(folder + "/new/folder"), {}), 1);
}

TEST_F(ChoiceFiles, HaveThePermissionsThatTheUmaskAllows) {
  const ChoiceFile file(folder, "GPU");
  for (const mode_t mask : {mode_t{0022}, mode_t{0077}}) {
    const mode_t old = ::umask(mask);
    file.write("1\n");
    ::umask(old);
    struct stat status {};
    ASSERT_EQ(::stat(file.path().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0666 & ~mask);
  }
}

TEST_F(ChoiceFiles, NowhereWithoutAFolder) {
  const ChoiceFile file("", "GPU");
  file.write("1\n");
  EXPECT_EQ(read(file), std::pair(std::string(), int64_t{0}));
}

TEST_F(ChoiceFiles, DamagedAndForeignFilesAreIgnoredWithOneLine) {
  const ChoiceFile file(folder, "GPU");
  file.write("1 2 3\n4 5 6\n");
  const std::string good = contents(file.path());
  const std::pair<std::string, int64_t> ignored = {"", 1};
  for (size_t size = 0; size < good.size(); ++size) {
    replace(file.path(), good.substr(0, size));
    ASSERT_EQ(read(file), ignored) << size << " bytes";
    std::string changed = good;
    changed[size] ^= 1;
    replace(file.path(), changed);
    ASSERT_EQ(read(file), ignored) << "byte " << size;
  }
  const ChoiceFile other(folder, "another GPU");
  other.write("1\n");
  fs::rename(other.path(), file.path());
  EXPECT_EQ(read(file), ignored);
  replace(file.path(), std::string(2 << 20, 'x'));
  EXPECT_EQ(read(file), ignored);
  fs::remove(file.path());
  fs::create_directory(file.path());
  EXPECT_EQ(read(file), ignored);
  fs::remove(file.path());
  ASSERT_EQ(::mkfifo(file.path().c_str(), 0600), 0);
  EXPECT_EQ(read(file), ignored);  // without waiting for a writer
}

TEST_F(ChoiceFiles, AFolderThatCannotBeWrittenCostsOneLine) {
  replace(folder + "/file", "");
  testing::internal::CaptureStderr();
  ChoiceFile(folder + "/file/below", "GPU").write("1\n");
  if (::geteuid() != 0) {  // root may write everywhere
    ::chmod(folder.c_str(), 0500);
    ChoiceFile(folder, "GPU").write("1\n");
  }
  log().flush();
  const std::string logged = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(logged.begin(), logged.end(), '\n'), ::geteuid() != 0 ? 2 : 1) << logged;
}

TEST_F(ChoiceFiles, SeveralWritersLeaveACompleteFile) {
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const ChoiceFile file(folder, "GPU");
      const std::string choices(20000, static_cast<char>('a' + i));
      for (int round = 0; round < 50; ++round) file.write(choices + "\n");
      ::_exit(0);
    }
    children.push_back(child);
  }
  const ChoiceFile file(folder, "GPU");
  for (int round = 0; round < 200; ++round) {
    const auto [text, num_lines] = read(file);
    ASSERT_EQ(num_lines, 0);
    if (!text.empty()) {
      ASSERT_EQ(text, std::string(20000, text[0]) + "\n");
    }
  }
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
}

}  // namespace
}  // namespace nanovllm
