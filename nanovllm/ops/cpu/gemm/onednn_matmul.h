#pragma once

#include <array>
#include <dnnl.hpp>
#include <map>
#include <unordered_map>

#include "nanovllm/ops/cpu/kernels/gemm.h"
#include "nanovllm/ops/cpu/machine/memory.h"

namespace nanovllm::cpu {

/// bfloat16 GEMMs of many rows through oneDNN, which has AMX; its format BA16a32b2a is the layout
/// of our panels of 32 columns, so both read the same weight. Runs on the calling thread's OpenMP;
/// calls come from one thread at a time. It needs AVX512-BF16.
class OnednnMatmul {
 public:
  /// Rows from which it is faster than our kernels on a processor with AMX.
  static constexpr int64_t kMinRows = 9;
  static bool has_amx();

  /// Throws UserError if there is no memory.
  OnednnMatmul();
  /// Throws UserError if there is no memory to compile the GEMM.
  void run(const GemmCall& call, int64_t rows);

 private:
  /// What a primitive is compiled for: rows, n, k, x_stride, out_stride, out_f32, has a bias.
  using Key = std::array<int64_t, 7>;
  /// The operands' memory is set at each call.
  struct Matmul {
    dnnl::matmul primitive;
    std::unordered_map<int, dnnl::memory> operands;
  };
  Matmul compile(const GemmCall& call, int64_t rows) const;
  void execute(Matmul& matmul, const GemmCall& call);

  dnnl::engine engine_;
  dnnl::stream stream_;
  std::map<Key, Matmul> compiled_;
  Scratch scratch_;
};

}  // namespace nanovllm::cpu
