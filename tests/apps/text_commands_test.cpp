// tokenize, detokenize, render and chat, run as the binary.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "nanovllm/base/json.h"
#include "process.h"

namespace nanovllm::testing {
namespace {

using ::testing::HasSubstr;

std::string write_file(const std::string& name, const std::string& text) {
  const std::string path = ::testing::TempDir() + "/nanovllm_" + std::to_string(::getpid()) + name;
  std::ofstream(path) << text;
  return path;
}

TEST(TokenizeCommand, LinesAndJsonRoundTrip) {
  const Result ids = run({"tokenize", kTinyTales}, "Once upon a time\n\nHéllo, 世界!");
  EXPECT_EQ(ids.status, 0) << ids.err;
  const Result text = run({"detokenize", kTinyTales}, ids.out);
  EXPECT_EQ(text.out, "Once upon a time\n\nHéllo, 世界!\n");

  const Result json =
      run({"tokenize", kTinyTales, "--json"}, "{\"text\": \"two\\nlines<|im_end|>\"}\n");
  const Json row = Json::parse(json.out);
  EXPECT_EQ(row["ids"].back(), 8168);
  const std::string back = "{\"ids\": " + row["ids"].dump() + "}\n";
  EXPECT_EQ(run({"detokenize", kTinyTales, "--json"}, back).out, "{\"text\":\"two\\nlines\"}\n");
  EXPECT_EQ(run({"detokenize", kTinyTales, "--json", "--keep-special-tokens"}, back).out,
            "{\"text\":\"two\\nlines<|im_end|>\"}\n");
}

TEST(TokenizeCommand, BadLinesAreReportedAndTheOthersRun) {
  const Result r = run({"tokenize", kTinyTales, "--json"}, "{}\nnot json\n{\"text\": \"a\"}\n");
  EXPECT_EQ(r.status, 2);
  EXPECT_THAT(r.out, HasSubstr("'text'"));
  EXPECT_THAT(r.out, HasSubstr("not valid JSON"));
  EXPECT_THAT(r.out, HasSubstr("{\"ids\":[64]}"));
  const Result d = run({"detokenize", kTinyTales}, "64\n1 x 2\n");
  EXPECT_EQ(d.status, 2);
  EXPECT_EQ(d.out, "a\n");
  EXPECT_EQ(d.err, "error: line 2: 'x' is not a token id\n");
  EXPECT_THAT(run({"tokenize", "org/no-such-model", "--local-files-only"}).err,
              HasSubstr("org/no-such-model: it is neither a folder nor in the cache"));
}

TEST(DetokenizeCommand, IdsThatTheVocabularyDoesNotHaveAreRefused) {
  const Result text = run({"detokenize", kTinyTales}, "8191 64\n8192\n-1\n99999999999999999999\n");
  EXPECT_EQ(text.status, 2);
  EXPECT_EQ(text.err,
            "error: line 2: 8192 is not a token id; the vocabulary has 8192 ids, 0 to 8191\n"
            "error: line 3: -1 is not a token id; the vocabulary has 8192 ids, 0 to 8191\n"
            "error: line 4: 99999999999999999999 is not a token id; the vocabulary has 8192 ids, "
            "0 to 8191\n");
  const Result json =
      run({"detokenize", kTinyTales, "--json"},
          "{\"ids\": [-1]}\n{\"ids\": [18446744073709551615]}\n{\"ids\": [1.5]}\n{\"ids\": 1}\n");
  EXPECT_EQ(json.status, 2);
  for (const char* error : {"-1 is not a token id; the vocabulary has 8192 ids",
                            "18446744073709551615 is not a token id; the vocabulary has",
                            "1.5 in ids is not a token id", "ids must be a list of token ids"})
    EXPECT_THAT(json.out, HasSubstr(error));
  // An option with an id that is too large names the vocabulary too.
  const Result stop = run({"generate", kTinyTales, "--prompt", "a", "--stop-token-id", "8192"});
  EXPECT_EQ(stop.status, 2);
  EXPECT_THAT(stop.out + stop.err,
              HasSubstr("stop_token_ids contains token id 8192; the vocabulary "
                        "has 8192 ids, 0 to 8191"));
}

TEST(RenderCommand, RendersAFolderOrAFileAndReportsTemplateErrors) {
  const std::string line =
      R"({"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": true})"
      "\n";
  EXPECT_EQ(run({"render", kTinyTales}, line).out,
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n\n");

  const std::string path = write_file(
      "template.jinja", "{{ messages[0].content }}{{ tools is defined }}{{ x.y.z if deep }}");
  const Result r = run({"render", path, "--json"}, line + "{\"messages\": [{}], \"deep\": true}\n");
  EXPECT_EQ(r.status, 0);
  EXPECT_THAT(r.out, ::testing::StartsWith("{\"prompt\":\"HiFalse\"}\n{\"error\":"));
  EXPECT_THAT(r.out, HasSubstr("line 1, column"));

  const std::string broken = write_file("broken.jinja", "{% if %}");
  const Result b = run({"render", broken, "--json"}, line);
  EXPECT_EQ(b.status, 0);
  EXPECT_THAT(b.out, ::testing::StartsWith("{\"error\":"));
  EXPECT_EQ(run({"render", "/nowhere.jinja"}).status, 2);
  // A character that would end the text of an error.
  const Result nul = run({"render", kTinyTales, "--json"},
                         R"({"messages": [{"role": "a\u0000b", "content": "Hi"}]})"
                         "\n");
  EXPECT_THAT(nul.out, HasSubstr(R"(system, user and assistant, not a\\x00b"})"));
  // A line that is no conversation is refused, unlike one that the template refuses.
  for (const char* bad : {"[]\n", "{\"messages\": \"\xff\"}\n", "no JSON\n"})
    EXPECT_EQ(run({"render", path, "--json"}, line + bad).status, 2) << bad;
}

TEST(ChatCommand, KeepsTheConversationUntilReset) {
  const std::vector<std::string> chat = {"chat",         kTinyTales, "--sample-seed", "1",
                                         "--max-tokens", "30",       "--no-thinking"};
  const Result twice = run(chat, "introduce yourself\nWhat did you say?\n");
  EXPECT_EQ(twice.status, 0) << twice.err;
  const Result reset = run(chat, "introduce yourself\n/reset\nWhat did you say?\n");
  EXPECT_EQ(reset.status, 0) << reset.err;
  const Result alone = run(chat, "What did you say?\n");
  // After /reset the question begins a conversation; in `twice` it continues one.
  EXPECT_TRUE(reset.out.ends_with(alone.out));
  EXPECT_FALSE(twice.out.ends_with(alone.out));
  EXPECT_EQ(twice.out.substr(0, twice.out.find('\n')), reset.out.substr(0, reset.out.find('\n')));
}

TEST(ChatCommand, OptionsOverrideTheCheckpointsSamplingValues) {
  // A copy of the model with another generation_config.json.
  const std::string folder =
      ::testing::TempDir() + "/nanovllm_chat_model_" + std::to_string(::getpid());
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  for (const auto& entry : std::filesystem::directory_iterator(kTinyTales))
    if (entry.path().filename() != "generation_config.json")
      std::filesystem::create_symlink(entry.path(),
                                      std::filesystem::path(folder) / entry.path().filename());
  std::ofstream(folder + "/generation_config.json")
      << R"({"eos_token_id": [8168, 8166], "temperature": 1.5, "top_k": 1, "max_new_tokens": 5})";
  const auto chat = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {"chat", folder, "--sample-seed", "4"});
    const Result r = run(options, "introduce yourself\n");
    EXPECT_EQ(r.status, 0) << r.err;
    return r.out;
  };
  // top_k 1 is greedy.
  const std::string greedy = chat({"--temperature", "0"});
  EXPECT_EQ(chat({}), greedy);
  EXPECT_NE(chat({"--generation-config", "vllm", "--temperature", "1.5"}), greedy);
  EXPECT_NE(chat({"--top-k", "0"}), greedy);
  EXPECT_NE(chat({"--override-generation-config", R"({"top_k": 0})"}), greedy);
  EXPECT_EQ(chat({"--generation-config", "vllm", "--override-generation-config",
                  R"({"temperature": 0, "max_new_tokens": 5})"}),
            greedy);
  EXPECT_EQ(chat({"--generation-config", folder}), greedy);
  EXPECT_GT(chat({"--temperature", "0", "--max-tokens", "30"}).size(), greedy.size());
}

TEST(ChatCommand, RefusalsOfOptionsDoNotNameTheCheckpointsFile) {
  const auto expect_refused = [](std::vector<std::string> options, const std::string& error) {
    options.insert(options.begin(), {"chat", kTinyTales});
    const Result r = run(options);
    EXPECT_EQ(r.status, 2);
    EXPECT_EQ(r.err, "error: " + error + "\n");
    EXPECT_EQ(r.out, "");
  };
  expect_refused({"--temperature", "-1"}, "temperature is -1; it must be at least 0");
  expect_refused({"--min-tokens", "10", "--max-tokens", "9"},
                 "min_tokens is 10; it must be at most max_tokens, 9");
  expect_refused({"--generation-config", "none"},
                 "--generation-config is 'none'; it must be auto, vllm, or a folder with a "
                 "generation_config.json");
  expect_refused({"--override-generation-config", "[]"},
                 "--override-generation-config must be a JSON object, not []");
  expect_refused(
      {"--override-generation-config", R"({"top_kk": 3})"},
      "--override-generation-config: \"top_kk\" is not one of temperature, top_p, top_k, "
      "min_p, max_new_tokens, repetition_penalty; did you mean 'top_k'?");
  expect_refused({"--override-generation-config.top_p", "7"},
                 "--override-generation-config: top_p is 7; it must be above 0 and at most 1");
  // max_tokens has no limit in a chat, so --min-tokens has none either.
  const Result r = run({"chat", kTinyTales, "--sample-seed", "4", "--min-tokens", "100"},
                       "introduce yourself\n");
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_GT(r.out.size(), 200u);
}

TEST(ChatCommand, ErrorsAreOneLineAndTheConversationContinues) {
  const Result r = run({"chat", kTinyTales, "--max-model-len", "64", "--max-tokens", "5"},
                       "/foo\n" + std::string(4'000, 'x') + "\nhello\n");
  EXPECT_EQ(r.status, 2);
  EXPECT_EQ(r.num_error_lines(), 2) << r.err;
  EXPECT_THAT(r.err, HasSubstr("'/foo' is not a command"));
  EXPECT_THAT(r.err, HasSubstr("/reset"));
  EXPECT_NE(r.out, "");
}

TEST(ChatCommand, InterruptEndsTheAnswerAndKeepsWhatWasPrinted) {
  const Result r = Process{
      .input = "tell me a story\n", .signal_when = [](const std::string& out) {
        return out.empty() ? 0 : SIGINT;
      }}.run({"chat", kTinyTales, "--ignore-eos"});
  EXPECT_EQ(r.status, 130);
  EXPECT_EQ(r.err, "");
  EXPECT_TRUE(r.out.ends_with("\n"));
}

}  // namespace
}  // namespace nanovllm::testing
