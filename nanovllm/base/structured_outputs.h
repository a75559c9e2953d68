#pragma once

#include <optional>
#include <string>
#include <vector>

namespace nanovllm {

/// The form that an answer must have; at most one of the first six is given. The names are vLLM's.
struct __attribute__((visibility("default"))) StructuredOutputs {
  std::optional<std::string> json = {};            ///< a JSON Schema, as a JSON text
  std::optional<std::string> regex = {};           ///< matches the whole answer
  std::vector<std::string> choice = {};            ///< the answer is one of these
  std::optional<std::string> grammar = {};         ///< GBNF, or Lark
  bool json_object = false;                        ///< any JSON object
  std::optional<std::string> structural_tag = {};  ///< free text with formed parts, as a JSON text

  std::optional<std::string> whitespace_pattern = {};  ///< between the tokens of JSON
  bool disable_any_whitespace = false;                 ///< ", " and ": " only
  bool disable_additional_properties = false;          ///< no members that the schema does not name

  bool operator==(const StructuredOutputs&) const = default;
};

}  // namespace nanovllm
