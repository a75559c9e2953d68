#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/base/json.h"

namespace nanovllm {

/// Ids are less than kMaxTokens, because tables are as large as the largest id. The largest
/// published vocabulary has an eighth of this.
inline constexpr int32_t kMaxTokens = 1 << 21;

/// An object of tokenizer.json, read field by field. A missing field or a value of another type is
/// a UserError that begins with `where`. The Json must outlive it.
struct JsonObject {
  const Json& json;
  std::string where;

  const Json& at(const std::string& key) const;
  JsonObject object(const std::string& key) const { return {at(key), where + ": " + key}; }
  std::string string(const std::string& key) const;
  bool flag(const std::string& key, bool otherwise) const;
  /// A string of one character.
  std::string character(const std::string& key) const;
  int32_t token_id(const Json& id) const;  // `id` is any value inside of the object
};

/// One step of a pipeline of tokenizer.json; `type` names its kind.
struct Component : JsonObject {
  std::string type;
};

/// A tokenizer.json. The vocabulary and the merges are not part of the Json: building a Json from
/// them would take longer than everything else in loading.
struct TokenizerJson {
  struct Token {
    std::string_view text;
    int32_t id;
  };
  using Merge = std::pair<std::string_view, std::string_view>;

  std::string where;             ///< the file's name, with which error messages begin
  std::vector<Token> vocab;      ///< model.vocab in the file's order
  std::vector<Merge> merges;     ///< model.merges, "a b" or ["a", "b"], the lowest rank first
  Json fields;                   ///< everything else, as it is in the file
  Json config = Json::object();  ///< tokenizer_config.json, if there is one
  std::deque<std::string> unescaped{};  ///< strings with escapes, to which views cannot point

  /// The components of the pipeline `name` in their order: none for null, the members of a
  /// Sequence (which are in its field `list`), otherwise the single component. Throws UserError for
  /// a type that is not among `supported`.
  std::vector<Component> components(const char* name, const char* list,
                                    const std::vector<std::string_view>& supported) const;
  /// Calls use(second, component) for each of the components of the pipeline `name`. `second` comes
  /// from a table of pairs of a supported type and what to use for it.
  template <class Table, class Use>
  void for_each_component(const char* name, const char* list, const Table& table, Use&& use) const {
    std::vector<std::string_view> types;
    for (const auto& [type, _] : table) types.push_back(type);
    for (const Component& component : components(name, list, types))
      for (const auto& [type, value] : table)
        if (type == component.type) use(value, component);
  }
};

/// Reads `text`, which must outlive the result. Throws UserError "<where>: <what>".
TokenizerJson read_tokenizer_json(std::string_view text, const std::string& where);

}  // namespace nanovllm
