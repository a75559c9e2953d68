#pragma once

#include <deque>
#include <vector>

#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cpu/gemm/gemm.h"
#include "nanovllm/ops/cpu/machine/isa.h"

namespace nanovllm::cpu {

/// Backend on x86-64. This is the first file to read: each operation calls the file of its name
/// (attention.h, gemm.h, ...), which splits the work over threads, and that calls kernels/. Every
/// operation is finished when it returns.
class CpuBackend : public Backend {
 public:
  /// `threads` 0: all cores that this process may use. `isa` is at most best_isa().
  explicit CpuBackend(int64_t threads, Isa isa = best_isa());

  std::string describe() const override;
  void connect(Communicator& ranks, int64_t vocab_size) override;
  void all_reduce(Tensor x) override;
  Memory memory() const override;
  Buffer allocate(size_t bytes) override;
  void upload(void* device, const void* host, size_t bytes) override;
  void download(void* host, const void* device, size_t bytes) override;
  void begin_step(const KvCache& kv) override;
  using Backend::pack;
  WeightPtr pack(std::span<const WeightRows> parts, DType dtype) override;
  WeightPtr pack_experts(std::span<const WeightRows> parts, int64_t num_experts,
                         DType dtype) override;

  void embed(Tensor out, const Weight& table, Tensor ids) override;
  void rms_norm(Tensor out, Tensor x, const Norm& norm) override;
  void sum_squares(Tensor squares, Tensor qkv, const WholeNorms& norms) override;
  void scale_by_squares(Tensor qkv, Tensor squares, const WholeNorms& norms) override;
  using Backend::add;
  void add(Tensor sum, Tensor x) override;
  using Backend::gather_rows;
  void gather_rows(Tensor out, Tensor x, Tensor rows) override;
  void matmul(Tensor out, Tensor x, const Weight& w, Tensor bias) override;
  void rope_and_store(const RopeStoreArgs& args, const KvCache& kv, const Step& step) override;
  void attention(const AttentionArgs& args, const KvCache& kv, const Step& step) override;
  void silu_mul(Tensor out, Tensor gate_up) override;
  void route(const Routing& routing, bool normalize) override;
  void expert_matmul(Tensor out, Tensor x, const Weight& w, const Routing& routing,
                     Tensor rows) override;
  void combine_experts(Tensor out, Tensor x, const Routing& routing) override;
  void copy_blocks(const KvCache& kv, std::span<const BlockCopy> copies) override;

  void sample(Tensor logits, const Step& step) override;
  void finish_sample(Tensor logits) override;
  void fetch_samples(std::span<int32_t> token_ids, std::span<RowStatus> status,
                     std::vector<Logprob>& logprobs) override;
  void token_logprobs(Tensor logits, std::span<const int32_t> targets, int64_t k,
                      std::vector<Logprob>& entries) override;

 private:
  /// Divides the rows of logits, of which each rank has some columns, among the ranks. Calls
  /// draw(rows, index of the first) for this rank's rows, with the columns of all ranks.
  template <class Draw>
  void for_own_rows(Tensor logits, Draw draw);
  void draw(Tensor logits, const Step& step);
  /// Sums arrays in which the elements of other ranks are zero.
  template <class T>
  void join_ranks(std::span<T> values);
  void append_logprobs(Tensor logits, std::span<const int32_t> targets, int64_t k,
                       std::span<const SampleRow> processed, std::vector<Logprob>& entries);

  Isa isa_;
  int threads_;
  Communicator* ranks_ = nullptr;  // none: the only rank
  int64_t vocab_size_ = 0;         // of all ranks
  Range vocab_;                    // the rank's part
  DerivedArrays derived_;          // of the step
  std::vector<int32_t> own_ids_;   // of embed(); kept, so that it need not allocate
  Gemm gemm_;
  struct Drawn {
    std::vector<int32_t> token_ids;
    std::vector<RowStatus> status;
    std::vector<Logprob> logprobs;
  };
  std::deque<Drawn> drawn_;  // not fetched yet, oldest first
};

}  // namespace nanovllm::cpu
