// `generate --output-format openai`. tests/clients/test_schemas.py compares the lines with OpenAI's
// own description of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "batch.h"

namespace nanovllm::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string chat_line(const std::string& id, const std::string& more = "") {
  return R"({"custom_id": ")" + id +
         R"(", "method": "POST", "url": "/v1/chat/completions", "body": )"
         R"({"model": "any", "messages": [{"role": "user", "content": "Hello"}], "temperature": 0, )"
         R"("max_tokens": 5)" +
         more + "}}\n";
}

std::string completion(const std::string& id, const std::string& more) {
  return R"({"custom_id": ")" + id +
         R"(", "method": "POST", "url": "/v1/completions", "body": )"
         R"({"model": "any", "temperature": 0, )" +
         more + "}}\n";
}

std::vector<std::string> openai(std::vector<std::string> more) {
  more.insert(more.end(), {"--output-format", "openai"});
  return generate(more);
}

TEST(OpenAiBatch, LinesHaveTheDocumentedFields) {
  const TempFile in(
      chat_line("a") + completion("b", R"("prompt": ["Once", [327, 1874]], "n": 2)") +
      chat_line("c", R"(, "temperature": 5e999)") + chat_line("d", R"(, "top_p": 7)") +
      "{\"custom_id\": \"e\"}\nnot JSON\n" +
      R"({"custom_id": "f", "url": "/v1/other", "body": {"prompt": "a"}})"
      "\n" +
      R"({"custom_id": "g", "method": "GET", "body": {"prompt": "a"}})"
      "\n" +
      R"({"custom_id": "h", "body": {"prompt": "a", "stream": true, "max_tokens": 2}})");
  const Result r = run(openai({"--prompts-file", in.path()}));
  EXPECT_EQ(r.status, 2);
  EXPECT_EQ(r.err, "error: 6 of 9 prompts refused\n");
  const std::vector<Json> out = lines(r.out);
  ASSERT_EQ(out.size(), 9u);
  const char* const ids = "abcdefgh";
  for (size_t i = 0; i < out.size(); ++i) {
    EXPECT_THAT(keys(out[i]), ElementsAre("id", "custom_id", "response", "error"));
    EXPECT_EQ(out[i]["id"], "batch_req_" + std::to_string(i));
    const bool is_request = i != 2 && i != 4 && i != 5;  // 5e999 is not valid JSON
    EXPECT_EQ(out[i]["response"].is_null(), !is_request) << out[i];
    EXPECT_EQ(out[i]["error"].is_null(), is_request) << out[i];
    if (is_request)
      EXPECT_THAT(keys(out[i]["response"]), ElementsAre("status_code", "request_id", "body"));
    else EXPECT_THAT(keys(out[i]["error"]), ElementsAre("code", "message"));
  }
  for (const size_t i : {0, 1, 3, 4}) EXPECT_EQ(out[i]["custom_id"], std::string(1, ids[i]));
  EXPECT_EQ(out[5]["custom_id"], Json());
  EXPECT_EQ(out[0]["response"]["status_code"], 200);
  EXPECT_EQ(out[0]["response"]["body"]["object"], "chat.completion");
  EXPECT_EQ(out[0]["response"]["body"]["usage"]["completion_tokens"], 5);
  const Json& completions = out[1]["response"]["body"];
  EXPECT_EQ(completions["object"], "text_completion");
  ASSERT_EQ(completions["choices"].size(), 4u);
  EXPECT_EQ(completions["choices"][3]["index"], 3);
  EXPECT_EQ(completions["usage"]["completion_tokens"], 4 * 16);  // OpenAI's default
  EXPECT_EQ(out[3]["response"]["status_code"], 400);
  EXPECT_EQ(out[3]["response"]["body"]["error"]["param"], "top_p");
  EXPECT_THAT(out[4]["error"]["message"].get<std::string>(), HasSubstr("line 5: has no body"));
  EXPECT_THAT(out[6]["response"]["body"]["error"]["message"].get<std::string>(), HasSubstr("url"));
  EXPECT_THAT(out[7]["response"]["body"]["error"]["message"].get<std::string>(),
              HasSubstr("method"));
  EXPECT_EQ(out[8]["response"]["body"]["object"], "text_completion");
}

TEST(OpenAiBatch, OptionsAreDefaults) {
  const TempFile in(completion("a", R"("prompt": "Once")") +
                    completion("b", R"("prompt": "Once", "max_tokens": 2)"));
  const std::vector<Json> out =
      lines(run(openai({"--prompts-file", in.path(), "--max-tokens", "3", "--ignore-eos"})).out);
  ASSERT_EQ(out.size(), 2u);
  EXPECT_EQ(out[0]["response"]["body"]["usage"]["completion_tokens"], 3);
  EXPECT_EQ(out[1]["response"]["body"]["usage"]["completion_tokens"], 2);
  // A conversation's defaults are those of the checkpoint.
  const TempFile chats(
      R"({"custom_id": "a", "body": {"messages": [{"role": "user", "content": "Hi"}]}})");
  const std::vector<Json> answer =
      lines(run(openai({"--prompts-file", chats.path(), "--override-generation-config",
                        R"({"max_new_tokens": 4})", "--ignore-eos", "--no-thinking"}))
                .out);
  ASSERT_EQ(answer.size(), 1u);
  EXPECT_EQ(answer[0]["response"]["body"]["usage"]["completion_tokens"], 4);
}

/// The lines without the ids of requests and the times, which are other ones in each run.
std::vector<Json> comparable(const std::string& text) {
  std::vector<Json> all = lines(text);
  for (Json& line : all) {
    if (line["response"].is_null()) continue;
    line["response"].erase("request_id");
    for (const char* name : {"id", "created"}) line["response"]["body"].erase(name);
    for (Json& choice : line["response"]["body"]["choices"]) choice["message"].erase("tool_calls");
  }
  std::ranges::sort(all, {}, [](const Json& line) { return line["id"].get<std::string>(); });
  return all;
}

TEST(OpenAiBatch, IsContinued) {
  std::string requests;
  for (int i = 0; i < 6; ++i)
    requests += i == 3 ? chat_line("3", R"(, "n": 0)") : chat_line(std::to_string(i));
  const TempFile in(requests), out;
  const auto args = openai({"--prompts-file", in.path(), "--output", out.path()});
  EXPECT_EQ(run(args).status, 2);
  const std::string whole = out.read();
  ASSERT_EQ(lines(whole).size(), 6u);
  // All results are there: nothing is computed again, and the exit status is the same.
  const Result again = run(args);
  EXPECT_EQ(again.status, 2);
  EXPECT_THAT(again.err, HasSubstr("has 5 results already"));
  EXPECT_EQ(out.read(), whole);
  // A killed run has left the beginning of the third line.
  const size_t third = whole.find(R"({"id":"batch_req_2")");
  for (const size_t size : {third + 1, third + 15, third + 40}) {
    out.write(whole.substr(0, size));
    EXPECT_EQ(run(args).status, 2);
    EXPECT_EQ(comparable(out.read()), comparable(whole));
  }
  // Zeros after a power failure.
  out.write(whole.substr(0, third + 15) + std::string(100, '\0'));
  EXPECT_THAT(run(args).err, HasSubstr("ended with zero bytes"));
  EXPECT_EQ(comparable(out.read()), comparable(whole));
  // A request that was refused is tried again if it has changed, another one is not taken for it.
  const TempFile corrected(requests.replace(requests.find(R"("n": 0)"), 6, R"("n": 1)"));
  const Result mended = run(openai({"--prompts-file", corrected.path(), "--output", out.path()}));
  EXPECT_EQ(mended.status, 0) << mended.err;
  EXPECT_EQ(lines(out.read()).size(), 7u);
  const TempFile other(chat_line("another"));
  const Result wrong = run(openai({"--prompts-file", other.path(), "--output", out.path()}));
  EXPECT_EQ(wrong.status, 2);
  EXPECT_THAT(wrong.err, HasSubstr("the result with index 0 is that of another prompt"));
  expect_refused(generate({"--prompts-file", in.path(), "--output", out.path()}),
                 "line 1 is not a result of 'nanovllm generate'");
}

TEST(OpenAiBatch, NeedsLinesOfItsOwn) {
  expect_refused({"generate", kTinyTales, "-p", "a", "--output-format", "openai"},
                 "--output-format openai needs --prompts-file");
  const TempFile in(chat_line("a"));
  expect_refused(openai({"--prompts-file", in.path(), "--chat"}), "--chat has no effect with");
  expect_refused(openai({"--prompts-file", in.path(), "--system", "x"}), "--system has no effect");
}

}  // namespace
}  // namespace nanovllm::testing
