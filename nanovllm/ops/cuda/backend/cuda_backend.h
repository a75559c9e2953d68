#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <optional>
#include <vector>

#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/choice_file.h"
#include "nanovllm/ops/cuda/attention/attention.h"
#include "nanovllm/ops/cuda/backend/parts/attention_plan.h"
#include "nanovllm/ops/cuda/backend/parts/device.h"
#include "nanovllm/ops/cuda/backend/parts/graphs.h"
#include "nanovllm/ops/cuda/backend/parts/step_sampler.h"
#include "nanovllm/ops/cuda/backend/parts/step_upload.h"
#include "nanovllm/ops/cuda/backend/parts/weight_packer.h"
#include "nanovllm/ops/cuda/collectives/collectives.h"
#include "nanovllm/ops/cuda/gemm/gemms.h"
#include "nanovllm/ops/cuda_library.h"

namespace nanovllm::cuda {

/// The Backend on one NVIDIA GPU; the first file to read in this folder. Its parts are the device
/// and its memory (device.h), a step's input (step_upload.h, step.cu), the plan of its attention
/// (attention_plan.h), its tokens (step_sampler.h), the captured steps (graphs.h) and the weights
/// (weight_packer.h). Everything is enqueued on one stream. Only fetch_samples, token_logprobs,
/// pack, upload, download and the growth of a buffer wait for the stream. Every public call works
/// in the GPU's primary context and restores the caller's.
class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(CudaKernels kernels, Rank rank);
  ~CudaBackend() override;

  std::string describe() const override;
  void connect(Communicator& ranks, int64_t vocab_size) override;
  void all_reduce(Tensor x) override;
  Memory memory() const override;
  Buffer allocate(size_t bytes) override;
  void upload(void* device, const void* host, size_t bytes) override;
  void download(void* host, const void* device, size_t bytes) override;

  void begin_step(const KvCache& kv) override;
  bool replays() const override { return true; }
  void replay(int64_t size, const std::function<void()>& enqueue) override;
  void prepare(const Warmup& warmup, const ChoiceCache& cache) override;
  std::string describe_cache(const ChoiceCache& cache) const override;

  using Backend::pack;
  void load_weights(const std::function<void()>& load) override;
  WeightPtr pack(std::span<const WeightRows> parts, DType dtype) override;
  /// The matrices of all experts follow each other in memory, as the rows of one weight.
  WeightPtr pack_experts(std::span<const WeightRows> parts, int64_t /*num_experts*/,
                         DType dtype) override {
    return pack(parts, dtype);
  }
  void embed(Tensor out, const Weight& table, Tensor ids) override;
  void rms_norm(Tensor out, Tensor x, const Norm& norm) override;
  void sum_squares(Tensor squares, Tensor qkv, const WholeNorms& norms) override;
  void scale_by_squares(Tensor qkv, Tensor squares, const WholeNorms& norms) override;
  void add(Tensor sum, Tensor x) override;
  void gather_rows(Tensor out, Tensor x, Tensor rows) override;
  void matmul(Tensor out, Tensor x, const Weight& w, Tensor bias) override;
  void rope_and_store(const RopeStoreArgs& args, const KvCache& kv, const Step& step) override;
  void attention(const AttentionArgs& args, const KvCache& kv, const Step& step) override;
  void silu_mul(Tensor out, Tensor gate_up) override;

  using Backend::add;
  Tensor finish(Residual& residual) override;
  Tensor norm(Residual& residual, const Norm& norm) override;
  void add_matmul(Residual& residual, Tensor x, const Weight& w, const Norm& next) override;
  void gather_rows(Residual& out, Residual& residual, Tensor rows) override;

  void norm_matmul(Tensor out, Residual& residual, const Norm& norm, const Weight& w,
                   Tensor bias) override;
  void rope_attention(const RopeStoreArgs& rope, const AttentionArgs& args, const KvCache& kv,
                      const Step& step) override;
  void qkv_attention(Residual& residual, const QkvArgs& qkv, const RopeStoreArgs& rope,
                     const AttentionArgs& args, const KvCache& kv, const Step& step) override;
  void attention_block(Residual& residual, const QkvArgs& qkv, const RopeStoreArgs& rope,
                       const AttentionArgs& args, const KvCache& kv, const Step& step,
                       const Weight& w, const Norm& next) override;
  void norm_swiglu(Tensor out, Residual& residual, const Norm& norm, const Weight& w,
                   Tensor gate_up) override;
  void norm_experts(Residual& residual, const Norm& norm, const ExpertArgs& experts) override;
  void copy_blocks(const KvCache& kv, std::span<const BlockCopy> copies) override;

  void sample(Tensor logits, const Step& step) override;
  void norm_sample(Tensor logits, Residual& residual, const Norm& norm, const Weight& w,
                   const Step& step) override;
  void finish_sample(Tensor logits) override;
  void fetch_samples(std::span<int32_t> token_ids, std::span<RowStatus> status,
                     std::vector<Logprob>& logprobs) override;
  void token_logprobs(Tensor logits, std::span<const int32_t> targets, int64_t k,
                      std::vector<Logprob>& entries) override;

 private:
  /// Measures and shares the choices of GEMMs, and loads the code of kernels.
  void prepare_kernels(const Warmup& warmup, const ChoiceCache& cache);
  /// Gives all ranks the same choices: of each GEMM the one that was measured with most tokens, and
  /// if several ranks have such a one, that of the first.
  void share_choices();
  ChoiceFile choice_file(const ChoiceCache& cache) const;
  /// Finishes the residual. Returns true if one kernel did that together with its norm, which is in
  /// scratch() then; false if the norm is still to be computed, of the whole residual.
  bool sum_norm(Residual& residual, const Norm& norm);
  /// Where this rank's addend to a residual is to be written: it is added to the rows `added` and
  /// replaces the others. The residual's state is then that after the write. If there are `peers`,
  /// it is sent to them instead.
  struct Addend {
    Tensor out;
    Range added;
    const Peers* peers = nullptr;
  };
  Addend begin_addend(Residual& residual);
  /// add_matmul() of what may be there quantized too.
  void add_product(Residual& residual, const GemmInput& x, const Weight& w, const Norm& next);
  /// Writes rope.qkv, and k and v to the cache, in one kernel or two.
  void store_qkv(Residual& residual, const QkvArgs& qkv, const RopeStoreArgs& rope,
                 const KvCache& kv, const Step& step);
  /// attention(), which writes its output quantized too if the weight `next`, which multiplies it
  /// out next, needs that. Null: the weight is not known.
  GemmInput attend(const AttentionArgs& args, const KvCache& kv, const Step& step,
                   const Weight* next);
  /// The norm of a residual as the input of a GEMM, which may fuse the norm.
  GemmInput normed(Residual& residual, const Norm& norm);

  Device device_;
  std::optional<ContextScope> scope_;       // while the members below are made and destroyed
  std::optional<Collectives> collectives_;  // only with several ranks
  Gemms gemms_;
  WeightPacker weights_;
  StepUpload upload_;
  AttentionPlan attention_;
  StepSampler sampler_;
  Graphs graphs_;
  Growing copies_;
  Range vocab_;                       // this rank's part of the vocabulary
  bool has_shared_rows_ = false;      // prepare(): of a sum of the latest step
  int64_t num_chosen_at_start_ = -1;  // -1: prepare() was not called
};

}  // namespace nanovllm::cuda
