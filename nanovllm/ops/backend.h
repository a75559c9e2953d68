#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "nanovllm/base/error.h"
#include "nanovllm/base/output.h"
#include "nanovllm/base/tensor.h"
#include "nanovllm/ops/choice_file.h"
#include "nanovllm/ops/communicator.h"
#include "nanovllm/ops/kv_cache.h"
#include "nanovllm/ops/memory.h"
#include "nanovllm/ops/residual.h"
#include "nanovllm/ops/step.h"
#include "nanovllm/ops/warmup.h"
#include "nanovllm/ops/weight_rows.h"

namespace nanovllm {

/// A weight in the layout, dtype and scales that its backend chose. Opaque to the model.
class Weight {
 public:
  virtual ~Weight() = default;
};
using WeightPtr = std::shared_ptr<const Weight>;

/// Memory of the device; it is freed when the Buffer is destroyed (ownership.memory).
using Buffer = std::unique_ptr<void, std::function<void(void*)>>;

/// An RMSNorm: its weight [hidden] float32, and the number that is added to the mean of squares.
struct Norm {
  Tensor weight;
  float eps = 0;

  explicit operator bool() const { return static_cast<bool>(weight); }
};

/// RMSNorms of q and of k over all heads together (OLMo 2), of which each rank has some.
struct WholeNorms {
  Tensor q_weight, k_weight;  ///< [q_size] and [kv_size] of this rank, float32
  /// [kv_size] float32: 0 for columns of k that another rank counts, else 1; empty: all are 1.
  Tensor k_counted;
  int64_t q_columns = 0, k_columns = 0;  ///< of all ranks together, each counted once
  float eps = 0;
};

/// RMSNorms of each head of q and k (Qwen3), their rotary embedding, and storing k and v.
struct RopeStoreArgs {
  Tensor qkv;             ///< [T, (q_heads + 2 * kv_heads) * head_dim] model dtype; q is changed in
                          ///< place, k and v may be changed too
  Tensor q_norm, k_norm;  ///< [head_dim] float32; empty if the model has none
  Tensor cos, sin;        ///< [positions, head_dim / 2] float32; pairs are (i, i + head_dim / 2)
  int64_t num_heads = 0;
  float eps = 0;
  int64_t layer = 0;
};

/// RopeStoreArgs::qkv = rms_norm(residual) w^T + bias. Without a bias the Tensor is empty.
struct QkvArgs {
  Norm norm;
  const Weight& w;
  Tensor bias;
};

/// softmax(q k^T * scale) v over the paged KV cache, with a causal mask: token i of the n new
/// tokens of a sequence whose context length is c sees the first c - n + i + 1 keys. Query head h
/// reads KV head h / (num_heads / kv_heads).
struct AttentionArgs {
  Tensor out;  ///< [T, q_heads * head_dim] model dtype
  Tensor qkv;  ///< [T, (q_heads + 2 * kv_heads) * head_dim] after rope_and_store; only q is
               ///< read
  int64_t num_heads = 0;
  float scale = 1;
  int64_t layer = 0;
};

/// How the tokens of a step are divided among experts. A backend writes and reads it on its device:
/// the host never knows it, and no size depends on it. Each token has top_k entries, one for each
/// of its experts. The entries are sorted by expert, then by token.
struct Routing {
  Tensor logits;   ///< [T, num_experts] float32, the router's
  Tensor weights;  ///< [T, top_k] float32, of each of a token's experts, the best one first
  Tensor entries;  ///< [T, top_k] int32, the entry of each of them
  Tensor tokens;   ///< [T * top_k] int32, the token of each entry
  Tensor starts;  ///< [num_experts + 1] int32, each expert's first entry; the last one is T * top_k
  Tensor scratch;  ///< [T * top_k + 4 * num_experts + 1] int32, for the backend; zeros before the
                   ///< first step
};

/// The experts of a layer, and the buffers of norm_experts(), whose contents are scratch.
struct ExpertArgs {
  const Weight& router;    ///< [num_experts, hidden]
  const Weight& gate_up;   ///< of each expert [2 * n, hidden]
  const Weight& down;      ///< of each expert [hidden, n]
  bool normalize = false;  ///< a token's weights have the sum 1
  Routing routing;
  Tensor wide;    ///< [T * top_k, 2 * n]
  Tensor narrow;  ///< [T * top_k, n]
  Tensor out;     ///< [T * top_k, hidden]; may share its memory with `wide`
};

/// Every operation of the forward pass and of the sampler, for one rank. T is the number of tokens
/// and R the number of rows whose next token is drawn; both are at least 1. Tensors are in the
/// backend's memory. Float operands have the model's dtype unless a comment says float32; sums,
/// norms, softmax and logits are computed in float32. One thread at a time calls a backend, and the
/// calls take effect in order (threads.backend). A call that fails throws.
///
/// A model is written with three kinds of operations: operations on tensors, operations on the
/// residual stream, and stages, which do several of the former at once. Each stage has a default
/// that calls those operations, so a backend overrides it only if it has a faster implementation.
class Backend {
 public:
  virtual ~Backend() = default;

  /// One line for the log: the instruction set and number of threads, or the name of the GPU.
  virtual std::string describe() const = 0;

  // -- ranks
  /// Makes this backend one of several ranks. All ranks call it at the same time, before they pack
  /// any weight. `ranks` must outlive the backend. After that, the weights of the embedding and of
  /// the logits hold only the rows share(vocab_size, kShareUnit, ranks.rank()); embed, the
  /// operations on a Residual, the sampler and token_logprobs are collectives, which all ranks call
  /// in the same order (order.alike).
  virtual void connect(Communicator& ranks, int64_t vocab_size) = 0;
  /// Replaces x, which must be dense, by its sum over the ranks. Every rank gets the same bits.
  virtual void all_reduce(Tensor /*x*/) {}

  // -- memory
  virtual Memory memory() const = 0;
  /// Memory filled with zeros, aligned to 64 bytes. Pages that are never touched may take no
  /// physical memory. Throws UserError that names the size if there is not enough.
  virtual Buffer allocate(size_t bytes) = 0;
  virtual void upload(void* device, const void* host, size_t bytes) = 0;
  virtual void download(void* host, const void* device, size_t bytes) = 0;

  // -- steps
  /// The step that comes next, whose lists are to be written. It is valid until the next call.
  Step& new_step() {
    step_.clear();
    return step_;
  }
  /// The one that new_step() returned last.
  Step& step() { return step_; }
  /// Begins the step that new_step() returned: sends its first part to the device, updates the
  /// block tables, and derives its second part. Its lists must not change until the last call for
  /// this step has returned; a device that queues steps copies what it needs.
  virtual void begin_step(const KvCache& kv) = 0;
  /// Whether replay() saves time. If it does, decode steps are padded to a few sizes.
  virtual bool replays() const { return false; }
  /// Runs what `enqueue` enqueues: a step of `size` sequences with one new token each, whose other
  /// keys were all stored by earlier steps. The backend may call `enqueue` only for the first steps
  /// of a size, capture its work as a graph, and launch the graph from then on.
  virtual void replay(int64_t /*size*/, const std::function<void()>& enqueue) { enqueue(); }

  /// Called once, when the model is loaded and before the first step: does what would delay the
  /// first steps otherwise, such as loading and choosing kernels. All ranks call it together.
  virtual void prepare(const Warmup& /*warmup*/, const ChoiceCache& /*cache*/) {}
  /// One line about the choices that earlier processes left in the cache, and about those that were
  /// made after prepare(), if there are any; empty if the device has none.
  virtual std::string describe_cache(const ChoiceCache& /*cache*/) const { return {}; }

  // -- weights
  /// Calls `load`, which packs weights. When this returns they are complete; when it throws, no row
  /// is read any more. Until then their values are not all there, because the backend may still
  /// read rows while `load` does something else. So errors of reading may come from a later pack()
  /// or from here. Without this, pack() returns complete weights.
  virtual void load_weights(const std::function<void()>& load) { load(); }
  /// Makes one weight [sum of n_i, k] from parts [n_i, k] of any float dtype, stacked in this
  /// order, for matmul(), embed() or both. It reads each row once. `dtype` is the model's dtype.
  virtual WeightPtr pack(std::span<const WeightRows> parts, DType dtype) = 0;
  /// The same for one matrix.
  WeightPtr pack(const WeightRows& matrix, DType dtype) { return pack({&matrix, 1}, dtype); }

  /// Makes one weight of num_experts matrices for expert_matmul(). `parts` has those of the first
  /// expert, then those of the second, and so on, all with equal shapes.
  virtual WeightPtr pack_experts(std::span<const WeightRows> parts, int64_t num_experts,
                                 DType dtype) = 0;

  // -- forward pass: tensors
  /// out [T, hidden] = table[ids [T]]. The ids refer to the whole vocabulary on every rank.
  virtual void embed(Tensor out, const Weight& table, Tensor ids) = 0;
  /// out [T, hidden] = x / rms(x) * weight [hidden] float32. Source: Zhang and Sennrich, "Root Mean
  /// Square Layer Normalization", 2019.
  virtual void rms_norm(Tensor out, Tensor x, const Norm& norm) = 0;
  /// squares [T, 4] float32 = for each token the sum of squares of q, that of the counted columns
  /// of k, and two zeros; q and k are the first columns of qkv.
  virtual void sum_squares(Tensor squares, Tensor qkv, const WholeNorms& norms) = 0;
  /// q = q / sqrt(squares[0] / q_columns + eps) * q_weight, and k accordingly.
  virtual void scale_by_squares(Tensor qkv, Tensor squares, const WholeNorms& norms) = 0;
  /// sum [T, n] += x [T, n]
  virtual void add(Tensor sum, Tensor x) = 0;
  /// out [R, n] = x [T, n] [rows [R]]. The same row may be named several times.
  virtual void gather_rows(Tensor out, Tensor x, Tensor rows) = 0;
  /// out [T, n] (model dtype or float32) = x [T, k] w^T + bias [n] (float32, may be empty)
  virtual void matmul(Tensor out, Tensor x, const Weight& w, Tensor bias = {}) = 0;
  virtual void rope_and_store(const RopeStoreArgs& args, const KvCache& kv, const Step& step) = 0;
  virtual void attention(const AttentionArgs& args, const KvCache& kv, const Step& step) = 0;
  /// out [T, n] = silu(gate_up [T, :n]) * gate_up [T, n:]
  virtual void silu_mul(Tensor out, Tensor gate_up) = 0;
  /// Chooses each token's experts: those with the top_k largest logits, of equal ones the lower
  /// expert. The weight of an expert is its probability in the softmax of all logits or, with
  /// `normalize`, of the logits of the chosen ones. Reads routing.logits and writes the rest.
  virtual void route(const Routing& /*routing*/, bool /*normalize*/) { refuse_experts(); }
  /// out [T * top_k, n]: entry i of expert e is row rows[i] of x, times the matrix [n, k] of e.
  /// If `rows` is empty, it is row i of x.
  virtual void expert_matmul(Tensor /*out*/, Tensor /*x*/, const Weight& /*w*/,
                             const Routing& /*routing*/, Tensor /*rows*/ = {}) {
    refuse_experts();
  }
  /// out [T, n] = for each token, the sum of its entries in x [T * top_k, n] times their weights.
  virtual void combine_experts(Tensor /*out*/, Tensor /*x*/, const Routing& /*routing*/) {
    refuse_experts();
  }

  // -- forward pass: the residual stream
  /// Finishes every addition to the residual on all ranks, and returns it (order.residual).
  virtual Tensor finish(Residual& residual) { return residual.whole(); }
  /// rms_norm of the residual, [T, hidden]. It is valid until the next operation on the residual.
  virtual Tensor norm(Residual& residual, const Norm& norm) {
    rms_norm(residual.scratch(), finish(residual), norm);
    return residual.scratch();
  }
  /// residual += x [T, hidden]. All ranks pass the same x.
  virtual void add(Residual& residual, Tensor x) { add(finish(residual), x); }
  /// residual += x [T, k] w^T, summed over the ranks, each of which holds a part of k. `next` is
  /// the norm that will be applied to the residual next, if any: a backend may begin it in the
  /// epilogue of the GEMM. The addition may stay unfinished until then (order.residual).
  virtual void add_matmul(Residual& residual, Tensor x, const Weight& w,
                          const Norm& /*next*/ = {}) {
    matmul(residual.scratch(), x, w);
    all_reduce(residual.scratch());
    add(residual, residual.scratch());
  }
  /// out [R, hidden] = the residual's rows `rows` [R]; the previous contents of `out` are lost.
  virtual void gather_rows(Residual& out, Residual& residual, Tensor rows) {
    gather_rows(out.sum(), finish(residual), rows);
  }

  // -- forward pass: stages
  /// The norms of q and k in qkv over the heads of all ranks. squares [T, 4] float32 is scratch.
  virtual void norm_whole(Tensor qkv, const WholeNorms& norms, Tensor squares) {
    sum_squares(squares, qkv, norms);
    all_reduce(squares);
    scale_by_squares(qkv, squares, norms);
  }
  /// out = norm(residual) w^T + bias
  virtual void norm_matmul(Tensor out, Residual& residual, const Norm& norm, const Weight& w,
                           Tensor bias = {}) {
    matmul(out, this->norm(residual, norm), w, bias);
  }
  /// rope_and_store, then attention. The contents of qkv are unspecified afterwards.
  virtual void rope_attention(const RopeStoreArgs& rope, const AttentionArgs& args,
                              const KvCache& kv, const Step& step) {
    rope_and_store(rope, kv, step);
    attention(args, kv, step);
  }
  /// rope.qkv = norm(residual) w^T + bias, then rope_attention.
  virtual void qkv_attention(Residual& residual, const QkvArgs& qkv, const RopeStoreArgs& rope,
                             const AttentionArgs& args, const KvCache& kv, const Step& step) {
    norm_matmul(rope.qkv, residual, qkv.norm, qkv.w, qkv.bias);
    rope_attention(rope, args, kv, step);
  }
  /// qkv_attention, then residual += out w^T as add_matmul() does.
  virtual void attention_block(Residual& residual, const QkvArgs& qkv, const RopeStoreArgs& rope,
                               const AttentionArgs& args, const KvCache& kv, const Step& step,
                               const Weight& w, const Norm& next) {
    qkv_attention(residual, qkv, rope, args, kv, step);
    add_matmul(residual, args.out, w, next);
  }
  /// out [T, n] = silu_mul(norm(residual) w^T); gate_up [T, 2 n] is scratch.
  virtual void norm_swiglu(Tensor out, Residual& residual, const Norm& norm, const Weight& w,
                           Tensor gate_up) {
    norm_matmul(gate_up, residual, norm, w);
    silu_mul(out, gate_up);
  }
  /// residual += for each token, the sum of its experts' MLPs of norm(residual) times their
  /// weights. Each rank has the whole router and a part of the n columns of every expert.
  virtual void norm_experts(Residual& residual, const Norm& norm, const ExpertArgs& experts) {
    const Routing& routing = experts.routing;
    const Tensor x = this->norm(residual, norm);
    matmul(routing.logits, x, experts.router);
    route(routing, experts.normalize);
    expert_matmul(experts.wide, x, experts.gate_up, routing, routing.tokens);
    silu_mul(experts.narrow, experts.wide);
    expert_matmul(experts.out, experts.narrow, experts.down, routing);
    combine_experts(residual.scratch(), experts.out, routing);
    all_reduce(residual.scratch());
    add(residual, residual.scratch());
  }
  /// Copies blocks of the KV cache. No block is both a source and a destination.
  virtual void copy_blocks(const KvCache& kv, std::span<const BlockCopy> copies) = 0;

  // -- sampler
  /// Draws one token for each row of logits [R, vocab] float32 (on each rank, its own columns), as
  /// step.samples [R] say, and leaves the logits unchanged. The token becomes the last token of
  /// the row's slot, the same on every rank. A row that contains NaN or +infinity, or only
  /// -infinity after the masks, gets kNotFinite and token 0. Inside replay() only rows without
  /// filters and lists are drawn; finish_sample() draws the others.
  virtual void sample(Tensor logits, const Step& step) = 0;
  /// logits = norm(residual [R, k]) w^T, then sample(). If no row wants log-probabilities, the
  /// contents of logits are unspecified afterwards.
  virtual void norm_sample(Tensor logits, Residual& residual, const Norm& norm, const Weight& w,
                           const Step& step) {
    norm_matmul(logits, residual, norm, w);
    sample(logits, step);
  }
  /// Ends the sampling of a step; called once for each step. Draws the rows that sample() left,
  /// computes the log-probabilities that rows want, and starts sending the results to the host.
  /// Masks of rows with num_late_words may change until here.
  virtual void finish_sample(Tensor /*logits*/) {}
  /// Waits for the results of the oldest finish_sample() that were not fetched yet, and writes them
  /// to token_ids [R] and status [R]. Appends num_logprobs entries to `logprobs` for each row with
  /// kOk: as token_logprobs(), with the drawn token as the target.
  virtual void fetch_samples(std::span<int32_t> token_ids, std::span<RowStatus> status,
                             std::vector<Logprob>& logprobs) = 0;
  /// Appends to `entries`, for each row r of logits [R, vocab], k + 1 natural log-probabilities
  /// under the raw logits: of targets[r], then of the best k tokens, the best first; of equal ones,
  /// the lower id is better. It waits for its results. Only the entries of rank 0 are used.
  virtual void token_logprobs(Tensor logits, std::span<const int32_t> targets, int64_t k,
                              std::vector<Logprob>& entries) = 0;

 protected:
  Step step_;  ///< that new_step() returned

 private:
  [[noreturn]] static void refuse_experts() {
    throw UserError("mixtures of experts are not available on this device");
  }
};

/// The CPU backend. With `threads` 0 it uses all cores that this process may use.
std::unique_ptr<Backend> make_cpu_backend(int64_t threads);

}  // namespace nanovllm
