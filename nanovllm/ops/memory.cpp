#include "nanovllm/ops/memory.h"

#include <fmt/format.h>

#include <algorithm>

namespace nanovllm {

size_t Memory::left(double utilization, size_t to_come) const {
  const auto share = static_cast<size_t>(utilization * static_cast<double>(total));
  const size_t taken = total - free + to_come;
  return share > taken ? share - taken : 0;
}

std::string holders(const Memory& memory) {
  const auto gib = [](size_t bytes) { return static_cast<double>(bytes) / (size_t{1} << 30); };
  const size_t known = std::min(memory.total, memory.free + memory.own);
  return fmt::format(
      "of the GPU's {:.2f} GiB, other programs and the driver hold {:.2f}, this process holds "
      "{:.2f}, and {:.2f} are free",
      gib(memory.total), gib(memory.total - known), gib(memory.own), gib(memory.free));
}

}  // namespace nanovllm
