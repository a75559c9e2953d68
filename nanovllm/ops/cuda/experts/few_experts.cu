#include "nanovllm/ops/cuda/experts/few_experts.cuh"

//   out = the sum over the chosen experts e of weight[e] * down[e] swiglu(gate_up[e] rms_norm(x)),
// a mixture of experts for few tokens, in three kernels. They are bound by memory bandwidth, since
// the weights of the chosen experts are read once, and by the latency from one kernel to the next:
//   logits    the norm and the router's logits; a warp has an expert
//   gate_up   the gates and ups of each chosen expert, and SwiGLU; a thread block has columns of
//   act down      the last matrix of each chosen expert; a thread block has columns of the output,
//   so it
//             can add up the experts itself
// Nothing is sorted and no row is copied: every thread block of the last two kernels chooses the
// experts of all tokens itself. down does this, and loads weights, before gate_up has ended,
// because the logits are older than gate_up.
//
// The GEMMs are in few_experts.cuh. Quantized experts are compiled in few_quantized_experts.cu.
namespace nanovllm::cuda {

/// These two functions are in few_quantized_experts.cu.
int64_t few_quantized_shared_bytes(const FewExperts& args);
void run_few_quantized_gemms(Launch where, const FewExpertsParams& p, DType dtype);

namespace {

constexpr int kMaxHidden = 4096;  // a warp has a row of the router in registers

// -- norm and logits

constexpr int kLogitsWarps = 4, kLogitsThreads = kLogitsWarps * 32;

/// logits[t, e] = rms_norm(x[t]) . router[e]. The grid is (experts / kLogitsWarps, tokens). A warp
/// computes one logit and norms the token itself. It loads its row of the router, and the thread
/// block the weights of the norm, before the previous kernel has ended. Latency bounds it.
template <class T, int kVectors>
__global__ void __launch_bounds__(kLogitsThreads) few_logits_kernel(const FewExpertsParams p) {
  constexpr int kN = kPer16Bytes<T>;
  __shared__ __align__(16) float norm[kMaxHidden];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, token = blockIdx.y;
  const int expert = blockIdx.x * kLogitsWarps + warp;
  const auto column = [&](int j) { return (j * 32 + lane) * kN; };
  Vec<T, kN> w[kVectors], x[kVectors];
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    w[j] = x[j] = {};
    if (expert < p.num_experts && column(j) < p.hidden)
      w[j] = load<kN>(static_cast<const T*>(p.router) + int64_t{expert} * p.hidden + column(j));
  }
  if (p.norm != nullptr)
    for (int i = threadIdx.x * 4; i < p.hidden; i += kLogitsThreads * 4)
      async_copy16(shared_address(norm + i), p.norm + i);
  wait_all_async_copies();
  __syncthreads();
  begin_kernel();
#pragma unroll
  for (int j = 0; j < kVectors; ++j)
    if (column(j) < p.hidden)
      x[j] = load<kN>(static_cast<const T*>(p.x) + int64_t{token} * p.hidden + column(j));
  // Each vector has a sum of its own, because a chain of additions takes as long as it is.
  if (p.norm != nullptr) {
    float squares = 0;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) squares += add_squares(x[j], 0);
    const float factor = rms_factor(warp_sum(squares), p.hidden, p.eps);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      if (column(j) >= p.hidden) continue;
      x[j] = normed(x[j], factor, load<kN>(norm + column(j)));
      if (blockIdx.x == 0 && warp == 0)
        store<kN>(static_cast<T*>(p.normed) + int64_t{token} * p.hidden + column(j), x[j]);
    }
  }
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    float part = 0;
#pragma unroll
    for (int i = 0; i < kN; ++i) part += to_float(x[j].x[i]) * to_float(w[j].x[i]);
    sum += part;
  }
  sum = warp_sum(sum);
  if (lane == 0 && expert < p.num_experts) p.logits[token * p.num_experts + expert] = sum;
}

}  // namespace

// -- launcher

bool supports_few_experts(Launch where, const FewExperts& args) {
  const int64_t num_tokens = args.x.shape[0], hidden = args.x.shape[1], n = args.act.shape[1];
  if (num_tokens > kMaxTokens || args.act.shape[0] > kMaxChoices || dtype_size(args.x.dtype) != 2 ||
      hidden % 8 != 0 || hidden > kMaxHidden || n % 8 != 0 || args.logits.shape[1] > kMaxExperts)
    return false;
  const QuantizedWeight* const gate_up = args.quantized_gate_up;
  const QuantizedWeight* const down = args.quantized_down;
  if (gate_up == nullptr && down == nullptr)
    return few_shared_bytes<PlainFormat<Bf16, false>>(num_tokens, hidden) <= where.shared_bytes;
  // One kernel format serves both.
  return gate_up != nullptr && down != nullptr && gate_up->format == down->format &&
         (gate_up->group_shift == 5) == (down->group_shift == 5) &&
         few_quantized_shared_bytes(args) <= where.shared_bytes;
}

void few_experts(Launch where, const FewExperts& args) {
  check_args(supports_few_experts(where, args) && args.act.shape[0] % args.x.shape[0] == 0 &&
                 args.act.shape[0] <= args.x.shape[0] * args.logits.shape[1],
             "few_experts: a shape or dtype that it does not support");
  const auto hidden = static_cast<int>(args.x.shape[1]), n = static_cast<int>(args.act.shape[1]);
  const bool is_quantized = args.quantized_gate_up != nullptr;
  const FewExpertsParams p = {
      .x = args.x.data,
      .router = args.router.data,
      .norm = args.norm.weight.as<const float>(),
      .gate_up = is_quantized ? *args.quantized_gate_up
                              : QuantizedWeight{.values = args.gate_up.data, .k = hidden},
      .down =
          is_quantized ? *args.quantized_down : QuantizedWeight{.values = args.down.data, .k = n},
      .normed = args.norm.weight ? args.normed.data : args.x.data,
      .logits = args.logits.as<float>(),
      .context_lens = args.context_lens.as<const int32_t>(),
      .act = args.act.data,
      .out = args.out.data,
      .first_added = static_cast<int>(args.added.first),
      .last_added = static_cast<int>(args.added.first + args.added.count),
      .num_tokens = static_cast<int>(args.x.shape[0]),
      .num_experts = static_cast<int>(args.logits.shape[1]),
      .top_k = static_cast<int>(args.act.shape[0] / args.x.shape[0]),
      .hidden = hidden,
      .n = n,
      .eps = args.norm.eps,
      .normalizes = args.normalizes,
      .peers = args.peers != nullptr ? *args.peers : Peers()};
  with_16bit_type(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    const auto logits =
        p.hidden <= 2048 ? few_logits_kernel<T, 8> : few_logits_kernel<T, kMaxHidden / 256>;
    launch(where, logits,
           dim3(blocks_for(p.num_experts, kLogitsWarps), static_cast<unsigned>(p.num_tokens)),
           kLogitsThreads, 0, p);
    if (!is_quantized) run_few_gemms<PlainFormat<T, /*kPadded=*/false>>(where, p);
  });
  if (is_quantized) run_few_quantized_gemms(where, p, args.x.dtype);
}

}  // namespace nanovllm::cuda
