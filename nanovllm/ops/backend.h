#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "nanovllm/base/error.h"
#include "nanovllm/base/tensor.h"
#include "nanovllm/ops/batch.h"
#include "nanovllm/ops/communicator.h"
#include "nanovllm/ops/residual.h"
#include "nanovllm/ops/weight_rows.h"

namespace nanovllm {

/// A weight in the layout, dtype and scales that its backend chose. Opaque to the model.
class Weight {
 public:
  virtual ~Weight() = default;
};
using WeightPtr = std::shared_ptr<const Weight>;

/// What a packed weight will be used for; both for a tied embedding.
enum WeightUse : unsigned { kForMatmul = 1, kForEmbedding = 2 };

/// Memory of the device, freed at its end.
using Buffer = std::unique_ptr<void, std::function<void(void*)>>;

/// RMSNorm's weight [hidden] float32 and what is added to the mean of squares.
struct Norm {
  Tensor weight;
  float eps = 0;
};

/// Per-head RMSNorm of q and k (Qwen3), rotary embedding of both, and the store of k and v into the
/// cache.
struct RopeStoreArgs {
  Tensor qkv;  ///< [T, (q_heads + 2 * kv_heads) * head_dim] model dtype; q is changed in place, k
               ///< and v may be
  Tensor q_norm, k_norm;  ///< [head_dim] float32, or none
  Tensor cos, sin;        ///< [positions, head_dim / 2] float32; pairs are (i, i + head_dim / 2)
  int64_t num_heads = 0;
  float eps = 0;
  int64_t layer = 0;
};

/// RopeStoreArgs' qkv = rms_norm(residual) w^T + bias (if any).
struct QkvArgs {
  Norm norm;
  const Weight& w;
  Tensor bias;
};

/// softmax(q k^T * scale) v over the paged cache, causal: new token i of a sequence with n new ones
/// and context c sees the first c - n + i + 1 keys. Query head h reads KV head h / (num_heads /
/// kv_heads).
struct AttentionArgs {
  Tensor out;  ///< [T, q_heads * head_dim] model dtype
  Tensor qkv;  ///< [T, (q_heads + 2 * kv_heads) * head_dim] after rope_and_store; only q is read
  int64_t num_heads = 0;
  float scale = 1;
  int64_t layer = 0;
};

/// Bytes of the memory that a backend computes in, and what nobody uses of it now.
struct Memory {
  size_t total = 0, free = 0;
};

/// Every operation of the forward pass and the sampler, for one rank. Tensors are the backend's
/// memory, T and R at least 1, float operands of the model's dtype unless a comment says float32;
/// sums, norms, softmax and logits are float32. Calls are made from one thread at a time and take
/// effect in order. A failure throws.
///
/// A model is written with three kinds of operations: on tensors, on the residual stream, and
/// stages, which do several of the others at once. A stage has a default made of those others, so a
/// backend implements it only where it has a faster way.
class Backend {
 public:
  virtual ~Backend() = default;

  /// One line for people: device, instruction set or GPU, threads.
  virtual std::string describe() const = 0;

  // -- ranks
  /// Makes this backend one of several ranks, all of which call it at once, before any weight is
  /// packed. `ranks` outlives it. From then on the weights of embed and of the logits hold the
  /// rank's share(vocab_size, kShareUnit, ranks.rank()) of their rows; embed, the residual's
  /// operations, the sampler and token_logprobs are collectives, which all ranks call alike. Throws
  /// UserError where the device cannot.
  virtual void connect(Communicator& /*ranks*/, int64_t /*vocab_size*/) {
    throw UserError(
        "tensor parallelism is not available on this device; use tensor_parallel_size 1");
  }
  /// x, dense, becomes its sum over the ranks; the same bits on each.
  virtual void all_reduce(Tensor /*x*/) {}

  // -- memory
  virtual Memory memory() const = 0;
  /// Zeroed memory, aligned to 64 bytes; pages nobody touches may cost nothing. Throws UserError
  /// with the size.
  virtual Buffer allocate(size_t bytes) = 0;
  virtual void upload(void* device, const void* host, size_t bytes) = 0;
  virtual void download(void* host, const void* device, size_t bytes) = 0;

  // -- steps
  /// Takes over a step: brings its arrays to where the backend computes, in one upload; updates the
  /// block tables; an id that is kTokenInFlight becomes its slot's last token. `host` stays as it
  /// is and in place until the step's end, `slots` outlive it; the Batch holds until the next call.
  virtual Batch begin_step(HostBatch& host, const SlotTables& slots, const KvCache& kv) = 0;
  /// Whether replay() pays: steps of one shape are then padded to a few sizes.
  virtual bool replays() const { return false; }
  /// Does what `enqueue` enqueues: a step of `size` sequences with one new token each, all of whose
  /// other keys are from steps before. It may be called once for a `size` and its work repeated
  /// from then on.
  virtual void replay(int64_t /*size*/, const std::function<void()>& enqueue) { enqueue(); }

  // -- weights
  /// One weight [sum of n, k] out of parts [n_i, k] of any float dtype, stacked in order; reads
  /// each row once. `dtype` is the model's.
  virtual WeightPtr pack(std::span<const WeightRows> parts, DType dtype, unsigned use) = 0;
  /// Of one matrix.
  WeightPtr pack(const WeightRows& matrix, DType dtype, unsigned use) {
    return pack({&matrix, 1}, dtype, use);
  }

  // -- forward pass: tensors
  /// out [T, hidden] = table[ids [T]]; ids are the whole vocabulary's on every rank.
  virtual void embed(Tensor out, const Weight& table, Tensor ids) = 0;
  /// out [T, hidden] = x / rms(x) * weight [hidden] float32. Source: Zhang and Sennrich, "Root Mean
  /// Square Layer Normalization", 2019.
  virtual void rms_norm(Tensor out, Tensor x, const Norm& norm) = 0;
  /// sum [T, n] += x [T, n]
  virtual void add(Tensor sum, Tensor x) = 0;
  /// out [R, n] = x [T, n] [rows [R]]; rows may repeat.
  virtual void gather_rows(Tensor out, Tensor x, Tensor rows) = 0;
  /// out [T, n] = x [T, k] w^T + bias [n] float32 (if any); out is of the model's dtype or float32.
  virtual void matmul(Tensor out, Tensor x, const Weight& w, Tensor bias = {}) = 0;
  virtual void rope_and_store(const RopeStoreArgs& args, const KvCache& kv, const Batch& batch) = 0;
  virtual void attention(const AttentionArgs& args, const KvCache& kv, const Batch& batch) = 0;
  /// out [T, n] = silu(gate_up [T, :n]) * gate_up [T, n:]
  virtual void silu_mul(Tensor out, Tensor gate_up) = 0;

  // -- forward pass: the residual stream
  /// Finishes every addition to the residual on all ranks, and gives it.
  virtual Tensor finish(Residual& residual) { return residual.whole(); }
  /// rms_norm of the residual, [T, hidden]; valid until the residual is added to or normed again.
  virtual Tensor norm(Residual& residual, const Norm& norm) {
    rms_norm(residual.scratch(), finish(residual), norm);
    return residual.scratch();
  }
  /// residual += x [T, hidden], the same x on every rank.
  virtual void add(Residual& residual, Tensor x) { add(finish(residual), x); }
  /// residual += x [T, k] w^T, summed over the ranks, whose x and w are parts of k. `next`: the
  /// norm of the residual that comes next, if there is one, for a backend that begins it here.
  virtual void add_matmul(Residual& residual, Tensor x, const Weight& w,
                          const Norm& /*next*/ = {}) {
    matmul(residual.scratch(), x, w);
    all_reduce(residual.scratch());
    add(residual, residual.scratch());
  }
  /// Makes `out` [R, hidden], all of it, the rows [R] of the residual.
  virtual void gather_rows(Residual& out, Residual& residual, Tensor rows) {
    gather_rows(out.sum(), finish(residual), rows);
  }

  // -- forward pass: stages
  /// out = norm(residual) w^T + bias
  virtual void norm_matmul(Tensor out, Residual& residual, const Norm& norm, const Weight& w,
                           Tensor bias = {}) {
    matmul(out, this->norm(residual, norm), w, bias);
  }
  /// rope_and_store, then attention; what becomes of qkv is open.
  virtual void rope_attention(const RopeStoreArgs& rope, const AttentionArgs& args,
                              const KvCache& kv, const Batch& batch) {
    rope_and_store(rope, kv, batch);
    attention(args, kv, batch);
  }
  /// rope.qkv = norm(residual) w^T + bias, then rope_attention.
  virtual void qkv_attention(Residual& residual, const QkvArgs& qkv, const RopeStoreArgs& rope,
                             const AttentionArgs& args, const KvCache& kv, const Batch& batch) {
    norm_matmul(rope.qkv, residual, qkv.norm, qkv.w, qkv.bias);
    rope_attention(rope, args, kv, batch);
  }
  /// out [T, n] = silu_mul(norm(residual) w^T); gate_up [T, 2 n] is scratch.
  virtual void norm_swiglu(Tensor out, Residual& residual, const Norm& norm, const Weight& w,
                           Tensor gate_up) {
    norm_matmul(gate_up, residual, norm, w);
    silu_mul(out, gate_up);
  }
  /// Blocks of the cache, all layers: from[i] onto to[i]; no block stands on both sides.
  virtual void copy_blocks(const KvCache& kv, std::span<const int32_t> from,
                           std::span<const int32_t> to) = 0;

  // -- sampler
  /// One token for each row of logits [R, vocab] float32 (the rank's columns of them), which stay
  /// as they are, as batch.samples [R] say; it becomes the last token of the row's slot, the same
  /// one on every rank. A row that holds NaN or +infinity, or nothing but -infinity after the
  /// masks, gets kNotFinite and token 0. Inside replay() only rows without filters and lists are
  /// drawn, the rest by finish_sample().
  virtual void sample(Tensor logits, const Batch& batch) = 0;
  /// logits = norm(residual [R, k]) w^T, then sample(). What is in logits then is open where the
  /// step's HostBatch does not have it read.
  virtual void norm_sample(Tensor logits, Residual& residual, const Norm& norm, const Weight& w,
                           const Batch& batch) {
    norm_matmul(logits, residual, norm, w);
    sample(logits, batch);
  }
  /// Ends the step's sampling, once: draws the rows that sample() left and has the results sent to
  /// the host.
  virtual void finish_sample(Tensor /*logits*/) {}
  /// The results of the oldest finish_sample() not yet fetched, [R]; waits for them.
  virtual void fetch_samples(std::span<int32_t> token_ids, std::span<RowStatus> status) = 0;
  // The next one waits for its results.
  /// Natural log-probabilities of logits [R, vocab]: for row r entry 0 is targets[r], entries 1..k
  /// the best k, better first. ids and logprobs are [R, k + 1]; target_ranks [R] counts from 1.
  /// Ties: the lower id is better. Of several ranks' results only rank 0's are used.
  virtual void token_logprobs(Tensor logits, std::span<const int32_t> targets, int64_t k,
                              std::span<int32_t> ids, std::span<float> logprobs,
                              std::span<int32_t> target_ranks) = 0;
};

/// The CPU backend; `threads` 0 takes all cores that this process may use.
std::unique_ptr<Backend> make_cpu_backend(int64_t threads);

}  // namespace nanovllm
