#include "nanovllm/text/pre_tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/text/byte_alphabet.h"
#include "nanovllm/text/tokenizer/bpe.h"
#include "nanovllm/text/tokenizer_json.h"
#include "nanovllm/text/tokenizers_unicode.h"
#include "nanovllm/text/unicode.h"

namespace nanovllm {

namespace {

// The pattern of GPT-2 (encoder.py of its release), which ByteLevel's use_regex stands for.
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// The most stages, each of which reads all of the text. Published files have at most five.
constexpr size_t kMaxStages = 16;

}  // namespace

PreTokenizer::PreTokenizer(const TokenizerJson& json) {
  constexpr std::pair<std::string_view, void (PreTokenizer::*)(const Component&)> kComponents[] = {
      {"BertPreTokenizer", &PreTokenizer::add_bert},
      {"ByteLevel", &PreTokenizer::add_byte_level},
      {"CharDelimiterSplit", &PreTokenizer::add_char_delimiter_split},
      {"Digits", &PreTokenizer::add_digits},
      {"FixedLength", &PreTokenizer::add_fixed_length},
      {"Metaspace", &PreTokenizer::add_metaspace},
      {"Punctuation", &PreTokenizer::add_punctuation},
      {"Split", &PreTokenizer::add_split},
      {"Whitespace", &PreTokenizer::add_whitespace},
      {"WhitespaceSplit", &PreTokenizer::add_whitespace_split}};
  json.for_each_component("pre_tokenizer", "pretokenizers", kComponents,
                          [&](auto add_stages, const Component& component) {
                            (this->*add_stages)(component);
                            require(stages_.size() <= kMaxStages,
                                    "{}: pre_tokenizer: more than {} stages", json.where,
                                    kMaxStages);
                          });
  // Finding a token by its bytes is faster than spelling the bytes to get the token's name.
  if (!stages_.empty() && std::holds_alternative<Spelling>(stages_.back()) &&
      Bpe::takes_bytes(json)) {
    stages_.pop_back();
    byte_level_ = true;
  }
}

PreTokenizer::Behavior PreTokenizer::behavior_of(const Component& component) {
  // These names are in the order of Behavior.
  constexpr std::string_view kBehaviors[] = {"Isolated", "Removed", "MergedWithPrevious",
                                             "MergedWithNext", "Contiguous"};
  const std::string name = component.string("behavior");
  const auto* const behavior = std::ranges::find(kBehaviors, name);
  require(behavior != std::end(kBehaviors), "{}: behavior '{}' is not supported", component.where,
          name);
  return static_cast<Behavior>(behavior - kBehaviors);
}

void PreTokenizer::add_bert(const Component&) {
  add(character_pattern(is_white_space), kRemoved);
  add(character_pattern(is_punctuation), kIsolated);
}

void PreTokenizer::add_byte_level(const Component& component) {
  if (component.flag("add_prefix_space", true)) stages_.emplace_back(Metaspace{" ", "always"});
  if (component.flag("use_regex", true))
    add(regex_pattern(kGpt2Pattern, component.where), kIsolated);
  stages_.emplace_back(Spelling{});
}

void PreTokenizer::add_char_delimiter_split(const Component& component) {
  add(literal_pattern(component.character("delimiter")), kRemoved);
}

void PreTokenizer::add_digits(const Component& component) {
  const bool individual = component.flag("individual_digits", false);
  add(character_pattern(is_number), individual ? kIsolated : kContiguous);
}

void PreTokenizer::add_fixed_length(const Component& component) {
  const Json length = component.json.value("length", Json(5));
  require(length.is_number_unsigned() && length > 0, "{}: the length must be a positive integer",
          component.where);
  add(length_pattern(length.get<size_t>()), kIsolated);
}

void PreTokenizer::add_metaspace(const Component& component) {
  const std::string replacement = component.character("replacement");
  // Files older than tokenizers 0.15 have add_prefix_space instead of prepend_scheme.
  std::string scheme = component.flag("add_prefix_space", true) ? "always" : "never";
  if (component.json.contains("prepend_scheme")) scheme = component.string("prepend_scheme");
  require(scheme == "always" || scheme == "first" || scheme == "never",
          "{}: prepend_scheme '{}' is not supported", component.where, scheme);
  stages_.emplace_back(Metaspace{replacement, scheme});
  if (component.flag("split", true)) add(literal_pattern(replacement), kMergedWithNext);
}

void PreTokenizer::add_punctuation(const Component& component) {
  add(character_pattern(is_punctuation),
      component.json.contains("behavior") ? behavior_of(component) : kIsolated);
}

void PreTokenizer::add_split(const Component& component) {
  add(read_pattern(component), behavior_of(component), component.flag("invert", false));
}

// The pieces are the matches of \w+|[^\w\s]+.
void PreTokenizer::add_whitespace(const Component&) {
  add(character_pattern(is_white_space), kRemoved);
  add(character_pattern(is_word_char), kContiguous);
}

void PreTokenizer::add_whitespace_split(const Component&) {
  add(character_pattern(is_white_space), kRemoved);
}

void PreTokenizer::split(std::string_view text, bool at_start, const OnPiece& on_piece) const {
  WorkBudget budget(text.size());
  run(0, text, at_start, budget, on_piece);
}

void PreTokenizer::run(size_t stage, std::string_view text, bool at_start, WorkBudget& budget,
                       const OnPiece& on_piece) const {
  if (stage == stages_.size()) return on_piece(text);
  if (const auto* split = std::get_if<Split>(&stages_[stage])) {
    const OnPiece next = [&](std::string_view piece) {
      run(stage + 1, piece, at_start && piece.data() == text.data(), budget, on_piece);
    };
    return run(*split, text, stage + 1 == stages_.size() ? on_piece : next);
  }
  std::string changed;
  if (const auto* metaspace = std::get_if<Metaspace>(&stages_[stage])) {
    const std::string& replacement = metaspace->replacement;
    changed = replace_all(text, metaspace->space, replacement, budget);
    const bool may_prepend =
        metaspace->scheme == "always" || (metaspace->scheme == "first" && at_start);
    if (may_prepend && !changed.starts_with(replacement)) {
      budget.take(replacement.size());
      changed.insert(0, replacement);
    }
  } else {
    append_spelling(text, changed);
    budget.take(changed.size());
  }
  run(stage + 1, changed, at_start, budget, on_piece);
}

void PreTokenizer::run(const Split& split, std::string_view text, const OnPiece& on_piece) {
  size_t begin = 0, end = 0;  // the piece that may still grow
  bool last_matched = false;  // whether its last part is a match
  const auto finish_piece = [&] {
    if (begin < end) on_piece(text.substr(begin, end - begin));
    begin = end;
  };
  const auto add_part = [&](size_t part_end, bool found) {
    const bool matched = found != split.invert;
    const bool joins = (split.behavior == kContiguous && matched == last_matched) ||
                       (split.behavior == kMergedWithPrevious && matched && !last_matched) ||
                       (split.behavior == kMergedWithNext && !matched && last_matched);
    if (!joins) finish_piece();
    end = part_end;
    last_matched = matched;
    if (matched && split.behavior == kRemoved) begin = end;
  };
  split.pattern(text, [&](size_t match_begin, size_t match_end) {
    if (end < match_begin) add_part(match_begin, false);
    add_part(match_end, true);
  });
  if (end < text.size()) add_part(text.size(), false);
  finish_piece();
}

}  // namespace nanovllm
