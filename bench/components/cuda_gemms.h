#pragma once

#include <cstdint>
#include <vector>

#include "cuda_measure.h"

namespace nanovllm {

/// Times the GEMMs of two models at these numbers of tokens; without any, at usual ones. Weights
/// are in bfloat16, or in E4M3 with quantized activations. With `all_configs` also in each tile
/// configuration.
void bench_gemms(CudaMeasure& on, bool all_configs, bool e4m3, std::vector<int64_t> counts);

}  // namespace nanovllm
