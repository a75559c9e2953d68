#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nanovllm {

/// Finds stop strings in an answer that comes in pieces, and holds back text that may be the start
/// of one. The result does not depend on how the text is divided into pieces. The time for each
/// stop string is linear in the text (Knuth, Morris and Pratt, "Fast Pattern Matching in Strings",
/// 1977).
class StopStrings {
 public:
  /// No stop string may be empty. `stop` must outlive this object.
  explicit StopStrings(const std::vector<std::string>& stop);

  /// Takes a piece and returns the text that can be shown. With `ignore`, a stop string that ends
  /// in this piece is ordinary text. Nothing may be pushed after a match.
  std::string push(std::string_view piece, bool ignore = false);
  /// Returns the text that was held back, after the answer ended for another reason.
  std::string finish();
  /// The stop string that was found. If several end at the same character, it is the longest.
  const std::optional<std::string>& matched() const { return matched_; }

 private:
  struct Matcher {
    const std::string& text;
    std::vector<uint32_t>
        fallback;  // [i]: length of the longest proper prefix of text[0, i) that is its suffix
    uint32_t length = 0;  // of the longest prefix of `text` that the answer now ends with
    explicit Matcher(const std::string& text);
    bool advance(char c);
  };

  std::vector<Matcher> matchers_;
  std::string held_;
  std::optional<std::string> matched_;
};

}  // namespace nanovllm
