#pragma once

#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cuda/collectives/peers.h"
#include "nanovllm/ops/cuda/device/runtime.h"
#include "nanovllm/ops/cuda/gemm/quantized/quantized_weight.h"
#include "nanovllm/ops/cuda/gemm/token_groups.h"

// A mixture of experts: which experts a token chooses, the tokens sorted by expert, and the sum of
// its experts' results. The experts of a token are known to the device alone; all grids are sized
// for any choice, so that graphs can contain these kernels. Between sort_tokens() and add_experts()
// grouped GEMMs (gemm/grouped_gemm.h) compute the experts.
namespace nanovllm::cuda {

/// The arrays that the kernels of one mixture of experts pass to each other, in the device's
/// memory. A choice is one of the `top_k` experts of a token; T tokens have T * top_k choices.
struct ExpertChoices {
  int num_tokens = 0, num_experts = 0, top_k = 0;
  int tile_tokens = 0;         // tokens of a tile of the grouped GEMM
  float* weights = nullptr;    // [T * top_k] the weight of each choice
  int* experts = nullptr;      // [T * top_k] the expert of each choice
  int* places = nullptr;       // [T * top_k] the row of the choice among those of its expert; from
                               // sort_tokens() on, among all
  int* counts = nullptr;       // [num_experts] choices of an expert; zero between two uses
  int* num_tiles = nullptr;    // [1]
  TokenTile* tiles = nullptr;  // [T * top_k / tile_tokens + num_experts] at most
  /// `are_old`: a kernel between sort_tokens() and the one that reads them has read them too.
  TokenGroups groups(bool are_old) const { return {tiles, num_tiles, are_old}; }
};
/// The most experts, and the most that a token chooses.
inline constexpr int kMaxExperts = 512, kMaxTopK = 32;

/// Chooses for each token the top_k experts with the largest logits [T, num_experts] float32; among
/// equal ones, those with the lower numbers. NaN is the smallest. The weights are those of a
/// softmax over all experts, divided by the sum of the chosen ones if `normalizes`.
void choose_experts(Launch where, const ExpertChoices& choices, Tensor logits, bool normalizes);
/// rows [T * top_k, n] = the rows of x [T, n], once for each choice, sorted by expert. Writes the
/// tiles.
void sort_tokens(Launch where, const ExpertChoices& choices, Tensor rows, Tensor x);
/// out [T, n] = the sum over a token's choices of weight * rows [T * top_k, n], computed in
/// float32. In the rows `added` of out, the old values are added too.
void add_experts(Launch where, const ExpertChoices& choices, Tensor out, Tensor rows, Range added);

/// The arguments of few_experts(), which computes a whole mixture of experts for few tokens: norm,
/// router, choice, GEMMs and sum.
struct FewExperts {
  Tensor x;       // [T, hidden]
  Norm norm;      // without a weight, x has been normed already
  Tensor router;  // [num_experts, hidden]
  // For each expert, gate_up is [2 n, hidden] and down is [hidden, n]. Each is either a tensor or a
  // quantized weight.
  Tensor gate_up;
  const QuantizedWeight* quantized_gate_up = nullptr;
  Tensor down;
  const QuantizedWeight* quantized_down = nullptr;
  Tensor normed;                 // [T, hidden] scratch, if there is a norm
  Tensor logits;                 // [T, num_experts] float32 scratch
  Tensor act;                    // [T * top_k, n] scratch
  Tensor out;                    // [T, hidden]; may be x or normed
  Range added;                   // the rows of out whose old values are added to the sum
  const Peers* peers = nullptr;  // if not null, the sum is sent to them and not written to out
  Tensor context_lens;           // [T] int32 or none: tokens where it is 0 are padding
  bool normalizes = false;
};
/// Whether few_experts() can be used: up to 8 tokens that choose up to 64 experts together, a
/// 16-bit dtype, and weights that are both not quantized or both in the same format.
bool supports_few_experts(Launch where, const FewExperts& args);
void few_experts(Launch where, const FewExperts& args);

}  // namespace nanovllm::cuda
