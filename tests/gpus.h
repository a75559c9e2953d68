#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>

namespace nanovllm::testing {

/// The number of GPUs of NVIDIA's driver that CUDA_VISIBLE_DEVICES leaves; 0 if it is not loaded.
inline int num_gpus() {
  std::error_code none;
  const std::filesystem::directory_iterator gpus("/proc/driver/nvidia/gpus", none);
  const auto all = none ? 0 : std::distance(begin(gpus), end(gpus));
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) return static_cast<int>(all);
  const std::string_view list = visible;
  return static_cast<int>(std::min(all, list.empty() ? 0 : std::ranges::count(list, ',') + 1));
}

}  // namespace nanovllm::testing
