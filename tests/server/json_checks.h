#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>

#include "nanovllm/base/json.h"

// The required keys of OpenAI's schemas and their types. Each function parses a response, checks it
// and returns it.
namespace nanovllm::server::testing {

/// Expects a key whose value has one of the types, which are named as in nlohmann's type_name().
inline void expect_key(const Json& object, const char* key,
                       std::initializer_list<std::string_view> types) {
  ASSERT_TRUE(object.is_object() && object.contains(key)) << key << " in " << object;
  const std::string_view type = object[key].type_name();
  EXPECT_TRUE(std::ranges::find(types, type) != types.end()) << key << " in " << object;
}

inline Json checked_head(const std::string& text, const char* object) {
  EXPECT_EQ(text.find('\n'), std::string::npos);  // a newline would end an event of a stream
  const Json json = parse_json(text, "response");
  expect_key(json, "id", {"string"});
  expect_key(json, "created", {"number"});
  expect_key(json, "model", {"string"});
  expect_key(json, "choices", {"array"});
  EXPECT_EQ(json["object"], object);
  if (!json.contains("usage") || json["usage"].is_null()) return json;
  for (const char* count : {"prompt_tokens", "completion_tokens", "total_tokens"})
    expect_key(json["usage"], count, {"number"});
  expect_key(json["usage"]["prompt_tokens_details"], "cached_tokens", {"number"});
  return json;
}

inline void check_finish_reason(const Json& choice) {
  expect_key(choice, "index", {"number"});
  expect_key(choice, "finish_reason", {"string", "null"});
  expect_key(choice, "logprobs", {"object", "null"});
}

inline void check_chat_logprobs(const Json& logprobs) {
  if (logprobs.is_null()) return;
  expect_key(logprobs, "content", {"array"});
  expect_key(logprobs, "refusal", {"null"});
  const auto check_token = [](const Json& token) {
    expect_key(token, "token", {"string"});
    expect_key(token, "logprob", {"number"});
    expect_key(token, "bytes", {"array"});
  };
  for (const Json& token : logprobs["content"]) {
    check_token(token);
    expect_key(token, "top_logprobs", {"array"});
    for (const Json& other : token["top_logprobs"]) check_token(other);
  }
}

inline Json checked_chat_response(const std::string& text) {
  const Json json = checked_head(text, "chat.completion");
  for (const Json& choice : json["choices"]) {
    check_finish_reason(choice);
    check_chat_logprobs(choice["logprobs"]);
    EXPECT_EQ(choice["message"]["role"], "assistant");
    expect_key(choice["message"], "content", {"string", "null"});
    expect_key(choice["message"], "refusal", {"string", "null"});
  }
  return json;
}

inline Json checked_chat_chunk(const std::string& text) {
  const Json json = checked_head(text, "chat.completion.chunk");
  for (const Json& choice : json["choices"]) {
    check_finish_reason(choice);
    check_chat_logprobs(choice["logprobs"]);
    expect_key(choice, "delta", {"object"});
    if (!choice["delta"].contains("tool_calls")) continue;
    for (const Json& call : choice["delta"]["tool_calls"]) expect_key(call, "index", {"number"});
  }
  return json;
}

/// A whole response or a chunk; in this API they have the same schema.
inline Json checked_completion(const std::string& text) {
  const Json json = checked_head(text, "text_completion");
  for (const Json& choice : json["choices"]) {
    check_finish_reason(choice);
    expect_key(choice, "text", {"string"});
    if (choice["logprobs"].is_null()) continue;
    const size_t num_tokens = choice["logprobs"]["tokens"].size();
    for (const char* list : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
      expect_key(choice["logprobs"], list, {"array"});
      EXPECT_EQ(choice["logprobs"][list].size(), num_tokens) << list;
    }
  }
  return json;
}

}  // namespace nanovllm::server::testing
