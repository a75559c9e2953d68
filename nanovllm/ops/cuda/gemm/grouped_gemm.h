#pragma once

#include "nanovllm/ops/cuda/gemm/gemm_args.h"
#include "nanovllm/ops/cuda/gemm/token_groups.h"

namespace nanovllm::cuda {

/// A grouped GEMM multiplies groups of neighbouring rows of x by a matrix each: args.w is
/// [num_groups, n or 2 n, k], and args.num_tokens counts the rows of all groups. The grid does not
/// depend on how many rows a group has, which only the device knows, so a graph may contain it.
struct GroupedGemm {
  GemmArgs args;  // without norm and bias; the epilogue is kStore or kSwiglu
  int num_groups = 0;
  TokenGroups groups;
};

/// How many tokens a tile of grouped_gemm() has, so that TokenGroups can be made for it: the fewer
/// rows the groups have on average, the smaller the tile is. `is_native` says whether the kernels
/// for Hopper are used.
int grouped_tile_tokens(int num_tokens, int num_groups, bool is_native);

/// Runs a grouped GEMM in tiles of `tile_tokens`: on Hopper's tensor cores if `is_native`, which
/// needs bfloat16 and n and k that are multiples of 8; else with a plain kernel for every GPU.
void grouped_gemm(Launch where, const GroupedGemm& gemm, int tile_tokens, DType dtype,
                  bool is_native);

}  // namespace nanovllm::cuda
