#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "nanovllm/text/grammar/language/code_points.h"
#include "nanovllm/text/grammar/language/expressions.h"

namespace nanovllm::grammar {

/// Where a match must begin or end. Each of them implies the ones before it.
enum Edge : size_t { kAnywhere, kLineEdge, kTextEdge };

/// The texts that a part of a regular expression matches, by where the match must begin and end.
/// ^ and $ match no characters but ask something of what is around them, so the texts alone do not
/// tell what the part means.
struct Anchored {
  std::array<std::array<Expr, 3>, 3> texts{};  // [Edge of the begin][Edge of the end]
  /// How many sequences of two parts that both leave their edges open, such as (^|,)(,|$), are in
  /// it one after the other. Each multiplies the number of alternatives.
  int num_open_sequences = 0;

  Anchored() = default;
  explicit Anchored(Expr e, Edge begin = kAnywhere, Edge end = kAnywhere) { texts[begin][end] = e; }
  /// Whether all matches may begin and end anywhere.
  bool is_free() const { return texts == Anchored(texts[kAnywhere][kAnywhere]).texts; }
};

/// The operations of regular expressions on parts that may have anchors.
class Anchors {
 public:
  Anchors(Expressions& e, Coding coding);

  Anchored sequence(const Anchored& first, const Anchored& then);
  Anchored any_of(std::span<const Anchored> alternatives);
  /// The texts that a part matches from begin to end or, with `anywhere`, in which it has a match.
  Expr whole(const Anchored& part, bool anywhere);

 private:
  Expressions& e_;
  Expr any_text_, line_before_, line_after_;  // texts, and those that end and begin with a newline
};

}  // namespace nanovllm::grammar
