#pragma once

#include <string>
#include <string_view>

namespace nanovllm::server {

/// `prefix` and 24 hexadecimal digits, which are 96 random bits: an id that no other call in any
/// process returns. Any thread may call it. Throws std::logic_error if the kernel has no
/// randomness.
std::string new_id(std::string_view prefix);

}  // namespace nanovllm::server
