#pragma once

#include <cuda_runtime.h>

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/choice_file.h"
#include "nanovllm/ops/cuda/attention/attention.h"
#include "nanovllm/ops/cuda/backend/weight_upload.h"
#include "nanovllm/ops/cuda/collectives/collectives.h"
#include "nanovllm/ops/cuda/device/runtime.h"
#include "nanovllm/ops/cuda/gemm/gemms.h"
#include "nanovllm/ops/cuda/sampling/sampler.h"
#include "nanovllm/ops/cuda_library.h"

namespace nanovllm::cuda {

/// The Backend on one NVIDIA GPU; the first file to read in this folder. Everything is enqueued on
/// one stream. Only fetch_samples, token_logprobs, pack, upload, download and the growth of a
/// buffer wait for the stream. Every public call works in the GPU's primary context and restores
/// the caller's.
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

  Batch begin_step(HostBatch& host, const SlotTables& slots, const KvCache& kv) override;
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
  void rope_and_store(const RopeStoreArgs& args, const KvCache& kv, const Batch& batch) override;
  void attention(const AttentionArgs& args, const KvCache& kv, const Batch& batch) override;
  void silu_mul(Tensor out, Tensor gate_up) override;

  using Backend::add;
  Tensor finish(Residual& residual) override;
  Tensor norm(Residual& residual, const Norm& norm) override;
  void add_matmul(Residual& residual, Tensor x, const Weight& w, const Norm& next) override;
  void gather_rows(Residual& out, Residual& residual, Tensor rows) override;

  void norm_matmul(Tensor out, Residual& residual, const Norm& norm, const Weight& w,
                   Tensor bias) override;
  void rope_attention(const RopeStoreArgs& rope, const AttentionArgs& args, const KvCache& kv,
                      const Batch& batch) override;
  void qkv_attention(Residual& residual, const QkvArgs& qkv, const RopeStoreArgs& rope,
                     const AttentionArgs& args, const KvCache& kv, const Batch& batch) override;
  void norm_swiglu(Tensor out, Residual& residual, const Norm& norm, const Weight& w,
                   Tensor gate_up) override;
  void norm_experts(Residual& residual, const Norm& norm, const ExpertArgs& experts) override;
  void copy_blocks(const KvCache& kv, std::span<const BlockCopy> copies) override;

  void sample(Tensor logits, const Batch& batch) override;
  void norm_sample(Tensor logits, Residual& residual, const Norm& norm, const Weight& w,
                   const Batch& batch) override;
  void finish_sample(Tensor logits) override;
  void fetch_samples(std::span<int32_t> token_ids, std::span<RowStatus> status,
                     std::vector<Logprob>& logprobs) override;
  void token_logprobs(Tensor logits, std::span<const int32_t> targets, int64_t k,
                      std::vector<Logprob>& entries) override;

 private:
  /// Two steps may be running, and the host writes the input of a third one.
  static constexpr size_t kNumSlots = 3;
  /// Memory that is replaced by larger memory when necessary. Its contents are lost then, and so
  /// are the graphs that contain the old address (ownership.memory).
  struct Growing {
    bool in_graphs = false;
    bool pinned = false;  ///< pinned host memory instead of device memory
    size_t bytes = 0;
    Buffer memory = {};
    template <class T>
    T* as() const {
      return static_cast<T*>(memory.get());
    }
  };
  std::vector<cudaEvent_t*> events();
  /// Waits for an event. With several ranks it throws EngineDead if one of them dies before.
  void wait(cudaEvent_t event);
  void wait_for_stream();
  void begin_upload();
  /// Copies rows to the device; in load_weights() it need not wait until all are there.
  void copy_rows(std::span<const WeightUpload::Copy> copies);
  WeightPtr pack_floats(std::span<const WeightRows> parts, DType dtype);
  Buffer allocate_pinned(size_t bytes);
  void grow(Growing& buffer, size_t bytes);
  void forget_graphs();
  /// The work of `enqueue` as a graph.
  cudaGraphExec_t capture(const std::function<void()>& enqueue);
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
  RowParams row_params(const SampleRow& row, int32_t slot);
  /// The norm of a residual as the input of a GEMM, which may fuse the norm.
  GemmInput normed(Residual& residual, const Norm& norm);
  static AttentionParams attention_params(const AttentionArgs& args, const KvCache& kv,
                                          const Batch& batch);
  /// Finds what ranks must know alike to choose decode attention alike (order.alike): NCCL requires
  /// that all ranks or none launch a collective from a graph.
  void agree_on_decode(const KvCache& kv);
  /// Fills prefill_groups_, and makes room for the copies of the largest group.
  void group_prefills(const HostBatch& host, const SlotTables& slots, const KvCache& kv);
  /// Sends words_ to the device on a stream of its own, so that this does not delay the step.
  void send_words();
  SampleParams sample_params(const Tensor& logits) const;
  /// Called after the kernel that draws the plain rows. With several ranks that kernel has only
  /// written the best token of this rank's columns to `found`; this compares the ranks' tokens and
  /// draws.
  void draw_from_ranks(const SampleParams& params);
  /// Rows of logits with the whole vocabulary, gathered from all ranks: the rows that `rows`
  /// [count] (device memory) names, or the first `count` if it is null.
  const float* whole_logits(Tensor logits, const int32_t* rows, int64_t count);
  /// Calls body(params, first, count) for `num_rows` rows of logits, whose indices are `rows` in
  /// device memory (null: the first ones). It does so for a few rows at a time if they are gathered
  /// from all ranks, or if each needs a row of special_scratch_.
  template <class Body>
  void for_rows(Tensor logits, const int32_t* rows, int num_rows, bool needs_scratch, Body body);

  Rank rank_;
  CUcontext context_ = nullptr;  // the GPU's primary context
  Launch where_;
  cudaDeviceProp device_ = {};
  CudaKernels kernels_;
  bool portable_ = false;  // portable kernels were requested, or the GPU is not Hopper
  bool capturing_ = false;
  bool preparing_ = false;            // replay() only captures
  bool has_shared_rows_ = false;      // prepare(): of a sum of the latest step
  int64_t num_chosen_at_start_ = -1;  // -1: prepare() was not called
  std::optional<Gemms> gemms_;
  std::optional<WeightUpload> weight_upload_;
  bool is_loading_ = false;                 // in load_weights()
  std::optional<Collectives> collectives_;  // only with several ranks
  int64_t vocab_size_ = 0;                  // of the whole model; only with several ranks
  Range vocab_;                             // this rank's part of it
  cudaEvent_t stream_end_ = nullptr;

  std::array<Growing, kNumSlots> pinned_input_;  // pinned host memory
  std::array<cudaEvent_t, kNumSlots> input_sent_ = {};
  /// What the sampler's kernels write directly to host memory, and the event after which it is
  /// complete.
  struct Results {
    Growing drawn{.pinned = true}, logprobs{.pinned = true};
    std::vector<LogprobRow> wanted;  ///< whose entries are in logprobs
    cudaEvent_t there = nullptr;
  };
  std::array<Results, kNumSlots> results_;
  /// The lists of the rows of a step that has any.
  struct Words {
    Growing host{.pinned = true}, device;
    cudaEvent_t there = nullptr, used = nullptr;
  };
  std::array<Words, kNumSlots> words_sent_;
  cudaStream_t words_stream_ = nullptr;
  uint64_t num_begun_ = 0, num_finished_ = 0, num_fetched_ = 0, num_words_ = 0;

  // State of the step that begin_step() began.
  Growing input_{.in_graphs = true}, plan_memory_{.in_graphs = true}, partial_{.in_graphs = true},
      counters_{.in_graphs = true}, prefill_counters_, prefill_partial_;
  bool has_prefill_ = false, has_decode_ = false;
  std::vector<PrefillLengths> prefill_lengths_;
  /// Neighbouring sequences whose 16-bit keys are in dequantized_ at the same time, if the cache is
  /// of e4m3 and prefill attention needs such copies.
  struct PrefillGroup {
    int first, num_seqs, num_tokens, blocks_per_seq;
  };
  std::vector<PrefillGroup> prefill_groups_;
  Growing dequantized_, dequantized_tables_;
  bool draws_in_gemm_ = false;  // whether norm_sample may use sample_gemm()
  DecodePlan plan_ = {};
  int most_kv_heads_ = 0;   // the largest number of KV heads of a rank; 0: not known yet
  int decode_cluster_ = 0;  // cluster size in thread blocks for rope_decode_attention; 0: not used
  DecodeScratch decode_scratch_ = {};
  const RowParams* rows_ = nullptr;
  const int32_t *input_ids_ = nullptr, *sample_rows_ = nullptr;
  int32_t* last_tokens_ = nullptr;
  Tensor context_lens_;  // of Batch
  std::vector<RowParams> row_params_;
  std::vector<int32_t> special_, words_;  // the rows that are not plain, and their lists
  std::vector<LogprobRow> wanted_;        // of the rows that want log-probabilities
  std::vector<int32_t> wanted_rows_;
  bool processed_logprobs_ = false;
  struct {
    const int32_t* special;
    const LogprobRow* wanted;
    const int32_t* wanted_rows;
  } special_rows_ = {};  // in device memory

  Growing drawn_at_{.in_graphs = true}, progress_{.in_graphs = true}, found_{.in_graphs = true},
      copies_, special_scratch_, prompt_wanted_, prompt_logprobs_{.pinned = true}, whole_logits_,
      gather_scratch_;
  // The key is size, decode_cluster_ and draws_in_gemm_.
  std::map<std::tuple<int64_t, int, bool>, cudaGraphExec_t> graphs_;
};

}  // namespace nanovllm::cuda
