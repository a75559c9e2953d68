#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace nanovllm {

struct JsonObject;

using OnMatch = std::function<void(size_t begin, size_t end)>;
/// Calls on_match for each match in well-formed `text` from left to right, without overlaps. A
/// match may be empty. Components of tokenizer.json split at matches, or replace them.
using Pattern = std::function<void(std::string_view text, const OnMatch& on_match)>;

/// The "pattern" of a component: {"String": ...} or {"Regex": ...}. Throws UserError that names
/// what is not supported.
Pattern read_pattern(const JsonObject& component);

Pattern literal_pattern(const std::string& literal);
/// Matches a regular expression of Oniguruma. `where` begins the error messages.
Pattern regex_pattern(const std::string& regex, const std::string& where);
/// Matches each character for which `is_member` is true.
Pattern character_pattern(bool (*is_member)(char32_t));
/// Matches each `length` characters, and the rest at the end.
Pattern length_pattern(size_t length);

/// Bounds the bytes that all steps of a pipeline together process for one text. Without this bound
/// a file of a few kilobytes could double a text forty times, or make it grow and shrink in turn.
/// Published tokenizers have up to three steps, which turn one byte into at most three.
class WorkBudget {
 public:
  explicit WorkBudget(size_t text_bytes = 0) { add_text(text_bytes); }
  void add_text(size_t bytes) { left_ += 32 * bytes; }
  /// Throws UserError if fewer than `bytes` are left.
  void take(size_t bytes);

 private:
  size_t left_ = 4096;
};

/// Returns `text` with each match replaced by `with`.
std::string replace_all(std::string_view text, const Pattern& pattern, std::string_view with,
                        WorkBudget& budget);

}  // namespace nanovllm
