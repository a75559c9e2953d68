#pragma once

#include <memory>
#include <string>
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
  /// max_num_seqs); `kv` is size_kv_cache()'s.
  ModelRunner(const std::string& folder, const EngineConfig& config, const ModelConfig& model,
              const KvSize& kv, std::unique_ptr<Backend> backend);

  /// Not thread-safe; any one thread at a time. Throws what the backend throws.
  void run(const StepInput& input, StepOutput& output);

  const Model& model() const { return *model_; }

 private:
  void prompt_logprobs(const StepInput& input, StepOutput& output);
  void sample(const StepInput& input, StepOutput& output);
  void add_logprobs(Tensor logits, std::span<const int32_t> targets, int64_t k,
                    std::vector<LogprobEntry>& entries);

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  Activations activations_;
  KvCache kv_;
  Buffer kv_buffer_;
  RankState state_;
  HostBatch batch_;
  int64_t max_rows_;

  // Of one step; kept to be reused.
  std::vector<SampleRow> rows_;
  std::vector<int32_t> token_ids_, targets_, row_indices_, ids_, ranks_, copy_from_, copy_to_;
  std::vector<RowStatus> status_;
  std::vector<float> logprobs_;
};

}  // namespace nanovllm
