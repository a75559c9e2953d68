#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace nanovllm {

/// The properties of a code point that tokenization uses. Every code point has exactly one of the
/// first four.
enum CharClass : uint8_t {
  kLetter = 1,    ///< \p{L}
  kNumber = 2,    ///< \p{N}
  kSpace = 4,     ///< White_Space, which is \s in Rust's regex and Oniguruma
  kOther = 8,     ///< none of these
  kNewline = 16,  ///< \r or \n, which are kSpace too
  kMark = 32,     ///< a canonical combining class other than 0
  /// NFC may change the character or join it to the one before (NFC_Quick_Check is not Yes).
  kUnstable = 64
};

/// The CharClass bits of all code points, from utf8proc's tables and the additions of Unicode 16.
class CharTable {
 public:
  static const CharTable& get();
  uint8_t operator[](char32_t c) const {
    return c < classes_.size() ? classes_[c] : static_cast<uint8_t>(kOther);
  }

 private:
  CharTable();
  // Planes 4 to 16 have no letter, number or space, and nothing that NFC changes.
  std::array<uint8_t, 0x40000> classes_;
};

inline bool is_white_space(char32_t c) { return (CharTable::get()[c] & kSpace) != 0; }

/// Well-formed `text` in Normalization Form C: `text` itself if nothing changes, otherwise a text
/// in `storage`. Reads each character once, and normalizes only around characters that may change
/// (UAX #15, section 9).
std::string_view to_nfc(std::string_view text, std::string& storage);

enum class NormalForm { kNfd, kNfkc, kNfkd };

/// Well-formed `text` in a normal form, as the Python package `tokenizers` makes it: with the
/// tables of Unicode 10.
std::string normal_form(std::string_view text, NormalForm form);

/// A code point in UTF-8.
std::string to_utf8(char32_t c);

/// \w of Rust's regex: alphabetic, mark, decimal digit, connector punctuation, join control (UTS
/// #18, Annex C).
bool is_word_char(char32_t c);

}  // namespace nanovllm
