#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/base/config.h"
#include "nanovllm/model/forward.h"
#include "nanovllm/model/model_config.h"
#include "nanovllm/model/weights.h"
#include "nanovllm/ops/backend.h"
#include "nanovllm/runtime/kv_size.h"
#include "nanovllm/runtime/rank_state.h"
#include "nanovllm/runtime/step_io.h"

namespace nanovllm {

/// The dtype of weights and activations: the option's, or with "auto" the checkpoint's, float32
/// becoming bfloat16.
DType model_dtype(const EngineConfig& config, const ModelConfig& model);

/// One rank: weights, KV cache, buffers and slots, sized once; each step is a forward pass and its
/// sampling.
class ModelRunner {
 public:
  /// Loads `folder` onto `backend`. `config` has its defaults resolved (max_num_batched_tokens,
  /// max_num_seqs); `kv` is size_kv_cache()'s. Of several ranks `backend` is connected to the
  /// others.
  ModelRunner(const std::string& folder, const EngineConfig& config, const ModelConfig& model,
              const KvSize& kv, std::unique_ptr<Backend> backend, Rank rank = {});

  // Any one thread at a time. What the backend throws passes through.
  /// Enqueues a step; at most two are under way.
  void launch(const StepInput& input);
  /// The output of the oldest step under way, when the device has it.
  void collect(StepOutput& output);

  const Model& model() const { return *model_; }

 private:
  /// A step under way.
  struct Flight {
    StepOutput output;
    std::vector<std::pair<int32_t, uint64_t>> slots;  ///< of its samples: slot, its num_starts()
    bool settled = true;                              ///< the host has its tokens
  };
  Flight& flight(uint64_t number) { return flights_[number % flights_.size()]; }
  Tensor allocate_ints(int64_t count);
  /// How many rows the step is padded to so that its work can be replayed; 0: it cannot.
  int64_t replay_size(const StepInput& input) const;
  void pad(int64_t size);
  /// `last`: the residual of all tokens behind the last layer.
  void prompt_logprobs(const StepInput& input, Residual& last, StepOutput& output);
  void start_samples(const StepInput& input, Flight& flight);
  /// Waits for the step's tokens and passes them to their slots.
  void settle(Flight& flight);
  void sample_logprobs(Tensor logits, StepOutput& output);
  void add_logprobs(Tensor logits, std::span<const int32_t> targets, int64_t k,
                    std::vector<LogprobEntry>& entries);

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  Activations activations_;
  KvCache kv_;
  std::vector<Buffer> buffers_;  // the cache's and the tables'
  SlotTables tables_;
  RankState state_;
  HostBatch host_;
  std::array<Flight, 2> flights_;
  uint64_t num_launched_ = 0, num_collected_ = 0;
  int64_t max_rows_;
  bool replays_;

  // Of one step; kept to be reused.
  std::vector<int32_t> token_ids_, targets_, ids_, ranks_, copy_from_, copy_to_;
  std::vector<RowStatus> status_;
  std::vector<float> logprobs_;
};

}  // namespace nanovllm
