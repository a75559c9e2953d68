#include "nanovllm/base/check.h"
#include "nanovllm/ops/cuda/backend/cuda_backend.h"
#include "nanovllm/ops/cuda/elementwise/elementwise.h"
#include "nanovllm/ops/cuda/experts/experts.h"
#include "nanovllm/ops/cuda/gemm/grouped_gemm.h"

// The mixture of experts of CudaBackend. The tokens are sorted by expert, a copy of each for every
// expert that it chooses; two grouped GEMMs compute the experts; and each token adds up its rows.
namespace nanovllm::cuda {

namespace {

/// Uses the memory of `routing`; of `starts` and `tokens` the kernels need other contents than the
/// operations that they replace.
ExpertChoices choices_of(const Routing& routing, int tile_tokens) {
  ExpertChoices choices = {.num_tokens = static_cast<int>(routing.weights.shape[0]),
                           .num_experts = static_cast<int>(routing.logits.shape[1]),
                           .top_k = static_cast<int>(routing.weights.shape[1]),
                           .tile_tokens = tile_tokens};
  choices.weights = routing.weights.as<float>();
  choices.experts = routing.tokens.as<int>();
  choices.places = routing.entries.as<int>();
  // The counts are at a place that does not depend on T, because they must stay zero.
  choices.counts = routing.scratch.as<int>();
  choices.num_tiles = choices.counts + choices.num_experts;
  choices.tiles = reinterpret_cast<TokenTile*>(choices.num_tiles + 1);
  const int64_t num_tiles = choices.num_tokens * choices.top_k / tile_tokens + choices.num_experts;
  check(routing.scratch.size() > choices.num_experts + 3 * num_tiles, "a routing scratch of {}",
        routing.scratch.size());
  return choices;
}

}  // namespace

void CudaBackend::norm_experts(Residual& residual, const Norm& norm, const ExpertArgs& experts) {
  const ContextScope here(device_.context);
  const bool is_normed = sum_norm(residual, norm);
  const Tensor sum = residual.sum(), x = residual.scratch(), rows = experts.out;
  const auto [out, added, peers] = begin_addend(residual);
  const auto& gate_up = static_cast<const DeviceWeight&>(experts.gate_up);
  const auto& down = static_cast<const DeviceWeight&>(experts.down);
  const FewExperts few = {
      .x = is_normed ? x : sum,
      .norm = is_normed ? Norm() : norm,
      .router = gemms_.matrix_of(experts.router, out.dtype),
      .gate_up = gate_up.matrix,
      .quantized_gate_up = gate_up.quantized ? &*gate_up.quantized : nullptr,
      .down = down.matrix,
      .quantized_down = down.quantized ? &*down.quantized : nullptr,
      .normed = x,
      .logits = experts.routing.logits,
      .act = experts.narrow,
      .out = out,
      .added = added,
      .peers = peers,
      // Only a step with one token of each sequence may be padded.
      .context_lens = step_.num_seqs() == x.shape[0] ? step_.context_lens : Tensor(),
      .normalizes = experts.normalize};
  if (supports_few_experts(device_.where, few)) return few_experts(device_.where, few);
  const bool is_native = !device_.portable() && out.dtype == DType::kBF16 &&
                         out.shape[1] % 8 == 0 && experts.narrow.shape[1] % 8 == 0;
  const auto num_experts = static_cast<int>(experts.routing.logits.shape[1]);
  const int tile_tokens =
      grouped_tile_tokens(static_cast<int>(rows.shape[0]), num_experts, is_native);
  const ExpertChoices choices = choices_of(experts.routing, tile_tokens);
  if (!is_normed) cuda::rms_norm(device_.where, x, sum, norm);
  gemms_.store(experts.routing.logits, x, experts.router);
  choose_experts(device_.where, choices, experts.routing.logits, experts.normalize);
  sort_tokens(device_.where, choices, rows, x);
  const auto multiply = [&](Tensor to, Tensor from, const Weight& w, Epilogue epilogue,
                            bool groups_are_old) {
    // A quantized weight becomes floats first, all experts of it, because the tiles of
    // grouped_gemm() read floats.
    const GemmArgs args = {.out = to.data,
                           .x = from.data,
                           .w = gemms_.matrix_of(w, out.dtype).data,
                           .num_tokens = static_cast<int>(from.shape[0]),
                           .n = static_cast<int>(to.shape[1]),
                           .k = static_cast<int>(from.shape[1]),
                           .epilogue = epilogue};
    // If an earlier kernel than the previous one wrote the groups, this kernel may begin to read w
    // while the previous one still runs.
    const bool is_new = static_cast<const DeviceWeight&>(w).quantized.has_value();
    grouped_gemm(device_.where, {args, num_experts, choices.groups(groups_are_old && !is_new)},
                 tile_tokens, sum.dtype, is_native);
  };
  multiply(experts.narrow, rows, experts.gate_up, Epilogue::kSwiglu, /*groups_are_old=*/false);
  multiply(rows, experts.narrow, experts.down, Epilogue::kStore, /*groups_are_old=*/true);
  add_experts(device_.where, choices, out, rows, added);
  if (peers != nullptr) collectives_->send(out);
}

}  // namespace nanovllm::cuda
