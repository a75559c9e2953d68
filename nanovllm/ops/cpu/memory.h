#pragma once

#include <cstddef>

#include "nanovllm/ops/backend.h"

namespace nanovllm::cpu {

/// Zeroed pages from the system, which cost nothing until touched; large ones ask for huge pages.
/// Throws UserError with the size.
Buffer allocate(size_t bytes);

}  // namespace nanovllm::cpu
