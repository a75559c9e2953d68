#pragma once

#include <cstddef>
#include <string>

namespace nanovllm {

/// The memory that a backend computes in, in bytes.
struct Memory {
  size_t total = 0, free = 0;
  size_t own = 0;  ///< of a GPU's memory, what this process has allocated

  /// What is left of the share `utilization` of all memory, less what is in use now, by whomever,
  /// and the `to_come` bytes that this process will allocate for other things; at least 0.
  size_t left(double utilization, size_t to_come) const;
};

/// Who holds a GPU's memory, for a message: "of the GPU's 80.00 GiB, other programs and the driver
/// hold 60.00, this process holds 3.00, and 17.00 are free".
std::string holders(const Memory& memory);

}  // namespace nanovllm
