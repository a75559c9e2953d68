#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace nanovllm::server {

/// Recognizes one of several tags character by character. No tag is the beginning of another one.
/// If a tag breaks off, another one is looked for only where it broke off; so a tag that begins
/// inside the beginning of another one is not found. No tag but "```json" repeats its first
/// character.
class TagMatcher {
 public:
  static constexpr int kPartly = -1;  ///< the characters so far are the beginning of a tag
  static constexpr int kNone = -2;    ///< the characters so far are not the beginning of a tag

  TagMatcher(std::initializer_list<std::string_view> tags) : tags_(tags) {}
  explicit TagMatcher(std::vector<std::string_view> tags) : tags_(std::move(tags)) {}

  /// Returns kPartly, kNone, or the index of the tag that is complete. After the last two the
  /// matcher is like a new one, except for length().
  int read(char c) {
    if (is_settled_) length_ = 0;
    is_settled_ = true;
    for (size_t i = 0; i < tags_.size(); ++i) {
      const std::string_view tag = tags_[i];
      if (length_ > 0 && tag.substr(0, length_) != tags_[tag_].substr(0, length_)) continue;
      if (length_ >= tag.size() || tag[length_] != c) continue;
      tag_ = i;
      ++length_;
      if (length_ == tag.size()) return static_cast<int>(i);
      is_settled_ = false;
      return kPartly;
    }
    return kNone;
  }
  /// How many characters of a tag were read, not counting one that did not match.
  size_t length() const { return length_; }
  /// Whether a tag has begun.
  bool has_begun() const { return !is_settled_; }
  /// The part of the tag that was read.
  std::string_view begun() const { return has_begun() ? tags_[tag_].substr(0, length_) : ""; }
  void restart() {
    length_ = 0;
    is_settled_ = true;
  }

 private:
  std::vector<std::string_view> tags_;
  size_t tag_ = 0, length_ = 0;  // the first length_ characters of this tag were read
  bool is_settled_ = true;
};

}  // namespace nanovllm::server
