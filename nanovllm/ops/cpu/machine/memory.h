#pragma once

#include <cstddef>

#include "nanovllm/ops/backend.h"

namespace nanovllm::cpu {

/// Zeroed pages from the system, which cost nothing until touched; large ones ask for huge pages.
/// Throws UserError with the size.
Buffer allocate(size_t bytes);

/// The same for memory that lives as long as a model, aligned to a cache line: weights of a few
/// megabytes share huge pages, since in mappings of their own they would get small ones.
Buffer allocate_weight(size_t bytes);

/// Memory that is kept from call to call and grows to the largest request.
class Scratch {
 public:
  /// At least `bytes` bytes. What an earlier call returned is no longer valid.
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
