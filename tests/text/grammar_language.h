#pragma once

#include <gmock/gmock.h>

#include <concepts>
#include <string>
#include <string_view>

#include "nanovllm/base/error.h"
#include "nanovllm/text/grammar/expressions.h"

namespace nanovllm::grammar {

/// The language of an expression that `build` makes.
class Language {
 public:
  explicit Language(const std::invocable<Expressions&> auto& build)
      : start_(expressions_.prepare(build(expressions_))) {}

  bool contains(std::string_view text) {
    Expr at = start_;
    for (const char c : text) at = expressions_.derive(at, static_cast<uint8_t>(c));
    return expressions_.is_nullable(at);
  }
  /// Whether a text of the language begins with this one.
  bool begins_with(std::string_view text) {
    Expr at = start_;
    for (const char c : text) at = expressions_.derive(at, static_cast<uint8_t>(c));
    return at != Expr::kNothing;
  }

 private:
  Expressions expressions_;
  const Expr start_;
};

/// The message of the UserError that `build` throws, which must be one line.
inline std::string error_of_building(const std::invocable<Expressions&> auto& build) {
  Expressions e;
  try {
    build(e);
  } catch (const UserError& error) {
    EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos);
    return error.what();
  }
  return "no error";
}

}  // namespace nanovllm::grammar
