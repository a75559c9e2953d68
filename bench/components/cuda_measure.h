#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cuda_peaks.h"
#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cuda_library.h"

namespace nanovllm {

/// Backends on one GPU, what this GPU reaches at best, and timings of their calls.
class CudaMeasure {
 public:
  CudaMeasure()
      : gpu_(make_cuda_backend()),
        portable_(make_cuda_backend({.portable = true})),
        sync_word_(gpu_->allocate(4)) {}

  void peaks() {
    const MemoryPeaks memory = measure_memory();
    copy_ = memory.copy;
    read_ = memory.read;
    const int64_t n = 8192;
    const Tensor x = random(n, n), out = random(n, n);
    const std::vector<uint16_t> host = random_values(n * n);
    const Tensor part(const_cast<uint16_t*>(host.data()), DType::kBF16, n, n);
    const WeightPtr w = gpu_->pack(part, DType::kBF16);
    flops_ = 2.0 * n * n * n / timed(20, [&] { gpu_->matmul(out, x, *w); });
    fmt::print("{}\ncopy {:.2f} TB/s, read {:.2f} TB/s, bf16 GEMM {:.0f} TFLOP/s\n",
               gpu_->describe(), copy_ / 1e12, read_ / 1e12, flops_ / 1e12);
  }

  void print(const std::string& name, int64_t rows, int64_t bytes, double time) const {
    fmt::print("{}, {} rows: {:.1f} us, {:.2f} TB/s, {:.0f}% of copy\n", name, rows, time * 1e6,
               static_cast<double>(bytes) / time / 1e12,
               100 * static_cast<double>(bytes) / time / copy_);
  }
  /// Seconds that one call takes: the median of five rounds.
  double timed(int calls, const std::function<void()>& call, Backend* gpu = nullptr) {
    if (gpu == nullptr) gpu = gpu_.get();
    call();
    std::vector<double> times;
    for (int round = 0; round < 5; ++round) {
      sync(*gpu);
      const double start = now();
      for (int i = 0; i < calls; ++i) call();
      sync(*gpu);
      times.push_back((now() - start) / calls);
    }
    std::ranges::sort(times);
    return times[2];
  }
  void sync(Backend& gpu) {
    int32_t word = 0;
    gpu.download(&word, sync_word_.get(), sizeof word);
  }
  static std::vector<uint16_t> random_values(int64_t count) {
    static std::vector<uint16_t> table;
    if (table.empty()) {
      std::mt19937 generator(1);
      std::normal_distribution<float> normal;
      table.resize((1 << 20) + 7);
      for (uint16_t& x : table) x = f32_to_bf16(normal(generator));
    }
    std::vector<uint16_t> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) values[i] = table[i % table.size()];
    return values;
  }
  Tensor random(int64_t n, int64_t k) {
    buffers_.push_back(gpu_->allocate(static_cast<size_t>(n * k) * 2));
    const std::vector<uint16_t> host = random_values(n * k);
    gpu_->upload(buffers_.back().get(), host.data(), host.size() * 2);
    return {buffers_.back().get(), DType::kBF16, n, k};
  }

  std::unique_ptr<Backend> gpu_, portable_;  // portable_ uses cuBLASLt from 17 tokens on
  Buffer sync_word_;
  double copy_ = 1, read_ = 1, flops_ = 1;
  std::vector<Buffer> buffers_;  // of random()
  int64_t num_graphs_ = 0;

 private:
  static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

}  // namespace nanovllm
