#pragma once

#include <filesystem>

namespace nanovllm::testing {

/// The number of GPUs of NVIDIA's driver; 0 if it is not loaded.
inline int num_gpus() {
  std::error_code none;
  const std::filesystem::directory_iterator gpus("/proc/driver/nvidia/gpus", none);
  return none ? 0 : static_cast<int>(std::distance(begin(gpus), end(gpus)));
}

}  // namespace nanovllm::testing
