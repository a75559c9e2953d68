#include "nanovllm/text/pre_tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <memory>

#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/text/pre_tokenizer/normalizer.h"
#include "nanovllm/text/pre_tokenizer/regex.h"
#include "nanovllm/text/pre_tokenizer/words.h"
#include "nanovllm/text/tokenizer_json.h"

namespace nanovllm {

namespace {

// The pattern of GPT-2 (encoder.py of its release), which ByteLevel's use_regex stands for.
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Each stage reads all of the text; published files have at most five.
constexpr size_t kMaxStages = 8;

}  // namespace

PreTokenizer::Pattern PreTokenizer::literal_pattern(const std::string& literal) {
  return [literal](std::string_view text, const OnMatch& on_match) {
    for (size_t at = 0; (at = find_bytes(text, literal, at)) != std::string_view::npos;
         at += literal.size())
      on_match(at, at + literal.size());
  };
}

PreTokenizer::Pattern PreTokenizer::regex_pattern(const std::string& regex,
                                                  const std::string& where) {
  if (const int max_digits = word_pattern_digits(regex); max_digits > 0) {
    return [max_digits](std::string_view text, const OnMatch& on_match) {
      const char* const end = text.data() + text.size();
      for (const char *p = text.data(), *next; p < end; p = next) {
        next = end_of_word(p, end, max_digits);
        on_match(static_cast<size_t>(p - text.data()), static_cast<size_t>(next - text.data()));
      }
    };
  }
  return
      [compiled = std::make_shared<const Regex>(regex, where)](
          std::string_view text, const OnMatch& on_match) { compiled->find_all(text, on_match); };
}

PreTokenizer::Split PreTokenizer::make_split(const JsonObject& json) {
  // In the order of Split::Behavior.
  constexpr std::string_view kBehaviors[] = {"Isolated", "Removed", "MergedWithPrevious",
                                             "MergedWithNext", "Contiguous"};
  const std::string name = json.string("behavior");
  const auto* const behavior = std::ranges::find(kBehaviors, name);
  require(behavior != std::end(kBehaviors), "{}: behavior '{}' is not supported", json.where, name);
  const JsonObject pattern = json.object("pattern");
  return {.pattern = pattern.json.contains("Regex")
                         ? regex_pattern(pattern.string("Regex"), json.where)
                         : literal_pattern(json.literal_pattern()),
          .behavior = static_cast<Split::Behavior>(behavior - kBehaviors),
          .invert = json.flag("invert", false)};
}

void PreTokenizer::add_metaspace(const JsonObject& json) {
  const std::string replacement = json.string("replacement");
  require(
      !replacement.empty() && static_cast<size_t>(utf8_len(replacement[0])) == replacement.size(),
      "{}: the replacement must be one character", json.where);
  // Each puts a character in front of every piece, so several of them could double a text.
  for (const auto& stage : stages_)
    require(!std::holds_alternative<Metaspace>(stage), "{}: only one is supported", json.where);
  // Files older than tokenizers 0.15 have add_prefix_space in the place of prepend_scheme.
  std::string scheme = json.flag("add_prefix_space", true) ? "always" : "never";
  if (json.json.contains("prepend_scheme")) scheme = json.string("prepend_scheme");
  require(scheme == "always" || scheme == "first" || scheme == "never",
          "{}: prepend_scheme '{}' is not supported", json.where, scheme);
  stages_.emplace_back(Metaspace{replacement, scheme});
  if (json.flag("split", true))
    stages_.emplace_back(Split{literal_pattern(replacement), Split::kMergedWithNext, false});
}

PreTokenizer::PreTokenizer(const TokenizerJson& json) {
  for (const Component& component :
       json.components("pre_tokenizer", "pretokenizers", {"Split", "ByteLevel", "Metaspace"})) {
    require(!byte_level_, "{}: nothing may follow ByteLevel", component.where);
    if (component.type == "Split") {
      stages_.emplace_back(make_split(component));
    } else if (component.type == "Metaspace") {
      add_metaspace(component);
    } else {
      byte_level_ = true;
      if (component.flag("add_prefix_space", true)) stages_.emplace_back(Metaspace{" ", "always"});
      if (component.flag("use_regex", true))
        stages_.emplace_back(
            Split{regex_pattern(kGpt2Pattern, component.where), Split::kIsolated, false});
    }
  }
  require(stages_.size() <= kMaxStages, "{}: pre_tokenizer: more than {} stages", json.where,
          kMaxStages);
}

void PreTokenizer::run(size_t stage, std::string_view text, bool at_start,
                       const OnPiece& on_piece) const {
  if (stage == stages_.size()) return on_piece(text);
  if (const auto* split = std::get_if<Split>(&stages_[stage])) {
    const OnPiece next = [&](std::string_view piece) {
      run(stage + 1, piece, at_start && piece.data() == text.data(), on_piece);
    };
    return run(*split, text, stage + 1 == stages_.size() ? on_piece : next);
  }
  const auto& [replacement, scheme] = std::get<Metaspace>(stages_[stage]);
  WorkBudget budget(text.size());
  std::string changed = replace_all(text, " ", replacement, budget);
  const bool may_prepend = scheme == "always" || (scheme == "first" && at_start);
  if (may_prepend && !changed.starts_with(replacement)) changed.insert(0, replacement);
  run(stage + 1, changed, at_start, on_piece);
}

void PreTokenizer::run(const Split& split, std::string_view text, const OnPiece& on_piece) {
  std::string_view held;  // the piece that may still grow
  bool held_matched = false;
  const auto add_part = [&](size_t begin, size_t end, bool found) {
    if (begin == end) return;
    const bool matched = found != split.invert;
    const bool joins =
        !held.empty() &&
        ((split.behavior == Split::kContiguous && matched == held_matched) ||
         (split.behavior == Split::kMergedWithPrevious && matched && !held_matched) ||
         (split.behavior == Split::kMergedWithNext && !matched && held_matched));
    const std::string_view part = text.substr(begin, end - begin);
    if (!joins && !held.empty()) on_piece(held);
    held = joins ? std::string_view(held.data(), held.size() + part.size()) : part;
    held_matched = matched;
    if (matched && split.behavior == Split::kRemoved) held = {};
  };
  size_t done = 0;
  split.pattern(text, [&](size_t begin, size_t end) {
    add_part(done, begin, false);
    add_part(begin, end, true);
    done = end;
  });
  add_part(done, text.size(), false);
  if (!held.empty()) on_piece(held);
}

}  // namespace nanovllm
