#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "nanovllm/text/grammar/language/expressions.h"

namespace nanovllm::grammar {

/// A set of Unicode code points. Surrogates are never in it.
class CodePoints {
 public:
  CodePoints() = default;
  CodePoints(char32_t first, char32_t last) { add(first, last); }
  static CodePoints all() { return {0, 0x10FFFF}; }

  void add(char32_t first, char32_t last);
  void add(const CodePoints& other);
  CodePoints complement() const;
  bool contains(char32_t c) const;
  bool empty() const { return ranges_.empty(); }
  /// Sorted, not adjacent, without surrogates; first and last are included.
  const std::vector<std::pair<char32_t, char32_t>>& ranges() const { return ranges_; }

 private:
  std::vector<std::pair<char32_t, char32_t>> ranges_;
};

/// How an answer writes the characters of a text.
enum class Coding : uint8_t {
  kUtf8,
  /// Inside of a JSON string: a quote, a backslash and control characters as escapes (the short
  /// ones where they exist, else \u00XX with either case of digits), all others as they are.
  kJsonString
};

/// One character of the set.
Expr character(Expressions& e, const CodePoints& set, Coding coding);
/// This text, which is UTF-8.
Expr written(Expressions& e, std::string_view text, Coding coding);

}  // namespace nanovllm::grammar
