#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nanovllm {

struct TokenizerJson;

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

/// Returns `text` with each `what` replaced by `with`. `what` must not be empty.
std::string replace_all(std::string_view text, std::string_view what, std::string_view with,
                        WorkBudget& budget);

/// tokenizer.json's `normalizer`: Sequence, NFC, Prepend, or Replace of a string. Null changes
/// nothing.
class Normalizer {
 public:
  /// Throws UserError that names what is not supported.
  explicit Normalizer(const TokenizerJson& json);

  /// Normalizes `text`, which is well-formed UTF-8. The result is `text` itself if nothing changes;
  /// otherwise it is in `storage`. All parts of a text share the budget.
  std::string_view normalize(std::string_view text, std::string& storage, WorkBudget& budget) const;

 private:
  struct Step {
    enum Kind { kNfc, kPrepend, kReplace } kind;
    std::string what{}, with{};  // for kReplace; kPrepend has only `with`
  };
  std::vector<Step> steps_;
};

}  // namespace nanovllm
