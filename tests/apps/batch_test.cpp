// Files of prompts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "batch.h"

namespace nanovllm::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string error_of(const std::string& line) {
  const Result r = run(generate({"--prompts-file", "-", "--json"}), line + "\n");
  EXPECT_EQ(r.status, 2) << line;
  EXPECT_EQ(r.err, "error: 1 of 1 prompts refused\n");
  return lines(r.out).at(0).value("error", "");
}

TEST(PromptsFile, OtherFieldsArePassedThrough) {
  const Result r = run(generate({"--prompts-file", "-", "--json"}),
                       R"({"id": "a", "prompt": "Once", "max_tokens": 2, "tags": {"x": [1, null]}})"
                       "\n"
                       R"({"custom_id": 7, "promt": "Once"})"
                       "\n"
                       R"({"prompt": "Once", "max_tokens": 1, "index": 9, "error": "e", "text": 1})"
                       "\n");
  EXPECT_EQ(r.status, 2);
  EXPECT_EQ(r.err, "error: 1 of 3 prompts refused\n");
  const std::vector<Json> out = lines(r.out);
  ASSERT_EQ(out.size(), 3u);
  EXPECT_EQ(out[0]["id"], "a");
  EXPECT_EQ(out[0]["tags"], Json::parse(R"({"x": [1, null]})"));
  EXPECT_EQ(out[0]["token_ids"].size(), 2u);
  EXPECT_FALSE(out[0].contains("max_tokens"));
  EXPECT_EQ(out[1]["custom_id"], 7);
  EXPECT_THAT(out[1]["error"].get<std::string>(), HasSubstr("custom_id, promt"));
  EXPECT_EQ(indices(out), (std::vector{0, 1, 2}));  // the result's own fields have precedence
  EXPECT_FALSE(out[2].contains("error"));
  EXPECT_TRUE(out[2]["text"].is_string());
}

TEST(PromptsFile, ExamplesRun) {
  for (const char* name : {"batch.jsonl", "openai_batch.jsonl"}) {
    const std::string path = std::string(NANOVLLM_SOURCE_DIR) + "/examples/" + name;
    const Result r = run(generate({"--chat", "--prompts-file", path, "--json"}));
    EXPECT_EQ(r.status, 0) << r.out;
    EXPECT_EQ(r.err, "");
  }
}

TEST(PromptsFile, TextIsAUsersMessageWithChat) {
  const Result r =
      run(generate({"--chat", "--prompts-file", "-", "--json", "--max-tokens", "1"}),
          R"({"prompt": "Hi", "enable_thinking": false})"
          "\n"
          R"({"messages": [{"role": "user", "content": "Hi"}], "enable_thinking": false})"
          "\n"
          R"({"body": {"prompt": "Hi"}})"
          "\n");
  ASSERT_EQ(r.status, 0) << r.err;
  const std::vector<Json> out = lines(r.out);
  EXPECT_EQ(out.at(0)["prompt_token_ids"], out.at(1)["prompt_token_ids"]);
  EXPECT_LT(out.at(2)["prompt_token_ids"].size(), 5u);  // as in OpenAI's API for completions
}

TEST(Text, IsShownAsPythonsReprShowsIt) {
  const std::string prompt = "it's \\ \u00e9\u6d77\U0001f600 \u00a0\u200b\u2028\ue000\U000e0001\n";
  EXPECT_THAT(run(generate({"--prompt", prompt, "--max-tokens", "1"})).out,
              StartsWith("\nPrompt: \"it's \\\\ \u00e9\u6d77\U0001f600 "
                         "\\xa0\\u200b\\u2028\\ue000\\U000e0001\\n\"\n"));
}

TEST(PromptsFile, MisspeltParameterIsPassedThroughWithAWarning) {
  const std::string line = R"({"prompt": "Once", "max_tokens": 1, "temprature": 0, "topic": "t"})"
                           "\n";
  const Result r = run(generate({"--prompts-file", "-", "--json"}), line + line);
  EXPECT_EQ(r.status, 0);
  EXPECT_EQ(r.err,
            "warning: line 1: \"temprature\" is only copied to the result; did you mean "
            "temperature?\n");
  EXPECT_EQ(lines(r.out).at(1)["temprature"], 0);
}

TEST(PromptsFile, SamplingFieldsMayStandAtTheTopLevel) {
  const Result r = run(generate({"--prompts-file", "-", "--json", "--max-tokens", "9"}),
                       R"({"prompt": "Once", "max_tokens": 2, "ignore_eos": true})"
                       "\n"
                       R"({"prompt": "Once", "ignore_eos": true, "sampling_params": {"n": 2}})"
                       "\n");
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(lines(r.out).at(0)["token_ids"].size(), 2u);
  EXPECT_EQ(lines(r.out).at(1)["outputs"].size(), 2u);
  EXPECT_EQ(lines(r.out).at(1)["usage"], Json::parse(R"({"prompt_tokens": 1,
            "completion_tokens": 18, "cached_tokens": 0})"));
  EXPECT_EQ(error_of(R"({"prompt": "a", "seed": 1, "sampling_params": {"seed": 2}})"),
            "line 1: seed is given twice");
  EXPECT_THAT(error_of(R"({"prompt": "a", "temperature": "hot"})"),
              HasSubstr("line 1: temperature must be a number"));
  EXPECT_THAT(error_of(R"({"prompt": "a", "guided_choice": "b"})"),
              HasSubstr("line 1: guided_choice must be a list"));
  EXPECT_THAT(error_of(R"({"prompt": "a", "sampling_params": {"structured_outputs": {}}})"),
              HasSubstr("line 1: structured_outputs has no form"));
}

TEST(PromptsFile, ParametersOfVllmThatAreMissingHereMayHaveTheirDefault) {
  const Result r = run(generate({"--prompts-file", "-", "--json"}),
                       R"({"prompt": "Once", "max_tokens": 1, "truncate_prompt_tokens": null,)"
                       R"( "sampling_params": {"include_stop_str_in_output": false,)"
                       R"( "spaces_between_special_tokens": true, "best_of": 1}})"
                       "\n");
  EXPECT_EQ(r.status, 0) << r.out;
  EXPECT_FALSE(lines(r.out).at(0).contains("truncate_prompt_tokens"));
  EXPECT_EQ(error_of(R"({"prompt": "a", "include_stop_str_in_output": true})"),
            "line 1: include_stop_str_in_output true is not supported");
  EXPECT_EQ(error_of(R"({"prompt": "a", "sampling_params": {"truncate_prompt_tokens": 9}})"),
            "line 1: truncate_prompt_tokens 9 is not supported");
  EXPECT_THAT(error_of(R"({"prompt": "a", "sampling_params": {"temprature": 1}})"),
              HasSubstr("'temprature' is not a sampling parameter"));
}

TEST(PromptsFile, OpenAisBatchLinesWork) {
  const std::string start =
      R"({"custom_id": "c", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", )"
      R"("messages": [{"role": "user", "content": "hello"}])";
  const Result r = run(
      generate({"--prompts-file", "-", "--json"}),
      start +
          R"(, "max_tokens": 9, "max_completion_tokens": 3, "logprobs": true, "top_logprobs": 2, "stream": true,)" +
          R"("response_format": {"type": "text"}, "user": "u", "stop": null}})" + "\n" +
          R"({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3})" + "\n" +
          R"({"custom_id": "d", "url": "/v1/completions", "body": {"prompt": "Once", "max_tokens": 2}})" +
          "\n" + R"({"body": {"prompt": [5, 6], "max_tokens": 2, "logprobs": 1}})" + "\n" +
          R"({"body": {"prompt": ["Once"], "max_tokens": 2}})" + "\n");
  ASSERT_EQ(r.status, 0) << r.err << r.out;
  const std::vector<Json> out = lines(r.out);
  ASSERT_EQ(out.size(), 5u);
  EXPECT_EQ(out[0]["custom_id"], "c");
  EXPECT_FALSE(out[0].contains("method"));
  EXPECT_EQ(out[0]["token_ids"], out[1]["token_ids"]);
  EXPECT_EQ(out[0]["token_ids"].size(), 3u);
  EXPECT_EQ(out[0]["logprobs"][0].size(), 3u);
  EXPECT_EQ(out[0]["outputs"][0]["logprobs"], out[0]["logprobs"]);
  EXPECT_EQ(out[2]["token_ids"].size(), 2u);
  EXPECT_EQ(out[3]["prompt_token_ids"], Json({5, 6}));
  EXPECT_EQ(out[3]["logprobs"][0].size(), 2u);
  EXPECT_EQ(out[4]["prompt_token_ids"], out[2]["prompt_token_ids"]);

  for (const auto& [more, what] :
       {std::pair(R"("response_format": {"type": "json_schema"})", "line 1: body: response_format"),
        std::pair(R"("tool_choice": "required")", "tool_choice \"required\" is not supported"),
        std::pair(R"("top_logprobs": 2)", "top_logprobs needs logprobs"),
        std::pair(R"("tools": {})", "line 1: body: tools must be a list, not {}"),
        std::pair(R"("prompt": "a")", "exactly one of messages and prompt")})
    EXPECT_THAT(error_of(start + ", " + more + "}}"), HasSubstr(what));
  EXPECT_THAT(error_of(R"({"url": "/v1/embeddings", "body": {"input": "a"}})"),
              HasSubstr("url is \"/v1/embeddings\""));
  EXPECT_THAT(error_of(R"({"url": "/v1/completions", "body": {"prompt": ["a", "b"]}})"),
              HasSubstr("one text or one list of token ids"));
  EXPECT_THAT(error_of(R"({"body": 5})"), HasSubstr("line 1: body: must be an object"));
  const Result odd = run(generate({"--prompts-file", "-", "--json"}),
                         R"({"body": {"prompt": "a", "max_tokens": 1, "temprature": 2, "x": 1}})"
                         "\n");
  EXPECT_EQ(odd.status, 0) << odd.out;
  EXPECT_THAT(odd.err,
              HasSubstr("line 1: body: \"temprature\" is ignored; did you mean temperature?"));
}

TEST(Chat, TakesTheCheckpointsSamplingValuesAndDoesNotCutTheAnswer) {
  const auto answer = [](const std::vector<std::string>& more) {
    std::vector<std::string> args = {"generate",
                                     kTinyTales,
                                     "--dtype",
                                     "float32",
                                     "--chat",
                                     "--prompt",
                                     "tell me a story about a fox",
                                     "--no-thinking",
                                     "--sample-seed",
                                     "1",
                                     "--json"};
    args.insert(args.end(), more.begin(), more.end());
    const Result r = run(args);
    EXPECT_EQ(r.status, 0) << r.err;
    return lines(r.out).at(0)["token_ids"];
  };
  const std::vector<std::string> checkpoint = {"--temperature", "0.6", "--top-k", "20",
                                               "--top-p",       "0.95"};
  const Json whole = answer({});
  EXPECT_GT(whole.size(), 64u);
  EXPECT_EQ(whole, answer(checkpoint));
  EXPECT_EQ(answer({"--max-tokens", "3"}).size(), 3u);
  const Json plain = answer({"--generation-config", "vllm"});
  EXPECT_NE(plain, whole);
  EXPECT_EQ(plain, answer({"--temperature", "1", "--top-k", "0", "--top-p", "1"}));
}

TEST(Options, ThatNeedAnotherAreRefused) {
  for (const auto& [args, what] : std::vector<std::pair<std::vector<std::string>, const char*>>{
           {{"--logprobs", "1"}, "--logprobs needs --json or --output"},
           {{"--prompt-logprobs", "1"}, "--prompt-logprobs needs --json or --output"},
           {{"--system", "Be short."}, "--system needs --chat"},
           {{"--no-thinking"}, "--no-thinking needs --chat"},
           {{"--generation-config", "vllm"}, "--generation-config needs --chat"},
           {{"--unordered"}, "--unordered needs several prompts"}}) {
    std::vector<std::string> all = {"generate", kTinyTales, "--prompt", "a"};
    all.insert(all.end(), args.begin(), args.end());
    const Result r = run(all);
    EXPECT_EQ(r.status, 2);
    EXPECT_EQ(r.num_error_lines(), 1) << r.err;
    EXPECT_THAT(r.err, HasSubstr(what));
  }
  const Result unused = run(generate({"--prompts-file", "-", "--system", "Be short.", "--quiet"}),
                            "{\"prompt\": \"a\", \"max_tokens\": 1}\n");
  EXPECT_THAT(unused.err, StartsWith("warning: no line has messages"));
}

TEST(PromptsFile, SystemOptionIsForConversationsWithoutASystemMessage) {
  const Result r = run(
      generate({"--prompts-file", "-", "--system", "Be short.", "--json", "--max-tokens", "1"}),
      R"({"messages": [{"role": "user", "content": "Hi"}]})"
      "\n"
      R"({"messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]})"
      "\n");
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(lines(r.out).at(0)["prompt_token_ids"], lines(r.out).at(1)["prompt_token_ids"]);
}

const char* const kLine = R"({"prompt": "Once", "max_tokens": 2})";

// The second line is written only after the first one is answered, and half of it waits for the
// rest.
TEST(Stdin, IsAnsweredAsItComes) {
  const TempFile out;
  const auto wait_for = [&](int count) {
    return "while [ \"$(grep -c . " + out.path() + ")\" -lt " + std::to_string(count) +
           " ]; do sleep 0.05; done; ";
  };
  const std::string line = std::string("'") + kLine + "'";
  const Result r = run_in_shell(
      ": > " + out.path() + "; { echo " + line + "; " + wait_for(1) +
          "printf '{\"prompt\": '; sleep 0.1; echo '\"a\", \"max_tokens\": 1}'; " + wait_for(2) +
          "printf %s " + line + "; } | timeout 120 \"$@\" > " + out.path(),
      generate({"--prompts-file", "-", "--json"}));
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(indices(lines(out.read())), (std::vector{0, 1, 2}));
}

TEST(Stdin, MayBeEndless) {
  const Result r = run_in_shell(std::string("yes '") + kLine + "' | \"$@\" | head -n 3",
                                generate({"--prompts-file", "-", "--json"}));
  EXPECT_EQ(lines(r.out).size(), 3u);
  EXPECT_EQ(r.err, "");
  // Lines that need no step of the engine do not hide Ctrl-C.
  const Result blank = run_in_shell("yes '' | timeout -s INT 1 \"$@\"; [ $? = 124 ]",
                                    generate({"--prompts-file", "-", "--json"}));
  EXPECT_EQ(blank.status, 0);
}

}  // namespace
}  // namespace nanovllm::testing
