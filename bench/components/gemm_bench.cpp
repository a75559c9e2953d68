// GEMMs of the CPU backend: GFLOP/s, GB/s of weights that are read, and the share of the memory's
// read rate, which is measured in the same run.
//
//   gemm_bench [float32|bfloat16|float16|int8|int4|e4m3] [threads] [isa 0..6]
//
// Quantized weights have groups of 128 values (int4) or one scale for each row, and x is bfloat16.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "nanovllm/base/system/machine.h"
#include "nanovllm/ops/cpu/gemm/gemm.h"
#include "nanovllm/ops/cpu/machine/memory.h"
#include "nanovllm/ops/cpu/machine/parallel.h"

using namespace nanovllm;
using namespace nanovllm::cpu;

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Seconds of a call: a tenth of the calls were faster. Repeats the call for about `budget`
/// seconds.
template <class Call>
double best_time(Call call, double budget = 0.4) {
  call();
  std::vector<double> times;
  for (const double start = now(); now() - start < budget || times.size() < 5;) {
    const double t = now();
    call();
    times.push_back(now() - t);
  }
  std::nth_element(times.begin(), times.begin() + static_cast<long>(times.size() / 10),
                   times.end());
  return times[times.size() / 10];
}

Buffer random_elements(int64_t count, DType dtype) {
  Buffer buffer = allocate(static_cast<size_t>(count) * dtype_size(dtype));
  uint32_t state = 1;
  for (int64_t i = 0; i < count; ++i) {
    state = state * 1664525 + 1013904223;
    const float f = static_cast<float>(state >> 8) / (1 << 24) - 0.5f;
    if (dtype == DType::kF32) static_cast<float*>(buffer.get())[i] = f;
    else if (dtype == DType::kBF16) static_cast<uint16_t*>(buffer.get())[i] = f32_to_bf16(f);
    else static_cast<uint16_t*>(buffer.get())[i] = f32_to_f16(f);
  }
  return buffer;
}

/// Bytes per second of reading memory that is too large for the caches.
double read_rate() {
  constexpr int64_t kWords = int64_t{1} << 26;
  const Buffer buffer = allocate(kWords * sizeof(uint64_t));
  auto* words = static_cast<uint64_t*>(buffer.get());
  constexpr int64_t kParts = 256, kPart = kWords / kParts;
  parallel_for(kParts, [&](int64_t part, int) {
    for (int64_t i = part * kPart; i < (part + 1) * kPart; ++i) words[i] = static_cast<uint64_t>(i);
  });
  std::atomic<uint64_t> total = 0;
  const double seconds = best_time([&] {
    parallel_for(kParts, [&](int64_t part, int) {
      uint64_t sum = 0;
      for (int64_t i = part * kPart; i < (part + 1) * kPart; ++i) sum ^= words[i];
      total += sum;
    });
  });
  if (total == 1) std::puts("");  // uses the sums, so that the compiler cannot remove them
  return kWords * sizeof(uint64_t) / seconds;
}

/// A weight of random values of a quantized format.
WeightRows random_quantized(QuantizedFormat format, int64_t n, int64_t k) {
  return {n, k, [=] {
            QuantizedMatrix m{.format = format,
                              .num_rows = n,
                              .num_columns = k,
                              .scale_columns = format == QuantizedFormat::kInt4 ? 128 : k};
            m.scales.assign(static_cast<size_t>(m.num_scales()), 0.01f);
            m.values = [format](Range rows, Range columns, uint8_t* to) {
              const int mask = format == QuantizedFormat::kInt4   ? 15
                               : format == QuantizedFormat::kInt8 ? 255
                                                                  : 0x77;
              for (int64_t i = 0; i < rows.count * columns.count; ++i)
                to[i] = static_cast<uint8_t>((rows.first + i * 7) & mask);
            };
            return m;
          }};
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "bfloat16";
  const std::map<std::string, QuantizedFormat> formats = {{"int8", QuantizedFormat::kInt8},
                                                          {"int4", QuantizedFormat::kInt4},
                                                          {"e4m3", QuantizedFormat::kE4M3}};
  const auto format = formats.find(name);
  const DType dtype = format == formats.end() ? parse_float_dtype(name) : DType::kBF16;
  const int threads = argc > 2 ? std::atoi(argv[2]) : num_usable_cpus();
  const Isa isa = argc > 3 ? static_cast<Isa>(std::atoi(argv[3])) : best_isa();
  if (!is_supported(isa)) {
    std::fprintf(stderr, "error: this processor has no %s\n", isa_name(isa));
    return 2;
  }
  cpu::set_num_threads(threads);
  Gemm gemm(isa, threads);
  const double memory = read_rate();
  std::printf("%s, %s, %d threads, memory %.1f GB/s\n", name.c_str(), isa_name(isa), threads,
              memory / 1e9);
  std::printf("%6s %6s %6s %10s %10s %8s %8s\n", "m", "n", "k", "us", "GFLOP/s", "GB/s", "of mem");

  struct Shape {
    int64_t n, k;
  };
  for (const Shape s : {Shape{256, 256},
                        {1024, 1024},
                        {4096, 1024},
                        {6144, 1024},
                        {1024, 3072},
                        {4096, 4096},
                        {151936, 1024},
                        {400000, 1024}}) {
    const Buffer raw = random_elements(s.n * s.k, dtype);
    const WeightRows part = format == formats.end() ? WeightRows(Tensor(raw.get(), dtype, s.n, s.k))
                                                    : random_quantized(format->second, s.n, s.k);
    const double t = now();
    const auto w = gemm.pack(part, dtype);
    const auto bytes = static_cast<double>(w->expert_bytes);
    std::printf("pack %ld x %ld: %.1f GB/s\n", s.n, s.k, bytes / (now() - t) / 1e9);
    for (const int64_t m : {1, 2, 4, 8, 16, 32, 64, 128, 512, 2048}) {
      if (s.n > 100000 && m > 64) continue;
      const Buffer x = random_elements(m * s.k, dtype),
                   out = allocate(static_cast<size_t>(m * s.n) * 4);
      const double seconds = best_time([&] {
        gemm.matmul(Tensor(out.get(), dtype, m, s.n), Tensor(x.get(), dtype, m, s.k), *w, {});
      });
      std::printf("%6ld %6ld %6ld %10.1f %10.1f %8.1f %7.0f%%\n", m, s.n, s.k, seconds * 1e6,
                  2e-9 * static_cast<double>(m * s.n * s.k) / seconds, bytes / seconds / 1e9,
                  100 * bytes / seconds / memory);
    }
  }
}
