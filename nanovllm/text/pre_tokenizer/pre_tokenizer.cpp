#include "nanovllm/text/pre_tokenizer/pre_tokenizer.h"

#include <iterator>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/text/pre_tokenizer/normalizer.h"
#include "nanovllm/text/pre_tokenizer/words.h"
#include "nanovllm/text/tokenizer/tokenizer_json.h"
#include "nanovllm/text/utf8.h"

namespace nanovllm {

namespace {

// GPT-2's pattern (encoder.py of its release), which ByteLevel's use_regex means.
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Each works on all of the text; published files have at most five.
constexpr size_t kMaxStages = 8;

using OnMatch = std::function<void(size_t, size_t)>;

void find_all(const std::string& literal, std::string_view text, const OnMatch& on_match) {
  for (size_t at = 0; (at = find_bytes(text, literal, at)) != std::string_view::npos;
       at += literal.size())
    on_match(at, at + literal.size());
}

void find_all(int max_digits, std::string_view text, const OnMatch& on_match) {
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  for (const char* p = begin; p < end;) {
    const char* const next = end_of_word(p, end, max_digits);
    on_match(static_cast<size_t>(p - begin), static_cast<size_t>(next - begin));
    p = next;
  }
}

void find_all(const Regex& regex, std::string_view text, const OnMatch& on_match) {
  regex.find_all(text, on_match);
}

}  // namespace

PreTokenizer::Split PreTokenizer::make_regex_split(const std::string& regex,
                                                   const std::string& where) {
  if (const int digits = word_pattern_digits(regex); digits > 0)
    return {digits, Split::kIsolated, false};
  return {Regex(regex, where), Split::kIsolated, false};
}

PreTokenizer::Split PreTokenizer::make_split(const Json& json, const std::string& where) {
  const Json& pattern = field(json, "pattern", where);
  const bool literal = pattern.is_object() && pattern.contains("String");
  const std::string text = string_field(pattern, literal ? "String" : "Regex", where + ": pattern");
  require(!literal || !text.empty(), "{}: the pattern is empty", where);
  Split split = literal ? Split{text, Split::kIsolated, false} : make_regex_split(text, where);
  split.invert = bool_field(json, "invert", false, where);
  // In the order of Split::Behavior.
  constexpr const char* kNames[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext",
                                    "Contiguous"};
  const std::string behavior = string_field(json, "behavior", where);
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (behavior != kNames[i]) continue;
    split.behavior = static_cast<Split::Behavior>(i);
    return split;
  }
  fail("{}: behavior '{}' is not supported", where, behavior);
}

PreTokenizer::PreTokenizer(const Json& json, const std::string& where) {
  bool has_metaspace = false;
  for (const Json* component : components(json, "pretokenizers", where)) {
    const std::string type = string_field(*component, "type", where);
    const std::string here = fmt::format("{}: {}", where, type);
    require(!byte_level_, "{}: nothing may follow ByteLevel", here);
    if (type == "Split") {
      stages_.emplace_back(make_split(*component, here));
    } else if (type == "ByteLevel") {
      byte_level_ = true;
      if (bool_field(*component, "add_prefix_space", true, here))
        stages_.emplace_back(Metaspace{" ", Metaspace::kAlways});
      if (bool_field(*component, "use_regex", true, here))
        stages_.emplace_back(make_regex_split(kGpt2Pattern, here));
    } else if (type == "Metaspace") {
      const std::string replacement = string_field(*component, "replacement", here);
      require(!replacement.empty() &&
                  static_cast<size_t>(utf8_len(replacement[0])) == replacement.size(),
              "{}: the replacement must be one character", here);
      // Each puts one in front of every piece, so that cutting and joining by turns would double.
      require(!std::exchange(has_metaspace, true), "{}: only one is supported", here);
      // Files before tokenizers 0.15 say add_prefix_space instead of prepend_scheme, and always
      // split.
      const bool old_prepend = bool_field(*component, "add_prefix_space", true, here);
      const std::string scheme = component->contains("prepend_scheme")
                                     ? string_field(*component, "prepend_scheme", here)
                                 : old_prepend ? "always"
                                               : "never";
      require(scheme == "always" || scheme == "first" || scheme == "never",
              "{}: prepend_scheme '{}' is not supported", here, scheme);
      stages_.emplace_back(Metaspace{replacement, scheme == "always"  ? Metaspace::kAlways
                                                  : scheme == "first" ? Metaspace::kFirst
                                                                      : Metaspace::kNever});
      if (bool_field(*component, "split", true, here))
        stages_.emplace_back(Split{replacement, Split::kMergedWithNext, false});
    } else {
      fail("{}: '{}' is not supported; Sequence, Split, ByteLevel and Metaspace are", where, type);
    }
  }
  require(stages_.size() <= kMaxStages, "{}: more than {} stages", where, kMaxStages);
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
  const auto& [replacement, prepend] = std::get<Metaspace>(stages_[stage]);
  const bool prefix = prepend == Metaspace::kAlways || (prepend == Metaspace::kFirst && at_start);
  std::string changed = replace_all(text, " ", replacement);
  if (prefix && !changed.starts_with(replacement)) changed.insert(0, replacement);
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
  const OnMatch on_match = [&](size_t begin, size_t end) {
    add_part(done, begin, false);
    add_part(begin, end, true);
    done = end;
  };
  std::visit([&](const auto& pattern) { find_all(pattern, text, on_match); }, split.pattern);
  add_part(done, text.size(), false);
  if (!held.empty()) on_piece(held);
}

}  // namespace nanovllm
