#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace nanovllm {

/// Returns what is wrong with the value of an option, or an empty text. It may rewrite the value.
using Check = std::function<std::string(std::string& value)>;

/// Accepts a whole number in decimal digits.
Check whole_number(int64_t least, uint64_t most);
/// Accepts a whole number of 64 bits, which may have a unit, as in vLLM: 25.6k is 25,600 and 2K is
/// 2,048; k, m, g and t are powers of 1,000, K, M, G and T powers of 1,024.
Check count();
Check decimal_number();
/// Accepts a number of bytes, which may end with K, M, G or T, the powers of 1,024: 4G, 1.5GiB,
/// 512m.
Check byte_size();
/// Accepts a text in UTF-8.
Check utf8_text();
/// Accepts a path, which may have any bytes but must not be empty.
Check not_empty();
/// Accepts one of the names.
Check known_name(std::vector<std::string> names);

}  // namespace nanovllm
