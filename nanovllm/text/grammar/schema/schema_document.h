#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "nanovllm/base/error.h"
#include "nanovllm/base/json.h"

namespace nanovllm::grammar {

/// A JSON document with a schema: what its references mean, and where in it something stands.
class SchemaDocument {
 public:
  /// Throws UserError for more than 1 MiB of text and for more than 200 levels.
  SchemaDocument(const Json& root, std::string where);

  const Json& root() const { return root_; }
  const std::string& where() const { return where_; }
  /// Whether `items` may be a list, and whether a $ref hides the keywords beside it: drafts 3 to 7.
  bool is_old() const { return is_old_; }
  /// The schema that schema["$ref"] names. Throws UserError if it is not in this document.
  const Json& target(const Json& schema) const;

  /// "where: #/properties/a": the place of a value of this document, for messages.
  std::string place(const Json& value) const;
  /// What parse(where) returns. If it throws, it is called again with the place of `value`: to find
  /// a place takes as long as to read the document.
  template <class Parse>
  auto located(const Json& value, Parse parse) const {
    try {
      return parse(where_);
    } catch (const UserError&) {
      return parse(place(value));
    }
  }
  /// Throws UserError "where: #/properties/a: keyword why".
  [[noreturn]] void refuse(const Json& schema, std::string_view keyword,
                           std::string_view why) const;

 private:
  void index(const Json& value, const Json* resource, int depth);

  const Json& root_;
  std::string where_;
  bool is_old_ = false;
  /// Schemas by their absolute $id, and by the resource that contains them and their $anchor.
  std::unordered_map<std::string, const Json*> ids_;
  std::unordered_map<std::string, const Json*> anchors_;
  /// What is known about references: objects are searched from their beginning to their end.
  mutable std::unordered_map<std::string, const Json*> targets_;
  /// The resource in which a schema with a $ref stands: the root, or a schema with an $id.
  std::unordered_map<const Json*, const Json*> resources_;
};

}  // namespace nanovllm::grammar
