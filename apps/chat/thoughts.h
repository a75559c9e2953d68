#pragma once

#include <cstddef>
#include <string>

namespace nanovllm {

/// Dims the text between <think> and </think>, and leaves out the tags and the blank lines around
/// the thoughts: one remains before the answer.
class Thoughts {
 public:
  /// `begun` says that the prompt ends with <think>.
  explicit Thoughts(bool begun) : thinking_(begun) {}

  /// The text to show for the next piece. Characters that may be a part of a tag are held back.
  std::string show(const std::string& piece);
  /// The text to show at the end, which was held back.
  std::string finish();

 private:
  void add(std::string& out, std::string text);

  bool thinking_;
  bool at_start_ = true;  // nothing of the current thoughts or answer has been shown yet
  std::string held_;
  size_t newlines_ = 0;  // newlines at the end of the thoughts so far, not shown yet
};

/// The text, dimmed.
std::string dimmed(const std::string& text);

}  // namespace nanovllm
