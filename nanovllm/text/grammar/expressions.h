#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace nanovllm::grammar {

/// An expression of an Expressions. Equal handles mean equal expressions.
enum class Expr : uint32_t {
  kNothing = 0,  ///< the empty language
  kEmpty = 1,    ///< only the empty text
  kAny = 2       ///< every text
};
using Bytes = std::bitset<256>;

inline constexpr uint32_t kUnlimited = std::numeric_limits<uint32_t>::max();

/// Languages of byte strings, and what remains of them after each byte.
///
/// Everything that an answer can be held to (a regular expression, a JSON schema, a grammar) is an
/// expression: bytes, sequences, alternatives, repetitions, intersections, complements, and rules,
/// which may contain themselves. The Brzozowski derivative of a language by a byte is what may
/// follow this byte (J. Brzozowski, "Derivatives of regular expressions", 1964; M. Might and others,
/// "Parsing with derivatives", 2011). So an expression is also the state of a parser, and the
/// sequence's rest is its stack:
///
///     "{" object  --{-->  object  --"-->  key_rest ":" value ("," member)* "}"
///
/// Equal expressions are stored once, alternatives with the same beginning are joined, and
/// derivatives are remembered, so that walking is a table look-up for each byte.
///
/// An expression other than kNothing always has a text: where intersections and complements could
/// have none, derive() searches for one. Thus a byte is allowed exactly if a text continues it.
///
/// Build all expressions, call prepare() once, then derive. Not thread-safe.
class Expressions {
 public:
  /// Throws UserError if it needs more than `max_bytes`.
  explicit Expressions(size_t max_bytes = 64 << 20);

  // -- Building.
  Expr bytes(const Bytes& set);                       ///< one byte of a set
  Expr byte_range(uint8_t first, uint8_t last);       ///< one byte of first..last
  Expr text(std::string_view text);                   ///< these bytes
  Expr texts(std::span<const std::string> texts);     ///< one of these texts
  Expr sequence(Expr first, Expr then);
  Expr sequence(std::initializer_list<Expr> parts);
  Expr any_of(std::vector<Expr> alternatives);
  Expr optional(Expr part) { return any_of({part, Expr::kEmpty}); }
  /// `part`, min to max times.
  Expr repeat(Expr part, uint32_t min, uint32_t max = kUnlimited);
  /// Texts that are in both. Neither may have rules.
  Expr both(Expr a, Expr b);
  /// Texts that are not in `a`, which may have no rules.
  Expr complement(Expr a);
  /// Decimal numbers without a sign and exponent, digits "." digits, that are multiples of
  /// divisor / 10^scale. It accepts any number of leading zeros; intersect it with the form wanted.
  Expr multiple_of(uint32_t divisor, uint32_t scale);

  /// A name for an expression that is defined later, and may contain itself.
  Expr new_rule(std::string name);
  void define(Expr rule, Expr body);
  bool has_rules(Expr e) const { return node(e).has_rules; }

  // -- Walking.
  /// Removes left recursion and everything that has no text, and returns what `start` has become.
  /// Throws UserError for a rule that is not defined, and kNothing if there is no text.
  Expr prepare(Expr start);
  /// What may follow `byte`.
  Expr derive(Expr e, uint8_t byte);
  /// Whether the empty text is in it, so that the text may end here.
  bool is_nullable(Expr e) const { return node(e).nullable; }

 private:
  // (to be completed)
};

}  // namespace nanovllm::grammar
