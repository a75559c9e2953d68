#pragma once

#include <string>
#include <string_view>

namespace nanovllm {

// The byte-level alphabet of GPT-2 (encoder.py of its release), which has a printable character for
// each byte: a space is "Ġ".

/// Appends to `bytes` what `token` spells in the alphabet. If a character is not in it, returns
/// false and appends nothing.
bool append_spelled_bytes(std::string_view token, std::string& bytes);

/// Appends the spelling of each byte.
void append_spelling(std::string_view bytes, std::string& token);

}  // namespace nanovllm
