#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/server/conversation/calls/tag_matcher.h"

namespace nanovllm::server {

/// Removes tags from a text that comes in pieces.
class HiddenTags {
 public:
  explicit HiddenTags(std::vector<std::string_view> tags)
      : hides_nothing_(tags.empty()), tags_(std::move(tags)) {}

  /// Appends the text without the tags. The beginning of a tag is held back.
  void append(std::string& to, std::string_view text) {
    if (hides_nothing_) {
      to += text;
      return;
    }
    for (const char c : text) {
      const std::string_view begun = tags_.begun();
      int tag = tags_.read(c);
      if (tag == TagMatcher::kNone) {
        to += begun;
        tag = tags_.read(c);  // another tag may begin here
        if (tag == TagMatcher::kNone) to += c;
      }
    }
  }
  /// No text follows that could complete a tag.
  void flush(std::string& to) {
    to += tags_.begun();
    tags_.restart();
  }

 private:
  const bool hides_nothing_;
  TagMatcher tags_;
};

}  // namespace nanovllm::server
