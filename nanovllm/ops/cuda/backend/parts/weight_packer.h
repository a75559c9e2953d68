#pragma once

#include <functional>
#include <optional>
#include <span>

#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cuda/backend/parts/device.h"
#include "nanovllm/ops/cuda/backend/parts/weight_upload.h"
#include "nanovllm/ops/cuda/gemm/gemms.h"

namespace nanovllm::cuda {

/// Makes the weights of a model on the device.
class WeightPacker {
 public:
  WeightPacker(Device& device, Gemms& gemms) : device_(device), gemms_(gemms) {}

  // They do what Backend says.
  void load(const std::function<void()>& load);
  WeightPtr pack(std::span<const WeightRows> parts, DType dtype);
  /// Frees the memory of uploads if all weights have been loaded.
  void end_uploads() {
    if (!is_loading_) upload_.reset();
  }

 private:
  void begin_upload();
  /// Copies rows to the device; in load() it need not wait until all are there.
  void copy_rows(std::span<const WeightUpload::Copy> copies);
  WeightPtr pack_floats(std::span<const WeightRows> parts, DType dtype);

  Device& device_;
  Gemms& gemms_;
  std::optional<WeightUpload> upload_;
  bool is_loading_ = false;  // in load()
};

}  // namespace nanovllm::cuda
