// Hostile files in a checkpoint. The program must not wait for them, read them without end, or
// print their contents to the terminal unescaped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "process.h"

namespace nanovllm::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// A checkpoint folder of links to the demo model's files, some of which are replaced.
class Checkpoint {
 public:
  Checkpoint() {
    path_ = ::testing::TempDir() + "hostile_XXXXXX";
    if (::mkdtemp(path_.data()) == nullptr) ADD_FAILURE() << path_;
    for (const auto& file : fs::directory_iterator(kTinyTales))
      fs::create_symlink(file.path(), path(file.path().filename()));
    fs::create_directory(path("additional_chat_templates"));
    write("chat_template.jinja", "{{ messages[-1].content }}");
  }
  ~Checkpoint() { fs::remove_all(path_); }
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  std::string path(const std::string& name = "") const { return path_ + "/" + name; }
  void write(const std::string& name, const std::string& text) const {
    fs::remove(path(name));
    std::ofstream(path(name)) << text;
  }
  std::string read(const std::string& name) const {
    std::ifstream file(path(name));
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  std::string path_;
};

const char* const kFiles[] = {"config.json",         "generation_config.json",
                              "tokenizer.json",      "tokenizer_config.json",
                              "chat_template.jinja", "additional_chat_templates/tool_use.jinja",
                              "model.safetensors",   "model.safetensors.index.json"};

// Expects one line on stderr that consists of printable characters.
void expect_one_clean_line(const Result& r) {
  EXPECT_EQ(r.num_error_lines(), 1) << r.err;
  EXPECT_THAT(r.err, StartsWith("error: "));
  for (size_t i = 0; i + 1 < r.err.size(); ++i) {
    const auto byte = static_cast<unsigned char>(r.err[i]);
    const bool is_c1 = byte == 0xc2 && static_cast<unsigned char>(r.err[i + 1]) < 0xa0;
    EXPECT_TRUE(byte >= 0x20 && byte != 0x7f && !is_c1) << "byte " << int{byte} << " at " << i;
  }
}

TEST(HostileFiles, FilesThatAreNotRegularAreRefusedAtOnce) {
  for (const std::string file : kFiles) {
    for (const char* kind : {"fifo", "device", "loop", "folder"}) {
      const Checkpoint checkpoint;
      const std::string path = checkpoint.path(file);
      if (file == "model.safetensors.index.json") fs::remove(checkpoint.path("model.safetensors"));
      fs::remove(path);
      if (kind == std::string("fifo")) ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
      else if (kind == std::string("device")) fs::create_symlink("/dev/zero", path);
      else if (kind == std::string("loop")) fs::create_symlink(fs::path(path).filename(), path);
      else fs::create_directory(path);
      const Result r = run({"chat", checkpoint.path(), "--max-tokens", "1"}, "Hello\n");
      EXPECT_EQ(r.status, 2) << file << " " << kind;
      expect_one_clean_line(r);
      EXPECT_THAT(r.err, HasSubstr(fs::path(file).filename().string())) << kind;
      EXPECT_THAT(r.err, AnyOf(HasSubstr("not a regular file"), HasSubstr("symbolic links")));
    }
  }
}

TEST(HostileFiles, SparseFilesOfGigabytesAreNotRead) {
  for (const std::string file : kFiles) {
    const Checkpoint checkpoint;
    if (file == "model.safetensors.index.json") fs::remove(checkpoint.path("model.safetensors"));
    const auto size = uint64_t{1} << 40;
    checkpoint.write(file, "");
    std::error_code error;
    fs::resize_file(checkpoint.path(file), size, error);
    if (error) GTEST_SKIP() << "no sparse files here: " << error.message();
    const Result r = run({"chat", checkpoint.path(), "--max-tokens", "1"}, "Hello\n");
    EXPECT_EQ(r.status, 2) << file;
    expect_one_clean_line(r);
    EXPECT_THAT(r.err, HasSubstr(fs::path(file).filename().string()));
  }
}

TEST(HostileFiles, ModelPathIsALoopAFifoOrAnEndlessTemplate) {
  const Checkpoint checkpoint;
  const std::string loop = checkpoint.path("loop"), fifo = checkpoint.path("fifo"),
                    large = checkpoint.path("large.jinja");
  fs::create_symlink("loop", loop);
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  checkpoint.write("large.jinja", std::string((1 << 20) + 1, 'x'));
  for (const char* command : {"info", "chat", "tokenize", "detokenize", "render"})
    for (const std::string& model : {loop, fifo, loop + "/x"}) {
      const Result r = run({command, model}, "{}\n");
      EXPECT_EQ(r.status, 2) << command << model;
      expect_one_clean_line(r);
      EXPECT_THAT(r.err, HasSubstr(model));
    }
  const Result r = run({"render", large}, "{}\n");
  EXPECT_EQ(r.status, 2);
  EXPECT_THAT(r.err, HasSubstr("at most 1048576"));
}

TEST(HostileFiles, EndlessInputIsRefused) {
  const Result file = run({"generate", kTinyTales, "--prompts-file", "/dev/zero"});
  EXPECT_EQ(file.status, 2);
  EXPECT_THAT(file.err, HasSubstr("/dev/zero: a line of more than"));
  const Result in = run_in_shell("exec \"$@\" < /dev/zero", {"tokenize", kTinyTales});
  EXPECT_EQ(in.status, 2);
  EXPECT_THAT(in.err, HasSubstr("stdin: a line of more than"));
  const Result folder = run({"generate", kTinyTales, "--prompts-file", kTinyTales});
  EXPECT_EQ(folder.status, 2);
  expect_one_clean_line(folder);
}

TEST(HostileTexts, ErrorsHaveNoEscapeSequences) {
  const std::string escape = "\x1b]0;title\x07\x1b[31m\r\n\x7f\u009b2J\x9b";
  const Checkpoint checkpoint;
  const auto expect_refused = [&](const std::vector<std::string>& args, const std::string& input) {
    const Result r = run(args, input);
    EXPECT_EQ(r.status, 2) << args[0];
    expect_one_clean_line(r);
    EXPECT_THAT(r.err, HasSubstr("\\x1b")) << args[0];
  };
  expect_refused({"info", escape}, "");
  expect_refused({escape}, "");
  expect_refused({"info", kTinyTales, "--device", escape}, "");
  expect_refused({"info", kTinyTales, "--" + escape}, "");
  expect_refused({"info", kTinyTales, "--max-num-seqs", escape}, "");
  expect_refused({"generate", kTinyTales, "--prompts-file", escape}, "");
  expect_refused({"detokenize", kTinyTales}, "\x1b[31m\n");
  expect_refused({"chat", kTinyTales}, "/\x1b[31m\n");
  checkpoint.write("chat_template.jinja", "{{ raise_exception('\x1b]0;title\x07' ~ '\u009b') }}");
  expect_refused({"chat", checkpoint.path()}, "Hello\n");
  checkpoint.write("chat_template.jinja", "{{ x | \x1b[31m }}");
  expect_refused({"chat", checkpoint.path()}, "Hello\n");
  checkpoint.write("tokenizer.json", "{\"model\": {\"type\": \"\\u001b[31m\"}}");
  expect_refused({"tokenize", checkpoint.path()}, "");
}

TEST(HostileTexts, PipesGetEveryByteUnchanged) {
  const std::string text = "a\x1b[31m\u009b\x07z";
  const Result ids = run({"tokenize", kTinyTales}, text + "\n");
  ASSERT_EQ(ids.status, 0) << ids.err;
  EXPECT_EQ(run({"detokenize", kTinyTales}, ids.out).out, text + "\n");
}

TEST(Limits, FileSizeLimitIsAOneLineError) {
  const std::string out = ::testing::TempDir() + "limits_test_out_" + std::to_string(::getpid());
  for (const auto& args : std::vector<std::vector<std::string>>{
           {"--help"}, {"--version"}, {"info", kTinyTales, "--device", "cpu"}}) {
    const Result r = run_in_shell("ulimit -f 0; exec \"$@\" > " + out, args);
    EXPECT_EQ(r.status, 1) << args[0];
    expect_one_clean_line(r);
    EXPECT_THAT(r.err, HasSubstr("cannot write to stdout: File too large"));
  }
  fs::remove(out);
}

TEST(Limits, AddressSpaceBoundsTheCacheAndTheErrorNamesTheOption) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers map terabytes";
#endif
  const std::vector<std::string> info = {"info", kTinyTales, "--device", "cpu", "--threads", "1"};
  const std::vector<std::string> answer = {"generate",  kTinyTales, "--device",     "cpu",
                                           "--prompt",  "a",        "--max-tokens", "2",
                                           "--threads", "1"};
  const std::string limit = "ulimit -v 1000000; exec \"$@\"";
  EXPECT_NE(run_in_shell(limit, info).out, run(info).out);
  const Result good = run_in_shell(limit, answer);
  EXPECT_EQ(good.status, 0) << good.err;
  std::vector<std::string> large = answer;
  large.insert(large.end(), {"--kv-cache-memory-bytes", "8000000000"});
  const Result bad = run_in_shell(limit, large);
  EXPECT_EQ(bad.status, 2);
  expect_one_clean_line(bad);
  EXPECT_THAT(bad.err, HasSubstr("--kv-cache-memory-bytes"));
}

}  // namespace
}  // namespace nanovllm::testing
