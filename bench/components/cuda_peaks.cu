#include "cuda_peaks.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace {

/// Combines all words into one value, so that the compiler cannot remove the reads.
__global__ void read_kernel(const uint4* data, size_t count, uint32_t* out) {
  uint32_t sum = 0;
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    const uint4 v = data[i];
    sum += v.x ^ v.y ^ v.z ^ v.w;
  }
  if (sum == 0x12345678) *out = sum;
}

template <class Call>
double median_seconds(Call call) {
  cudaEvent_t start, stop;
  cudaEventCreate(&start);
  cudaEventCreate(&stop);
  std::vector<float> times(11);
  call();
  for (float& time : times) {
    cudaEventRecord(start);
    call();
    cudaEventRecord(stop);
    cudaEventSynchronize(stop);
    cudaEventElapsedTime(&time, start, stop);
  }
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  std::sort(times.begin(), times.end());
  return times[5] / 1000;
}

}  // namespace

MemoryPeaks measure_memory() {
  constexpr size_t kBytes = size_t{4} << 30;
  char *from = nullptr, *to = nullptr;
  cudaMalloc(&from, kBytes);
  cudaMalloc(&to, kBytes);
  cudaMemset(from, 1, kBytes);
  int num_sms = 1;
  cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, 0);
  MemoryPeaks peaks;
  peaks.copy = 2.0 * kBytes /
               median_seconds([&] { cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDeviceToDevice); });
  peaks.read = kBytes / median_seconds([&] {
                 read_kernel<<<num_sms * 16, 512>>>(reinterpret_cast<const uint4*>(from),
                                                    kBytes / 16, reinterpret_cast<uint32_t*>(to));
               });
  cudaFree(from);
  cudaFree(to);
  return peaks;
}
