#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

struct pcre2_real_code_8;

namespace nanovllm {

/// A pattern of a tokenizer.json, written for Oniguruma (oniguruma.h) and run by PCRE2's JIT over
/// well-formed UTF-8. \p{..} has the meaning of PCRE2's Unicode version. Immutable and thread-safe.
///
/// A pattern may backtrack, or look far ahead from every position, so that a text takes quadratic
/// time or worse. Published patterns do not: they look far ahead only for a match that they then
/// return. So each match is first searched in the next kNearBytes, with few backtracks, at the
/// JIT's full speed. If it does not end there, it is searched again while every move is counted,
/// and the number of moves is bounded for the whole text.
class Regex {
 public:
  /// Throws UserError that begins with `where` for a syntax error, and for syntax that is not
  /// supported.
  Regex(std::string_view pattern, const std::string& where);

  /// Calls on_match(begin, end), in bytes, for each match in turn; they do not overlap. Throws
  /// UserError if this takes more than max_moves().
  void find_all(std::string_view text, const std::function<void(size_t, size_t)>& on_match) const;

  /// The most moves for a text. A move steps over a character or tries a part of the pattern.
  /// Published patterns take up to 4 moves for each byte of a megabyte of one letter.
  static int64_t max_moves(size_t text_bytes) {
    return 64 * static_cast<int64_t>(text_bytes) + 4096;
  }
  static constexpr size_t kNearBytes = 128;

 private:
  struct FreeCode {
    void operator()(pcre2_real_code_8* code) const;
  };
  using Code = std::unique_ptr<pcre2_real_code_8, FreeCode>;
  Code compile(const std::string& pattern, uint32_t options) const;

  std::string where_, pattern_;
  Code near_;     // gives up after a few backtracks
  Code counted_;  // calls Moves::count() before each part of the pattern
};

}  // namespace nanovllm
