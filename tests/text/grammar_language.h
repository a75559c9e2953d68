#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "nanovllm/base/error.h"
#include "nanovllm/text/grammar/language/expressions.h"

namespace nanovllm::grammar {

/// A language that a test asks for texts.
class Language {
 public:
  explicit Language(const std::function<Expr(Expressions&)>& build)
      : start_(e_.prepare(build(e_))) {}

  bool has(std::string_view text) {
    Expr state = start_;
    for (const char c : text) {
      state = e_.derive(state, static_cast<uint8_t>(c));
      if (state == Expr::kNothing) return false;
    }
    return e_.is_nullable(state);
  }
  /// Whether a text of the language begins with this one.
  bool begins_with(std::string_view text) {
    Expr state = start_;
    for (const char c : text) state = e_.derive(state, static_cast<uint8_t>(c));
    return state != Expr::kNothing;
  }

 private:
  Expressions e_;
  Expr start_;
};

/// The message with which it is refused; empty if it is accepted.
inline std::string refusal(const std::function<Expr(Expressions&)>& build) {
  try {
    Language language(build);
    return "";
  } catch (const UserError& error) {
    return error.what();
  }
}

}  // namespace nanovllm::grammar
