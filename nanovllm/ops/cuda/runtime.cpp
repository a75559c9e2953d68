#include "nanovllm/ops/cuda/runtime.h"

#include <fmt/format.h>

#include <stdexcept>

namespace nanovllm::cuda {

void cuda_check(cudaError_t error, const char* what, std::source_location where) {
  if (error == cudaSuccess) [[likely]]
    return;
  throw std::runtime_error(fmt::format("{}:{}: CUDA, {}: {} ({})", where.file_name(), where.line(),
                                       what, cudaGetErrorString(error), cudaGetErrorName(error)));
}

void check_args(bool ok, const char* what, std::source_location where) {
  if (ok) [[likely]]
    return;
  throw std::logic_error(fmt::format("{}:{}: {}", where.file_name(), where.line(), what));
}

}  // namespace nanovllm::cuda
