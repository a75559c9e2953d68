#include "nanovllm/text/pre_tokenizer.h"

#include <iterator>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/text/tokenizer_json.h"
#include "nanovllm/text/words.h"

namespace nanovllm {

namespace {

// GPT-2's pattern (encoder.py of its release), which ByteLevel's use_regex means.
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

std::vector<Match> find_all(const std::string& literal, std::string_view text) {
  std::vector<Match> parts;
  size_t done = 0;
  for (size_t at; (at = text.find(literal, done)) != std::string_view::npos;) {
    if (done < at) parts.push_back({done, at, false});
    done = at + literal.size();
    parts.push_back({at, done, true});
  }
  if (done < text.size()) parts.push_back({done, text.size(), false});
  return parts;
}

std::vector<Match> find_all(int max_digits, std::string_view text) {
  std::vector<Match> parts;
  parts.reserve(text.size() / 4);
  const char* const end = text.data() + text.size();
  for (const char* p = text.data(); p < end;) {
    const char* const next = end_of_word(p, end, max_digits);
    parts.push_back(
        {static_cast<size_t>(p - text.data()), static_cast<size_t>(next - text.data()), true});
    p = next;
  }
  return parts;
}

std::vector<Match> find_all(const Regex& regex, std::string_view text) {
  return regex.find_all(text);
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
      require(!replacement.empty(), "{}: the replacement is empty", here);
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
}

PreTokenizer::Pieces PreTokenizer::split(std::string_view text, bool at_start,
                                         std::deque<std::string>& storage) const {
  Pieces pieces = {text};
  for (const Stage& stage : stages_) {
    if (const auto* split = std::get_if<Split>(&stage)) pieces = run(*split, pieces);
    else pieces = run(std::get<Metaspace>(stage), pieces, at_start, storage);
  }
  return pieces;
}

PreTokenizer::Pieces PreTokenizer::run(const Split& split, const Pieces& pieces) {
  Pieces out;
  for (const std::string_view piece : pieces) {
    const auto parts =
        std::visit([&](const auto& pattern) { return find_all(pattern, piece); }, split.pattern);
    if (pieces.size() == 1) out.reserve(parts.size());
    const size_t first = out.size();
    for (size_t i = 0; i < parts.size(); ++i) {
      const bool matched = parts[i].matched != split.invert;
      if (split.behavior == Split::kRemoved && matched) continue;
      const bool previous = i > 0 && parts[i - 1].matched != split.invert;
      // Whether this part goes on with the piece before it.
      bool joins = false;
      if (split.behavior == Split::kContiguous) joins = i > 0 && matched == previous;
      if (split.behavior == Split::kMergedWithPrevious) joins = i > 0 && matched && !previous;
      if (split.behavior == Split::kMergedWithNext) joins = !matched && previous;
      if (joins && out.size() > first)
        out.back() = {out.back().data(), out.back().size() + parts[i].end - parts[i].begin};
      else out.push_back(piece.substr(parts[i].begin, parts[i].end - parts[i].begin));
    }
  }
  return out;
}

PreTokenizer::Pieces PreTokenizer::run(const Metaspace& metaspace, const Pieces& pieces,
                                       bool at_start, std::deque<std::string>& storage) {
  std::string& text = storage.emplace_back();
  std::vector<size_t> ends;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const std::string& replacement = metaspace.replacement;
    const bool prefix = metaspace.prepend == Metaspace::kAlways ||
                        (metaspace.prepend == Metaspace::kFirst && at_start && i == 0);
    if (prefix && !pieces[i].starts_with(' ') && !pieces[i].starts_with(replacement))
      text += replacement;
    for (const char c : pieces[i]) {
      if (c == ' ') text += replacement;
      else text += c;
    }
    ends.push_back(text.size());
  }
  Pieces out;
  for (size_t begin = 0; const size_t end : ends) {
    out.push_back(std::string_view(text).substr(begin, end - begin));
    begin = end;
  }
  return out;
}

}  // namespace nanovllm
