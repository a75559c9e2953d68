// Answers that are held to a form, on a real model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "goldens.h"
#include "nanovllm/base/json.h"
#include "nanovllm/llm.h"

namespace nanovllm::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::ThrowsMessage;

constexpr const char* kPerson = R"({"type": "object", "properties": {
    "name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 3}},
    "required": ["name", "age", "tags"], "additionalProperties": false})";

EngineConfig constraint_config() {
  return {.device = "cpu", .dtype = "float32", .kv_cache_memory_bytes = 64 << 20};
}

SamplingParams drawn(const StructuredOutputs& form) {
  SamplingParams params;
  params.max_tokens = 200;
  params.seed = 5;
  params.constraint = form;
  return params;
}

void expect_person(const CompletionOutput& answer) {
  if (answer.finish_reason != "stop") return;  // cut within one of its numbers
  const Json person = parse_json(answer.text, answer.text);
  EXPECT_LE(person["name"].string().size(), 4 * 12u);
  EXPECT_TRUE(person["age"].is_number_integer());
  EXPECT_GE(person["tags"].size(), 1u);
  EXPECT_LE(person["tags"].size(), 3u);
  EXPECT_EQ(person.size(), 3u);
}

TEST(ConstrainedAnswers, HaveTheFormInEveryChoice) {
  LLM llm(kTinyTales, constraint_config());
  SamplingParams params = drawn({.json = kPerson, .disable_any_whitespace = true});
  params.n = 6;
  const RequestOutput output = llm.generate({"A person:"}, params)[0];
  int num_ended = 0;
  for (const CompletionOutput& answer : output.outputs) {
    expect_person(answer);
    num_ended += answer.finish_reason == "stop" ? 1 : 0;
  }
  EXPECT_GT(num_ended, 0);
  EXPECT_NE(output.outputs[0].text, output.outputs[1].text);
}

// The tokens are a function of the logits, the parameters and the form.
TEST(ConstrainedAnswers, AreTheSameHoweverTheyAreComputed) {
  std::vector<std::string> prompts;
  std::vector<SamplingParams> params;
  for (int i = 0; i < 12; ++i) {
    prompts.push_back("Story number " + std::to_string(i) + ":");
    if (i % 3 == 0) params.push_back(drawn({.json = kPerson}));
    else if (i % 3 == 1) params.push_back(drawn({.regex = "( [a-z]+){20}\\."}));
    else params.push_back(drawn({})), params.back().constraint.reset();
    params.back().seed = static_cast<uint64_t>(i);
    params.back().n = 2;
  }
  const auto answers = [&](const EngineConfig& config, int64_t* preemptions = nullptr) {
    LLM llm(kTinyTales, config);
    std::vector<std::vector<int32_t>> ids;
    for (int round = 0; round < 2; ++round)  // the second one finds prompts in the cache
      for (const RequestOutput& output : llm.generate(prompts, params, false))
        for (const CompletionOutput& answer : output.outputs) ids.push_back(answer.token_ids);
    if (preemptions != nullptr) *preemptions = llm.stats().preemptions;
    return ids;
  };
  const auto want = answers(constraint_config());
  EngineConfig config = constraint_config();
  config.async_scheduling = false;
  EXPECT_EQ(answers(config), want) << "without async scheduling";
  config = constraint_config();
  config.max_num_seqs = 5;
  config.max_num_batched_tokens = 16;
  EXPECT_EQ(answers(config), want) << "in small steps";
  config = constraint_config();
  config.block_size = 16;
  config.num_gpu_blocks_override = 40;
  config.max_model_len = 256;
  int64_t preemptions = 0;
  EXPECT_EQ(answers(config, &preemptions), want) << "with preemptions";
  EXPECT_GT(preemptions, 0);
}

TEST(ConstrainedAnswers, EndWhereNothingCanFollow) {
  LLM llm(kTinyTales, constraint_config());
  SamplingParams params = drawn({.choice = {"yes", "yes sir"}});
  params.ignore_eos = true;  // there is nothing else to draw
  RequestOutput output = llm.generate({"Well,"}, params)[0];
  EXPECT_THAT(output.text, MatchesRegex("yes( sir)?"));
  EXPECT_EQ(output.finish_reason, "stop");
  params = drawn({.regex = "[0-9]{4}"});
  params.min_tokens = 100;
  output = llm.generate({"Well,"}, params)[0];
  EXPECT_THAT(output.text, MatchesRegex("[0-9][0-9][0-9][0-9]"));
  params = drawn({.regex = "[0-9]+"});
  params.max_tokens = 5;
  params.logit_bias = {};
  output = llm.generate({"Well,"}, params)[0];
  EXPECT_THAT(output.text, MatchesRegex("[0-9]+"));
}

TEST(ConstrainedAnswers, HoldAfterAThoughtThatThePromptBegins) {
  LLM llm(kTinyTales, constraint_config());
  const auto ids = llm.tokenizer().encode("<think>\n");
  if (ids.size() > 4) GTEST_SKIP() << "the tokenizer has no token <think>";
  SamplingParams params = drawn({.choice = {"yes"}});
  params.max_tokens = 30;
  const std::string open = llm.generate({"Is it? <think>\n"}, params)[0].text;
  EXPECT_THAT(open, ::testing::Not(MatchesRegex("yes")));
  EXPECT_EQ(llm.generate({"Is it? <think>\n\n</think>\n\n"}, params)[0].text, "yes");
  EXPECT_EQ(llm.generate({"Is it? "}, params)[0].text, "yes");
}

TEST(ConstrainedAnswers, RefuseFormsAndLeaveTheEngineAlive) {
  LLM llm(kTinyTales, constraint_config());
  const auto refused = [&](const StructuredOutputs& form, const char* why) {
    EXPECT_THAT([&] { llm.generate({"x"}, drawn(form)); },
                ThrowsMessage<UserError>(HasSubstr(why)));
  };
  refused({.regex = "("}, "structured_outputs");
  refused({.json = R"({"properties": {"a": {"uniqueItems": true}}})"}, "#/properties/a");
  refused({.json = "false"}, "");
  refused({.json = "{"}, "JSON");
  refused({.grammar = "root ::= missing"}, "missing");
  refused({.regex = "[^\\s\\S]"}, "");
  SamplingParams params = drawn({.choice = {"yes"}});
  params.allowed_token_ids = {llm.tokenizer().encode("no")};
  EXPECT_EQ(llm.generate({"x"}, params)[0].finish_reason, "error");
  EXPECT_EQ(llm.generate({"x"}, drawn({.choice = {"yes"}}))[0].text, "yes");
}

}  // namespace
}  // namespace nanovllm::testing
