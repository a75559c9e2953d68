#include "nanovllm/ops/cpu/machine/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/machine.h"

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

namespace {

/// Memory that several buffers share. The last of them frees it.
struct Chunk {
  Buffer memory;
  size_t bytes = 0, used = 0;
};
constexpr size_t kChunkBytes = 32 * kHugePage;

/// The size of the next chunk: a small share of what is left, since the limit of the address space
/// (ulimit -v) also counts what is never used.
size_t chunk_bytes(size_t needed) {
  constexpr size_t kShare = 32;
  return std::max(needed, std::min(kChunkBytes, available_host_memory() / kShare));
}

}  // namespace

Buffer allocate_weight(size_t bytes) {
  if (bytes > kChunkBytes / 4) return allocate(bytes);
  static std::mutex mutex;
  static std::weak_ptr<Chunk> last;
  const std::lock_guard lock(mutex);
  std::shared_ptr<Chunk> chunk = last.lock();
  constexpr size_t kLine = 64;
  const size_t needed = (bytes + kLine - 1) / kLine * kLine;
  if (chunk == nullptr || chunk->bytes - chunk->used < needed) {
    const size_t size = chunk_bytes(needed);
    last = chunk = std::make_shared<Chunk>(Chunk{allocate(size), size});
  }
  void* const p = static_cast<char*>(chunk->memory.get()) + chunk->used;
  chunk->used += needed;
  return {p, [chunk = std::move(chunk)](void*) {}};
}

}  // namespace nanovllm::cpu
