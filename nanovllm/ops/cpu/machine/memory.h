#pragma once

#include <cstddef>

#include "nanovllm/ops/backend.h"

namespace nanovllm::cpu {

/// Zeroed pages from the system, which cost nothing until they are used; large buffers ask for huge
/// pages. Throws UserError with the size if there is no memory.
Buffer allocate(size_t bytes);

/// Zeroed memory that lives as long as a model, aligned to a cache line. Weights of a few megabytes
/// share huge pages, since in mappings of their own they would get small ones.
Buffer allocate_weight(size_t bytes);

/// Memory that is kept from call to call and grows to the largest request.
class Scratch {
 public:
  /// Returns at least `bytes` bytes. Memory that an earlier call returned is no longer valid.
  void* reserve(size_t bytes) {
    if (bytes > bytes_) {
      memory_ = allocate(bytes);
      bytes_ = bytes;
    }
    return memory_.get();
  }

 private:
  Buffer memory_;
  size_t bytes_ = 0;
};

}  // namespace nanovllm::cpu
