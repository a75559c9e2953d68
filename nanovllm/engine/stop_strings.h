#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nanovllm {

/// Looks for stop strings in an answer that comes in pieces, and keeps back what may become one: as
/// if the text came byte by byte, whatever the tokens are. Time is linear in the text for each stop
/// string (Knuth, Morris and Pratt, "Fast Pattern Matching in Strings", 1977).
class StopStrings {
 public:
  /// None is empty. `stop` must outlive it.
  explicit StopStrings(const std::vector<std::string>& stop);

  /// Takes a piece and returns the text that is certain to be shown. With `ignore` a stop string
  /// that ends in this piece is text like any other. Nothing may be pushed after a match.
  std::string push(std::string_view piece, bool ignore = false);
  /// What was kept back, once the answer has ended otherwise.
  std::string finish();
  /// The stop string found: of those that end first the longest.
  const std::optional<std::string>& matched() const { return matched_; }

 private:
  struct Matcher {
    const std::string& text;
    std::vector<uint32_t> fallback;  // [i]: the longest proper beginning of text[0, i) that ends it
    uint32_t length = 0;             // of the text's beginning that the answer now ends with
    explicit Matcher(const std::string& text);
    bool advance(char c);
  };

  std::vector<Matcher> matchers_;
  std::string held_;
  std::optional<std::string> matched_;
};

}  // namespace nanovllm
