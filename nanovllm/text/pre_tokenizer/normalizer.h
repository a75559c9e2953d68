#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nanovllm {

struct TokenizerJson;

/// Bounds the bytes that all steps of a pipeline together work on for one text. Without it a file
/// of a few kilobytes could double a text forty times, or make it grow and shrink in turn.
/// Published tokenizers have up to three steps, which make at most three bytes of one.
class WorkBudget {
 public:
  explicit WorkBudget(size_t text_bytes = 0) { add_text(text_bytes); }
  void add_text(size_t bytes) { left_ += 32 * bytes; }
  /// Throws UserError when less than that is left.
  void take(size_t bytes);

 private:
  size_t left_ = 4096;
};

/// `text` with each `what`, which is not empty, replaced.
std::string replace_all(std::string_view text, std::string_view what, std::string_view with,
                        WorkBudget& budget);

/// tokenizer.json's `normalizer`: Sequence, NFC, Prepend, Replace of a string; null changes
/// nothing.
class Normalizer {
 public:
  /// Throws UserError that names what is not supported.
  explicit Normalizer(const TokenizerJson& json);

  /// Normalizes `text`, which is well-formed UTF-8. The result is `text` itself where nothing
  /// changes, else it is in `storage`. The budget is shared by all parts of a text.
  std::string_view normalize(std::string_view text, std::string& storage, WorkBudget& budget) const;

 private:
  struct Step {
    enum Kind { kNfc, kPrepend, kReplace } kind;
    std::string what{}, with{};  // for kReplace; kPrepend has only `with`
  };
  std::vector<Step> steps_;
};

}  // namespace nanovllm
