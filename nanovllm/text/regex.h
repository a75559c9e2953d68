#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

struct pcre2_real_code_8;

namespace nanovllm {

/// A part of a text, in bytes: a match of a pattern, or what lies between two.
struct Match {
  size_t begin, end;
  bool matched;
};

/// A pattern of a tokenizer.json, written for Oniguruma (Ruby's syntax) and run by PCRE2's JIT over
/// well-formed UTF-8. \p{..} are of PCRE2's Unicode version. Immutable and thread-safe.
class Regex {
 public:
  /// Throws UserError, beginning with `where`, for a syntax error and for what the two read
  /// differently.
  Regex(std::string_view pattern, const std::string& where);
  Regex(Regex&& other) noexcept;
  Regex& operator=(Regex&&) = delete;
  ~Regex();

  /// All of `text` in parts, none empty.
  std::vector<Match> find_all(std::string_view text) const;

 private:
  pcre2_real_code_8* code_;
};

}  // namespace nanovllm
