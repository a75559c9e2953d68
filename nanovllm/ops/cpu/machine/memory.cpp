#include "nanovllm/ops/cpu/machine/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "nanovllm/base/check.h"

namespace nanovllm::cpu {

constexpr size_t kHugePage = size_t{2} << 20;

Buffer allocate(size_t bytes) {
  const size_t length = std::max<size_t>(bytes, 1);
  void* p = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  require(p != MAP_FAILED, "cannot allocate {} bytes of memory: {}", bytes, std::strerror(errno));
  // If the system refuses, only speed changes: without huge pages a read of all weights spends a
  // tenth of its time in page walks.
  if (length >= 2 * kHugePage) madvise(p, length, MADV_HUGEPAGE);
  return {p, [length](void* q) { munmap(q, length); }};
}

}  // namespace nanovllm::cpu
