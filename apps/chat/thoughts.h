#pragma once

#include <cstddef>
#include <string>

namespace nanovllm {

/// Dims the text between <think> and </think>, and leaves out the tags and the blank lines around
/// the thoughts: one remains before the answer.
class Thoughts {
 public:
  /// `begun`: the prompt ends with <think>.
  explicit Thoughts(bool begun) : thinking_(begun) {}

  /// What to show for the next piece of the text. It keeps back what may be a part of a tag.
  std::string show(const std::string& piece);
  /// The rest.
  std::string finish();

 private:
  void add(std::string& out, std::string text);

  bool thinking_;
  bool at_start_ = true;  // nothing of the current thoughts or answer has been shown yet
  std::string held_;
  size_t newlines_ = 0;  // at the end of the thoughts so far; not shown yet
};

/// The text, dimmed.
std::string dimmed(const std::string& text);

}  // namespace nanovllm
