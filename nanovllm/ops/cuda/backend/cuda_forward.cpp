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
  const ContextScope here(context_);
  cuda::gather_rows(where_, out, gemms_->matrix_of(table, out.dtype), ids, vocab_.first);
  all_reduce(out);  // the rows of other ranks are zero here
}

void CudaBackend::rms_norm(Tensor out, Tensor x, const Norm& norm) {
  const ContextScope here(context_);
  cuda::rms_norm(where_, out, x, norm);
}

void CudaBackend::sum_squares(Tensor squares, Tensor qkv, const WholeNorms& norms) {
  const ContextScope here(context_);
  cuda::sum_squares(where_, squares, qkv, norms);
}

void CudaBackend::scale_by_squares(Tensor qkv, Tensor squares, const WholeNorms& norms) {
  const ContextScope here(context_);
  cuda::scale_by_squares(where_, qkv, squares, norms);
}

void CudaBackend::add(Tensor sum, Tensor x) {
  const ContextScope here(context_);
  cuda::add(where_, sum, x);
}

void CudaBackend::gather_rows(Tensor out, Tensor x, Tensor rows) {
  const ContextScope here(context_);
  cuda::gather_rows(where_, out, x, rows);
}

void CudaBackend::matmul(Tensor out, Tensor x, const Weight& w, Tensor bias) {
  const ContextScope here(context_);
  gemms_->store(out, x, w, bias);
}

void CudaBackend::silu_mul(Tensor out, Tensor gate_up) {
  const ContextScope here(context_);
  cuda::silu_mul(where_, out, gate_up);
}

void CudaBackend::rope_and_store(const RopeStoreArgs& args, const KvCache& kv, const Batch& batch) {
  const ContextScope here(context_);
  cuda::rope_and_store(where_, args, kv, batch);
}

AttentionParams CudaBackend::attention_params(const AttentionArgs& args, const KvCache& kv,
                                              const Batch& batch) {
  const KvLayout layout(kv);
  char* const k = layout.layer_keys(kv, args.layer);
  return {.out = args.out.data,
          .qkv = args.qkv.data,
          .k = k,
          .v = k + layout.layer_stride,
          .block_tables = batch.block_tables.as<const int32_t>(),
          .seq_slots = batch.seq_slots.as<const int32_t>(),
          .cu_seqlens_q = batch.cu_seqlens_q.as<const int32_t>(),
          .context_lens = batch.context_lens.as<const int32_t>(),
          .layout = layout,
          .num_seqs = static_cast<int>(batch.num_seqs()),
          .num_tokens = static_cast<int>(args.qkv.shape[0]),
          .num_heads = static_cast<int>(args.num_heads),
          .max_blocks = static_cast<int>(batch.block_tables.shape[1]),
          .scale = args.scale};
}

void CudaBackend::attention(const AttentionArgs& args, const KvCache& kv, const Batch& batch) {
  const ContextScope here(context_);
  AttentionParams params = attention_params(args, kv, batch);
  const DType dtype = args.qkv.dtype;
  // The portable kernel must fit in the 99 KB of shared memory that every GPU has.
  const int64_t most = portable_ && kv.head_dim == 256 ? 8 : kMaxGroup;  // query heads of a KV head
  if (!params.layout.tiled || dtype == DType::kF32 || args.num_heads > most * kv.num_kv_heads)
    return general_attention(where_, params, dtype);
  const bool quantizes = !has_prefill_ && quantizes_output(params.layout, params.num_heads);
  params.quantized_out = gemms_->quantized_input(args.out, quantizes ? args.next : nullptr);
  if (has_decode_)
    decode_attention(where_, params, plan_, decode_scratch_, dtype,
                     {.portable = portable_, .prefetch_keys = capturing_});
  if (!has_prefill_) return;
  const auto prefill = [&](const AttentionParams& of, std::span<const PrefillLengths> lengths) {
    if (portable_) prefill_attention(where_, of, dtype);
    else
      prefill_attention_sm90(where_, of, lengths,
                             {prefill_partial_.as<float>(), prefill_counters_.as<int32_t>()},
                             dtype);
  };
  const std::span lengths(prefill_lengths_);
  if (kv.dtype != DType::kE4M3) return prefill(params, lengths);
  for (const PrefillGroup& group : prefill_groups_) {
    const AttentionParams part = params.sequences(group.first, group.num_seqs, group.num_tokens);
    prefill(dequantize(where_, part, dtype, group.blocks_per_seq,
                       {dequantized_.memory.get(), dequantized_tables_.as<int32_t>()}),
            lengths.subspan(static_cast<size_t>(group.first), static_cast<size_t>(group.num_seqs)));
  }
}

// -- the residual stream

Tensor CudaBackend::finish(Residual& residual) {
  const ContextScope here(context_);
  const Tensor& sum = residual.sum();
  switch (std::exchange(residual.state, State::kWhole)) {
    case State::kWhole:
      break;
    case State::kOwnRows: {
      // After the rows of other ranks are set to zero, the all-reduce yields the residual.
      const Range own = row_share(sum.shape[0], collectives_->ranks().rank());
      const int64_t end = own.first + own.count;
      for (const Tensor& others : {sum.rows(0, own.first), sum.rows(end, sum.shape[0] - end)})
        cuda_check(cudaMemsetAsync(others.data, 0, others.bytes(), where_.stream), "residual");
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
  const ContextScope here(context_);
  residual.begun_norm = 0;
  if (!sum_norm(residual, norm)) cuda::rms_norm(where_, residual.scratch(), residual.whole(), norm);
  return residual.scratch();
}

CudaBackend::Addend CudaBackend::begin_addend(Residual& residual) {
  residual.begun_norm = 0;
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
  const ContextScope here(context_);
  if (!collectives_) return gemms_->add(residual, x, w, next);
  const auto [out, added, peers] = begin_addend(residual);
  if (peers != nullptr) {
    if (!gemms_->send(*peers, out, x, w, residual.scratch(), added.count > 0))
      collectives_->send(out);
    return;
  }
  const int64_t end = added.first + added.count, rest = out.shape[0] - end;
  if (added.first > 0) gemms_->store(out.rows(0, added.first), x.rows(0, added.first), w);
  if (added.count > 0)
    gemms_->add(out.rows(added.first, added.count), x.rows(added.first, added.count), w,
                residual.scratch().rows(added.first, added.count));
  if (rest > 0) gemms_->store(out.rows(end, rest), x.rows(end, rest), w);
}

void CudaBackend::gather_rows(Residual& out, Residual& residual, Tensor rows) {
  const ContextScope here(context_);
  if (residual.state != State::kOwnRows)
    return cuda::gather_rows(where_, out.sum(), finish(residual), rows);
  const Tensor& sum = residual.sum();
  const Range own = row_share(sum.shape[0], collectives_->ranks().rank());
  cuda::gather_rows(where_, out.sum(), sum.rows(own.first, own.count), rows, own.first);
  all_reduce(out.sum());  // the rows of other ranks are zero here
}

// -- stages

GemmInput CudaBackend::normed(Residual& residual, const Norm& norm) {
  if (sum_norm(residual, norm)) return residual.scratch();
  return {residual, norm};
}

void CudaBackend::norm_matmul(Tensor out, Residual& residual, const Norm& norm, const Weight& w,
                              Tensor bias) {
  const ContextScope here(context_);
  gemms_->store(out, normed(residual, norm), w, bias);
}

void CudaBackend::norm_swiglu(Tensor out, Residual& residual, const Norm& norm, const Weight& w,
                              Tensor gate_up) {
  const ContextScope here(context_);
  gemms_->swiglu(out, normed(residual, norm), w, gate_up);
}

void CudaBackend::rope_attention(const RopeStoreArgs& rope, const AttentionArgs& args,
                                 const KvCache& kv, const Batch& batch) {
  const ContextScope here(context_);
  if (decode_cluster_ == 0 || args.num_heads > kMaxGroup * kv.num_kv_heads ||
      args.qkv.dtype == DType::kF32)
    return Backend::rope_attention(rope, args, kv, batch);
  rope_decode_attention(where_,
                        {.attention = attention_params(args, kv, batch),
                         .rope = RopeParams(rope, kv, batch),
                         .prefetch_keys = capturing_},
                        args.qkv.dtype, decode_cluster_);
}

void CudaBackend::qkv_attention(Residual& residual, const QkvArgs& qkv, const RopeStoreArgs& rope,
                                const AttentionArgs& args, const KvCache& kv, const Batch& batch) {
  const ContextScope here(context_);
  check(rope.qkv.shape[1] == (rope.num_heads + 2 * kv.num_kv_heads) * kv.head_dim &&
            residual.num_tokens() == batch.num_tokens() && rope.cos.shape[1] == kv.head_dim / 2 &&
            (kv.dtype == rope.qkv.dtype || kv.dtype == DType::kE4M3) &&
            rope.qkv.dtype == residual.sum().dtype,
        "qkv_attention: wrong shapes");
  if (decode_cluster_ != 0) return Backend::qkv_attention(residual, qkv, rope, args, kv, batch);
  gemms_->store_rotated(normed(residual, qkv.norm), qkv.w, qkv.bias, rope, kv, batch);
  attention(args, kv, batch);
}

}  // namespace nanovllm::cuda
