#include "nanovllm/ops/cuda/backend/parts/weight_packer.h"

#include <memory>
#include <utility>
#include <vector>

#include "nanovllm/ops/cuda/elementwise/elementwise.h"
#include "nanovllm/ops/cuda/gemm/quantized/pack.h"

namespace nanovllm::cuda {

void WeightPacker::begin_upload() {
  if (upload_) return;
  upload_.emplace([this] {
    if (device_.collectives != nullptr)
      device_.collectives->ranks().progress().fetch_add(1, std::memory_order_relaxed);
  });
}

void WeightPacker::load(const std::function<void()>& load) {
  const auto end = [this](void*) {
    is_loading_ = false;
    upload_.reset();  // also after an error: no thread reads any more
  };
  begin_upload();
  const std::unique_ptr<void, decltype(end)> at_end(this, end);
  is_loading_ = true;
  load();
  upload_->finish();
}

void WeightPacker::copy_rows(std::span<const WeightUpload::Copy> copies) {
  cuda_check(cudaStreamSynchronize(device_.where.stream),
             "weights");  // copies use streams of their own
  upload_->copy(copies);
  if (!is_loading_) upload_->finish();
}

WeightPtr WeightPacker::pack(std::span<const WeightRows> parts, DType dtype) {
  if (dtype == DType::kF32) return pack_floats(parts, dtype);
  std::optional<QuantizedPack> quantized = pack_quantized(parts);
  if (!quantized) return pack_floats(parts, dtype);
  begin_upload();
  auto weight = std::make_shared<DeviceWeight>();
  weight->quantized = quantized->weight;
  QuantizedWeight& to = *weight->quantized;
  weight->memory = device_.allocate(static_cast<size_t>(to.n * to.row_bytes()));
  weight->scales = device_.allocate(quantized->scales.size() * sizeof(uint32_t));
  to.values = weight->memory.get();
  to.scales = static_cast<const uint32_t*>(weight->scales.get());
  gemms_.reserve(to, dtype);
  std::vector<WeightUpload::Copy> copies;
  auto* place = static_cast<char*>(weight->memory.get());
  for (const WeightRows& rows : quantized->rows) {
    copies.push_back({place, rows, weight});
    place += static_cast<size_t>(rows.num_rows()) * rows.row_bytes();
  }
  copy_rows(copies);
  device_.upload(weight->scales.get(), quantized->scales.data(),
                 quantized->scales.size() * sizeof(uint32_t));
  return weight;
}

WeightPtr WeightPacker::pack_floats(std::span<const WeightRows> parts, DType dtype) {
  begin_upload();
  auto weight = std::make_shared<DeviceWeight>();
  int64_t n = 0;
  const int64_t k = parts.front().num_columns();
  for (const WeightRows& part : parts) n += part.num_rows();
  weight->matrix = Tensor(nullptr, dtype, n, k);
  weight->memory = device_.allocate(weight->matrix.bytes());
  weight->matrix.data = weight->memory.get();
  int64_t row = 0;
  std::vector<WeightUpload::Copy> copies;
  std::vector<std::pair<Tensor, Tensor>> conversions;  // destination, source
  std::vector<Buffer> raw_memory;
  for (const WeightRows& part : parts) {
    Tensor to = weight->matrix.rows(row, part.num_rows());
    row += part.num_rows();
    if (part.dtype() != dtype) {
      Tensor raw(nullptr, part.dtype(), part.num_rows(), k);
      raw_memory.push_back(device_.allocate(raw.bytes()));
      raw.data = raw_memory.back().get();
      conversions.emplace_back(to, raw);
      to = raw;
    }
    copies.push_back({to.data, part, weight});
  }
  copy_rows(copies);
  if (conversions.empty()) return weight;
  upload_->finish();
  for (const auto& [to, raw] : conversions) convert(device_.where, to, raw);
  cuda_check(cudaStreamSynchronize(device_.where.stream), "weights");
  return weight;
}

}  // namespace nanovllm::cuda
