#include "nanovllm/params/sampling_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nanovllm/params/structured_json.h"
#include "tests/base/other_values.h"

namespace nanovllm::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// The value as a user writes it on the command line.
template <class T>
Json to_json(const T& value) {
  return value;
}
template <class T>
Json to_json(const std::optional<T>& value) {
  return to_json(*value);  // of a form: params/structured_json.h
}
Json to_json(const std::map<int32_t, double>& value) {
  Json json = Json::object();
  for (const auto& [id, bias] : value) json[std::to_string(id)] = bias;
  return json;
}

TEST(SamplingJson, HasEachField) {
  SamplingParams::for_each_field([&](const FieldInfo& field, auto member) {
    const SamplingParams expected = with_other_value(field, member);
    const Json json = {{field.name, to_json(expected.*member)}};
    EXPECT_EQ(sampling_params_from_json(json, {}, "here"), expected) << json;
    const Json wrong = {{field.name, Json::array({Json::object()})}};
    EXPECT_THAT([&] { sampling_params_from_json(wrong, {}, "here"); },
                ThrowsMessage<UserError>(HasSubstr(std::string("here: ") + field.name)));
  });
}

TEST(SamplingJson, FieldsHaveVllmsNames) {
  const SamplingParams p = sampling_params_from_json(
      Json::parse(
          R"({"temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "max_tokens": 7, "min_tokens": 2,
                      "ignore_eos": true, "stop_token_ids": [3, 4], "logprobs": 2, "prompt_logprobs": null,
                      "n": 3, "seed": 9, "skip_special_tokens": false, "stop": "end",
                      "presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.25,
                      "logit_bias": {"12": -1.5}, "allowed_token_ids": [12, 13], "bad_words": ["no"]})"),
      {}, "here");
  SamplingParams expected;
  expected.temperature = 0.5;
  expected.top_p = 0.9;
  expected.top_k = 5;
  expected.min_p = 0.1;
  expected.max_tokens = 7;
  expected.min_tokens = 2;
  expected.ignore_eos = true;
  expected.stop_token_ids = {3, 4};
  expected.logprobs = 2;
  expected.n = 3;
  expected.seed = 9;
  expected.skip_special_tokens = false;
  expected.stop = {"end"};
  expected.presence_penalty = 0.5;
  expected.frequency_penalty = -0.5;
  expected.repetition_penalty = 1.25;
  expected.logit_bias = {{12, -1.5}};
  expected.allowed_token_ids = {{12, 13}};
  expected.bad_words = {"no"};
  EXPECT_EQ(p, expected);
}

// null means the same as None in vLLM. Fields that are not optional keep their value.
TEST(SamplingJson, NullForMaxTokensIsNoLimit) {
  SamplingParams defaults;
  defaults.max_tokens = 3;
  EXPECT_EQ(
      sampling_params_from_json(Json::parse(R"({"max_tokens": null})"), defaults, "").max_tokens,
      kNoMaxTokens);
}

TEST(SamplingJson, NullKeepsTheDefault) {
  SamplingParams defaults;
  defaults.top_k = 5;
  EXPECT_EQ(
      sampling_params_from_json(Json::parse(R"({"top_k": null, "stop": null})"), defaults, ""),
      defaults);
}

TEST(SamplingJson, OfAnotherTypeIsRefusedWithPlaceAndName) {
  const std::pair<const char*, const char*> bad[] = {
      {R"({"temperature": "1x"})", "temperature"},
      {R"({"max_tokens": 1.5})", "max_tokens"},
      {R"({"n": 99999999999999999999})", "n "},
      {R"({"n": 18446744073709551615})", "n "},
      {R"({"stop_token_ids": [1.5]})", "stop_token_ids"},
      {R"({"ignore_eos": 1})", "ignore_eos"},
      {R"({"top_q": 1})",
       "'top_q' is not a sampling parameter of this build; did you mean 'top_p'?"},
      {R"({"stop": [1]})", "stop"},
      {R"({"logit_bias": {"-3": 1}})", "logit_bias"},
      {R"({"logit_bias": {"3x": 1}})", "logit_bias"},
      {R"({"logit_bias": [[3, 1]]})", "logit_bias"},
      {R"({"allowed_token_ids": []})", "allowed_token_ids"},
      {R"([])", "object"},
  };
  for (const auto& [text, name] : bad)
    EXPECT_THAT([&] { sampling_params_from_json(Json::parse(text), {}, "here"); },
                ThrowsMessage<UserError>(AllOf(HasSubstr("here"), HasSubstr(name))))
        << text;
}

}  // namespace
}  // namespace nanovllm::testing
