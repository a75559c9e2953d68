#include "nanovllm/ops/cpu/machine/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>

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

namespace {

/// Memory that several buffers share. It is freed with the last of them.
struct Chunk {
  Buffer memory;
  size_t used = 0;
};
constexpr size_t kChunkBytes = 32 * kHugePage;

}  // namespace

Buffer allocate_weight(size_t bytes) {
  if (bytes > kChunkBytes / 4) return allocate(bytes);
  static std::mutex mutex;
  static std::weak_ptr<Chunk> last;
  const std::lock_guard lock(mutex);
  std::shared_ptr<Chunk> chunk = last.lock();
  if (chunk == nullptr || kChunkBytes - chunk->used < bytes)
    last = chunk = std::make_shared<Chunk>(allocate(kChunkBytes));
  void* const p = static_cast<char*>(chunk->memory.get()) + chunk->used;
  constexpr size_t kLine = 64;
  chunk->used += (bytes + kLine - 1) / kLine * kLine;
  return {p, [chunk = std::move(chunk)](void*) {}};
}

}  // namespace nanovllm::cpu
