#pragma once

#include <memory>

#include "nanovllm/ops/backend.h"

namespace nanovllm {

/// Whether this machine has NVIDIA's driver.
bool has_cuda_driver();

/// The backend on visible GPU rank.index, from libnanovllm_cuda.so: beside this program or library,
/// above it, in ../lib, or by the loader's path. Throws UserError that names what is missing; fewer
/// visible GPUs than ranks are. `portable` keeps to kernels that every supported GPU runs; it is
/// for tests.
std::unique_ptr<Backend> make_cuda_backend(bool portable = false, Rank rank = {});

}  // namespace nanovllm
