#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nanovllm {

/// Stop strings that are ready to be searched for: five times the memory of their texts. All
/// answers of a request share them.
class StopPatterns {
 public:
  StopPatterns() = default;
  /// No text may be empty.
  explicit StopPatterns(std::vector<std::string> texts);
  bool empty() const { return patterns_.empty(); }
  size_t num_bytes() const;

 private:
  friend class StopStrings;
  struct Pattern {
    std::string text;
    /// [i]: length of the longest proper prefix of text[0, i) that is its suffix
    std::vector<uint32_t> fallback;
    /// `length` characters of the text have matched; returns how many have after `c`.
    uint32_t advance(uint32_t length, char c) const;
  };
  std::vector<Pattern> patterns_;
};

/// Finds stop strings in an answer that comes in pieces, and holds back text that may be the start
/// of one. The result does not depend on how the text is divided into pieces. The time for each
/// stop string is linear in the text (Knuth, Morris and Pratt, "Fast Pattern Matching in Strings",
/// 1977).
class StopStrings {
 public:
  /// `stop` must outlive this object.
  explicit StopStrings(const StopPatterns& stop);

  /// Takes a piece and returns the text that can be shown. With `ignore`, a stop string that ends
  /// in this piece is ordinary text. Nothing may be pushed after a match.
  std::string push(std::string_view piece, bool ignore = false);
  /// Returns the text that was held back, after the answer ended for another reason.
  std::string finish();
  /// The stop string that was found, or null. If several end at the same character, it is the
  /// longest.
  const std::string* matched() const { return matched_; }

 private:
  const std::vector<StopPatterns::Pattern>& patterns_;
  /// [i]: length of the longest prefix of pattern i that the answer now ends with
  std::vector<uint32_t> lengths_;
  std::string held_;
  const std::string* matched_ = nullptr;
};

}  // namespace nanovllm
