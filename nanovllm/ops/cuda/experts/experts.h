#pragma once

#include "nanovllm/base/tensor.h"
#include "nanovllm/ops/cuda/device/runtime.h"
#include "nanovllm/ops/cuda/gemm/token_groups.h"

// A mixture of experts: which experts a token chooses, the tokens sorted by expert, and the sum of
// what its experts give. The expert of a token is known to the device alone; all grids are sized
// for any choice, so that graphs can contain these kernels. Between choose_experts() and
// add_experts() a grouped GEMM (gemm/grouped_gemm.h) computes the experts.
namespace nanovllm::cuda {

/// What the kernels of one mixture of experts pass to each other, in the device's memory. A choice
/// is one of the `top_k` experts of a token; T tokens have T * top_k choices.
struct ExpertChoices {
  int num_tokens = 0, num_experts = 0, top_k = 0;
  int tile_tokens = 0;         // of the grouped GEMM
  float* weights = nullptr;    // [T * top_k] of each choice
  int* experts = nullptr;      // [T * top_k]
  int* places = nullptr;       // [T * top_k] the row of the choice among those of its expert; from
                               // sort_tokens() on, among all
  int* counts = nullptr;       // [num_experts] choices of an expert; zero before and after
  int* num_tiles = nullptr;    // [1]
  TokenTile* tiles = nullptr;  // [T * top_k / tile_tokens + num_experts] at most
  /// `are_old`: a kernel between sort_tokens() and the one that reads them has read them too.
  TokenGroups groups(bool are_old) const { return {tiles, num_tiles, are_old}; }
};
/// The most experts, and the most that a token chooses.
inline constexpr int kMaxExperts = 512, kMaxTopK = 32;

/// Whether route_few() can be used: few tokens of a 16-bit dtype in rows of a usual width.
bool supports_route_few(const ExpertChoices& choices, Tensor x);
/// rms_norm of x [T, n], whose result is x_normed; logits [T, num_experts] = x_normed router^T;
/// then choose_experts() and sort_tokens(): in two kernels instead of four and a GEMM.
struct RouteArgs {
  Tensor x, norm_weight;  // [T, n]; [n] float32
  float eps = 0;
  Tensor router;  // [num_experts, n]
  Tensor logits;  // [T, num_experts] float32 scratch
  Tensor normed;  // [T, n] scratch
  Tensor rows;    // [T * top_k, n]
  bool normalizes = false;
};
void route_few(Launch where, const ExpertChoices& choices, const RouteArgs& args);

/// Chooses the top_k experts with the largest logits [T, num_experts] float32; of equal ones, the
/// lower number. Their weights are those of a softmax over all experts, divided by the sum of the
/// chosen ones if `normalizes`. NaN is the smallest.
void choose_experts(Launch where, const ExpertChoices& choices, Tensor logits, bool normalizes);
/// rows [T * top_k, n] = the rows of x [T, n], once for each choice, sorted by expert. Writes the
/// tiles.
void sort_tokens(Launch where, const ExpertChoices& choices, Tensor rows, Tensor x);
/// out [T, n] += the sum over a token's choices of weight * rows [T * top_k, n], which is computed
/// in float32. Without `adds` it is stored instead.
void add_experts(Launch where, const ExpertChoices& choices, Tensor out, Tensor rows, bool adds);

}  // namespace nanovllm::cuda
