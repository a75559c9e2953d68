#include "nanovllm/text/grammar/regex/anchors.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace nanovllm::grammar {

namespace {

constexpr Edge kEdges[] = {kAnywhere, kLineEdge, kTextEdge};

// Whether the edges that a match needs depend on the text.
bool is_open(const Anchored& part) {
  int num_edges = 0;
  for (const auto& texts : part.texts)
    num_edges += std::ranges::count_if(texts, [](Expr e) { return e != Expr::kNothing; });
  return num_edges > 1;
}

// Some texts of a part, and what they need at their far side.
struct Sided {
  Expr texts;
  Edge far;
};

// The texts of a part whose neighbour needs `edge` between them: the empty text, which hands the
// need on to the part's far side, and at the edge of a line those with a newline there.
std::vector<Sided> beside(Expressions& e, Sided part, Edge edge, Expr with_newline) {
  if (edge == kAnywhere) return {part};
  std::vector<Sided> out;
  if (e.is_nullable(part.texts)) out.push_back({Expr::kEmpty, std::max(part.far, edge)});
  if (edge == kLineEdge) out.push_back({e.both(part.texts, with_newline), part.far});
  return out;
}

}  // namespace

Anchors::Anchors(Expressions& e, Coding coding) : e_(e) {
  any_text_ = e.repeat(character(e, CodePoints::all(), coding), 0);
  const Expr newline = written(e, "\n", coding);
  line_before_ = e.sequence(any_text_, newline);
  line_after_ = e.sequence(newline, any_text_);
}

Anchored Anchors::sequence(const Anchored& first, const Anchored& then) {
  if (first.is_free() && then.is_free())
    return Anchored(e_.sequence(first.texts[0][0], then.texts[0][0]));
  Anchored out;
  out.num_open_sequences =
      first.num_open_sequences + then.num_open_sequences + (is_open(first) && is_open(then));
  // Between the two, the first part's end and the second part's begin must both be possible.
  const auto add = [&](Edge begin, Edge first_end, Edge then_begin, Edge end) {
    const Sided a{first.texts[begin][first_end], begin}, b{then.texts[then_begin][end], end};
    if (a.texts == Expr::kNothing || b.texts == Expr::kNothing) return;
    for (const Sided& left : beside(e_, a, then_begin, line_before_))
      for (const Sided& right : beside(e_, b, first_end, line_after_)) {
        Expr& texts = out.texts[left.far][right.far];
        texts = e_.any_of({texts, e_.sequence(left.texts, right.texts)});
      }
  };
  for (const Edge begin : kEdges)
    for (const Edge first_end : kEdges)
      for (const Edge then_begin : kEdges)
        for (const Edge end : kEdges) add(begin, first_end, then_begin, end);
  return out;
}

Anchored Anchors::any_of(std::span<const Anchored> alternatives) {
  Anchored out;
  for (const Anchored& alternative : alternatives)
    out.num_open_sequences = std::max(out.num_open_sequences, alternative.num_open_sequences);
  for (const Edge begin : kEdges)
    for (const Edge end : kEdges) {
      std::vector<Expr> texts;
      for (const Anchored& alternative : alternatives)
        texts.push_back(alternative.texts[begin][end]);
      out.texts[begin][end] = e_.any_of(texts);
    }
  return out;
}

Expr Anchors::whole(const Anchored& part, bool anywhere) {
  const Expr before[] = {any_text_, e_.optional(line_before_), Expr::kEmpty};
  const Expr after[] = {any_text_, e_.optional(line_after_), Expr::kEmpty};
  std::vector<Expr> out;
  for (const Edge begin : kEdges)
    for (const Edge end : kEdges) {
      const Expr texts = part.texts[begin][end];
      out.push_back(anywhere ? e_.sequence({before[begin], texts, after[end]}) : texts);
    }
  return e_.any_of(out);
}

}  // namespace nanovllm::grammar
