#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/base/json.h"

namespace nanovllm {

/// A tokenizer.json, its two large parts apart: reading them into a DOM would take longer than all
/// the rest of loading.
struct TokenizerJson {
  struct Token {
    std::string_view text;
    int32_t id;
  };
  std::vector<Token> vocab;  ///< model.vocab in the file's order
  std::vector<std::pair<std::string_view, std::string_view>>
      merges;   ///< model.merges, "a b" or ["a", "b"]
  Json fields;  ///< everything else; objects as they are in the file
  std::deque<std::string>
      unescaped;  ///< what the views point into where they cannot point into the file
};

/// Ids are 0 .. kMaxTokens - 1, eight times the largest published vocabulary: tables are as large
/// as the largest id.
inline constexpr int32_t kMaxTokens = 1 << 21;

/// `text` must outlive the result. Throws UserError "<where>: <what>".
TokenizerJson read_tokenizer_json(std::string_view text, const std::string& where);

/// Fields of a component. A value of another type, or none where there is no default, is a
/// UserError.
const Json& field(const Json& json, const char* key, const std::string& where);
std::string string_field(const Json& json, const char* key, const std::string& where);
bool bool_field(const Json& json, const char* key, bool otherwise, const std::string& where);

/// The components of a pipeline in their order: none for null, a Sequence's members (`list_key`
/// names their list), else `json` itself. Each is an object with a string `type`.
std::vector<const Json*> components(const Json& json, const char* list_key,
                                    const std::string& where);

}  // namespace nanovllm
