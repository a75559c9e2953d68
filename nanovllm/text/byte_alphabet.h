#pragma once

#include <string>
#include <string_view>

namespace nanovllm {

// The byte-level alphabet of GPT-2 (encoder.py of its release), which has a printable character for
// each byte: a space is "Ġ".

/// Appends to `bytes` the bytes that `token` spells. If a character of it is not in the alphabet,
/// returns false and appends nothing.
bool append_spelled_bytes(std::string_view token, std::string& bytes);

/// Appends the spelling of each byte.
void append_spelling(std::string_view bytes, std::string& token);

}  // namespace nanovllm
