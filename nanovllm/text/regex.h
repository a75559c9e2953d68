#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

struct pcre2_real_code_8;

namespace nanovllm {

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

  /// Calls on_match(begin, end), in bytes, for each match in turn; they do not overlap.
  void find_all(std::string_view text, const std::function<void(size_t, size_t)>& on_match) const;

 private:
  pcre2_real_code_8* code_;
};

}  // namespace nanovllm
