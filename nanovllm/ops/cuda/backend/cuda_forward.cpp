#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/ops/cuda/attention/rope.h"
#include "nanovllm/ops/cuda/backend/cuda_backend.h"
#include "nanovllm/ops/cuda/elementwise/elementwise.h"

// The forward pass of CudaBackend: which kernels compute an operation, and when sums over the ranks
// are finished (order.residual).
namespace nanovllm::cuda {

using State = Residual::State;

// -- tensors

void CudaBackend::embed(Tensor out, const Weight& table, Tensor ids) {
  const ContextScope here(device_.context);
  cuda::gather_rows(device_.where, out, gemms_.matrix_of(table, out.dtype), ids, vocab_.first);
  all_reduce(out);  // the rows of other ranks are zero here
}

void CudaBackend::rms_norm(Tensor out, Tensor x, const Norm& norm) {
  const ContextScope here(device_.context);
  cuda::rms_norm(device_.where, out, x, norm);
}

void CudaBackend::sum_squares(Tensor squares, Tensor qkv, const WholeNorms& norms) {
  const ContextScope here(device_.context);
  cuda::sum_squares(device_.where, squares, qkv, norms);
}

void CudaBackend::scale_by_squares(Tensor qkv, Tensor squares, const WholeNorms& norms) {
  const ContextScope here(device_.context);
  cuda::scale_by_squares(device_.where, qkv, squares, norms);
}

void CudaBackend::add(Tensor sum, Tensor x) {
  const ContextScope here(device_.context);
  cuda::add(device_.where, sum, x);
}

void CudaBackend::gather_rows(Tensor out, Tensor x, Tensor rows) {
  const ContextScope here(device_.context);
  cuda::gather_rows(device_.where, out, x, rows);
}

void CudaBackend::matmul(Tensor out, Tensor x, const Weight& w, Tensor bias) {
  const ContextScope here(device_.context);
  gemms_.store(out, x, w, bias);
}

void CudaBackend::silu_mul(Tensor out, Tensor gate_up) {
  const ContextScope here(device_.context);
  cuda::silu_mul(device_.where, out, gate_up);
}

void CudaBackend::rope_and_store(const RopeStoreArgs& args, const KvCache& kv, const Step& step) {
  const ContextScope here(device_.context);
  cuda::rope_and_store(device_.where, args, kv, step);
}

namespace {

AttentionParams attention_params(const AttentionArgs& args, const KvCache& kv, const Step& step) {
  const KvLayout layout(kv);
  char* const k = layout.layer_keys(kv, args.layer);
  return {.out = args.out.data,
          .qkv = args.qkv.data,
          .k = k,
          .v = k + layout.layer_stride,
          .block_tables = kv.block_tables.as<const int32_t>(),
          .seq_slots = step.seq_slots.as<const int32_t>(),
          .cu_seqlens_q = step.cu_seqlens_q.as<const int32_t>(),
          .context_lens = step.context_lens.as<const int32_t>(),
          .layout = layout,
          .num_seqs = static_cast<int>(step.num_seqs()),
          .num_tokens = static_cast<int>(args.qkv.shape[0]),
          .num_heads = static_cast<int>(args.num_heads),
          .max_blocks = static_cast<int>(kv.block_tables.shape[1]),
          .scale = args.scale};
}

}  // namespace

void CudaBackend::attention(const AttentionArgs& args, const KvCache& kv, const Step& step) {
  const ContextScope here(device_.context);
  attend(args, kv, step, nullptr);
}

GemmInput CudaBackend::attend(const AttentionArgs& args, const KvCache& kv, const Step& step,
                              const Weight* next) {
  AttentionParams params = attention_params(args, kv, step);
  const DType dtype = args.qkv.dtype;
  GemmInput out = args.out;
  if (!attention_.supports(args, kv)) {
    general_attention(device_.where, params, dtype);
    return out;
  }
  const bool may_quantize =
      !attention_.has_prefill() && quantizes_output(params.layout, params.num_heads);
  if (next != nullptr && may_quantize) out.quantized = gemms_.quantized_input(out.x, *next);
  if (out.quantized) params.quantized_out = *out.quantized;
  attention_.run(params, dtype, kv, /*prefetch_keys=*/graphs_.is_capturing());
  return out;
}

// -- the residual stream

Tensor CudaBackend::finish(Residual& residual) {
  const ContextScope here(device_.context);
  const Tensor& sum = residual.sum();
  switch (std::exchange(residual.state, State::kWhole)) {
    case State::kWhole:
      break;
    case State::kOwnRows: {
      // After the rows of other ranks are set to zero, the all-reduce yields the residual.
      const Range own = row_share(sum.shape[0], collectives_->ranks().rank());
      const int64_t end = own.first + own.count;
      for (const Tensor& others : {sum.rows(0, own.first), sum.rows(end, sum.shape[0] - end)})
        cuda_check(cudaMemsetAsync(others.data, 0, others.bytes(), device_.where.stream),
                   "residual");
      all_reduce(sum);
      break;
    }
    case State::kPartial:
      all_reduce(sum);
      break;
    case State::kSent:
      collectives_->finish_sum(sum);
      break;
    case State::kUnadded:
      check(collectives_->sum_norm(sum, sum, {}, residual.scratch()),
            "a residual whose sum was left unadded, but no kernel adds it");
      break;
  }
  return sum;
}

bool CudaBackend::sum_norm(Residual& residual, const Norm& norm) {
  const Tensor &sum = residual.sum(), &out = residual.scratch();
  const bool is_open = residual.state == State::kPartial || residual.state == State::kUnadded;
  if (is_open && collectives_->sum_norm(out, sum, norm, out)) {
    residual.state = collectives_->shares_rows(sum) ? State::kOwnRows : State::kWhole;
    return true;
  }
  finish(residual);
  return false;
}

Tensor CudaBackend::norm(Residual& residual, const Norm& norm) {
  const ContextScope here(device_.context);
  residual.begun_norm.reset();
  if (!sum_norm(residual, norm))
    cuda::rms_norm(device_.where, residual.scratch(), residual.whole(), norm);
  return residual.scratch();
}

CudaBackend::Addend CudaBackend::begin_addend(Residual& residual) {
  residual.begun_norm.reset();
  const Tensor& sum = residual.sum();
  const Range all = {0, sum.shape[0]};
  if (!collectives_) return {finish(residual), all};
  const bool shares = collectives_->shares_rows(sum);
  has_shared_rows_ = has_shared_rows_ || shares;
  // If only the rank that owns a row adds to it, the rank needs no other rows.
  if (residual.state != State::kOwnRows || !shares) finish(residual);
  if (collectives_->adds_residual(sum)) {
    residual.state = State::kUnadded;
    return {residual.scratch(), {}};
  }
  const Peers* const peers = collectives_->receivers(sum);
  residual.state = peers != nullptr ? State::kSent : State::kPartial;
  const Rank rank = collectives_->ranks().rank();
  if (shares) return {sum, row_share(sum.shape[0], rank)};
  return {sum, rank.index == 0 ? all : Range(), peers};  // the old residual is added only once
}

void CudaBackend::add_matmul(Residual& residual, Tensor x, const Weight& w, const Norm& next) {
  const ContextScope here(device_.context);
  add_product(residual, x, w, next);
}

void CudaBackend::add_product(Residual& residual, const GemmInput& x, const Weight& w,
                              const Norm& next) {
  if (!collectives_) return gemms_.add(residual, x, w, next);
  const auto [out, added, peers] = begin_addend(residual);
  if (peers != nullptr) {
    if (!gemms_.send(*peers, out, x, w, residual.scratch(), added.count > 0))
      collectives_->send(out);
    return;
  }
  const int64_t end = added.first + added.count, rest = out.shape[0] - end;
  if (added.first > 0) gemms_.store(out.rows(0, added.first), x.rows(0, added.first), w);
  if (added.count > 0)
    gemms_.add(out.rows(added.first, added.count), x.rows(added.first, added.count), w,
               residual.scratch().rows(added.first, added.count));
  if (rest > 0) gemms_.store(out.rows(end, rest), x.rows(end, rest), w);
}

void CudaBackend::gather_rows(Residual& out, Residual& residual, Tensor rows) {
  const ContextScope here(device_.context);
  if (residual.state != State::kOwnRows)
    return cuda::gather_rows(device_.where, out.sum(), finish(residual), rows);
  const Tensor& sum = residual.sum();
  const Range own = row_share(sum.shape[0], collectives_->ranks().rank());
  cuda::gather_rows(device_.where, out.sum(), sum.rows(own.first, own.count), rows, own.first);
  all_reduce(out.sum());  // the rows of other ranks are zero here
}

// -- stages

GemmInput CudaBackend::normed(Residual& residual, const Norm& norm) {
  if (sum_norm(residual, norm)) return residual.scratch();
  return {residual, norm};
}

void CudaBackend::norm_matmul(Tensor out, Residual& residual, const Norm& norm, const Weight& w,
                              Tensor bias) {
  const ContextScope here(device_.context);
  gemms_.store(out, normed(residual, norm), w, bias);
}

void CudaBackend::norm_swiglu(Tensor out, Residual& residual, const Norm& norm, const Weight& w,
                              Tensor gate_up) {
  const ContextScope here(device_.context);
  gemms_.swiglu(out, normed(residual, norm), w, gate_up);
}

void CudaBackend::rope_attention(const RopeStoreArgs& rope, const AttentionArgs& args,
                                 const KvCache& kv, const Step& step) {
  const ContextScope here(device_.context);
  if (attention_.decode_cluster() == 0 || args.num_heads > kMaxGroup * kv.num_kv_heads ||
      args.qkv.dtype == DType::kF32)
    return Backend::rope_attention(rope, args, kv, step);
  rope_decode_attention(device_.where,
                        {.attention = attention_params(args, kv, step),
                         .rope = RopeParams(rope, kv, step),
                         .prefetch_keys = graphs_.is_capturing()},
                        args.qkv.dtype, attention_.decode_cluster());
}

void CudaBackend::store_qkv(Residual& residual, const QkvArgs& qkv, const RopeStoreArgs& rope,
                            const KvCache& kv, const Step& step) {
  check(rope.qkv.shape[1] == (rope.num_heads + 2 * kv.num_kv_heads) * kv.head_dim &&
            residual.num_tokens() == step.num_tokens() && rope.cos.shape[1] == kv.head_dim / 2 &&
            (kv.dtype == rope.qkv.dtype || kv.dtype == DType::kE4M3) &&
            rope.qkv.dtype == residual.sum().dtype,
        "qkv_attention: wrong shapes");
  gemms_.store_rotated(normed(residual, qkv.norm), qkv.w, qkv.bias, rope, kv, step);
}

void CudaBackend::qkv_attention(Residual& residual, const QkvArgs& qkv, const RopeStoreArgs& rope,
                                const AttentionArgs& args, const KvCache& kv, const Step& step) {
  const ContextScope here(device_.context);
  if (attention_.decode_cluster() != 0)
    return Backend::qkv_attention(residual, qkv, rope, args, kv, step);
  store_qkv(residual, qkv, rope, kv, step);
  attend(args, kv, step, nullptr);
}

void CudaBackend::attention_block(Residual& residual, const QkvArgs& qkv, const RopeStoreArgs& rope,
                                  const AttentionArgs& args, const KvCache& kv, const Step& step,
                                  const Weight& w, const Norm& next) {
  const ContextScope here(device_.context);
  if (attention_.decode_cluster() != 0)
    return Backend::attention_block(residual, qkv, rope, args, kv, step, w, next);
  store_qkv(residual, qkv, rope, kv, step);
  add_product(residual, attend(args, kv, step, &w), w, next);
}

// -- the sampler

void CudaBackend::sample(Tensor logits, const Step& step) {
  const ContextScope here(device_.context);
  sampler_.sample(logits, step);
}

void CudaBackend::norm_sample(Tensor logits, Residual& residual, const Norm& norm, const Weight& w,
                              const Step& step) {
  const ContextScope here(device_.context);
  const auto& weight = static_cast<const DeviceWeight&>(w);
  if (weight.quantized) return Backend::norm_sample(logits, residual, norm, w, step);
  const Tensor& matrix = weight.matrix;
  GemmArgs args = {.w = matrix.data,
                   .num_tokens = static_cast<int>(residual.num_tokens()),
                   .n = static_cast<int>(matrix.shape[0]),
                   .k = static_cast<int>(matrix.shape[1])};
  if (!sampler_.draws_in_gemm() || !supports_sample_gemm(args, matrix.dtype))
    return Backend::norm_sample(logits, residual, norm, w, step);
  args.x = this->norm(residual, norm).data;
  sampler_.sample_gemm(args, logits, step);
}

void CudaBackend::finish_sample(Tensor logits) {
  const ContextScope here(device_.context);
  sampler_.finish(logits, step_);
}

void CudaBackend::fetch_samples(std::span<int32_t> token_ids, std::span<RowStatus> status,
                                std::vector<Logprob>& logprobs) {
  const ContextScope here(device_.context);
  sampler_.fetch(token_ids, status, logprobs);
}

void CudaBackend::token_logprobs(Tensor logits, std::span<const int32_t> targets, int64_t k,
                                 std::vector<Logprob>& entries) {
  const ContextScope here(device_.context);
  sampler_.token_logprobs(logits, step_, targets, k, entries);
}

}  // namespace nanovllm::cuda
