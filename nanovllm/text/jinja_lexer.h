#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/text/jinja_value.h"

namespace nanovllm::jinja {

struct Token {
  enum class Type {
    kData,
    kVariableBegin,
    kVariableEnd,
    kBlockBegin,
    kBlockEnd,
    kName,
    kString,
    kNumber,
    kOperator,
    kEnd
  };
  Type type;
  uint32_t offset;   // where it begins in the source
  std::string text;  // of a string: with its escapes replaced
  Value value = {};  // of a number

  bool is(Type wanted, std::string_view written) const { return type == wanted && text == written; }
};

/// Line ends become "\n", and one at the very end is dropped, as Jinja2 does before all else.
std::string normalize_source(std::string_view source);

/// The tokens of a normalized source, with the whitespace rules of trim_blocks and lstrip_blocks
/// applied. The last one is kEnd. Throws TemplateError.
std::vector<Token> tokenize(std::string_view source);

}  // namespace nanovllm::jinja
