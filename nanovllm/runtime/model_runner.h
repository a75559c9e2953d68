#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/model/forward.h"
#include "nanovllm/model/weights.h"
#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/graph_sizes.h"
#include "nanovllm/runtime/rank_state.h"
#include "nanovllm/runtime/ranks/executor.h"
#include "nanovllm/runtime/setup.h"
#include "nanovllm/runtime/step_io.h"

namespace nanovllm {

/// One rank: weights, KV cache, buffers and slots. A step is a forward pass and its sampling.
class ModelRunner : public Executor {
 public:
  /// Loads the checkpoint `folder` into the memory of `backend`. `setup` is the result of
  /// resolve_setup(), which also connected `backend` to the other ranks, if there are any.
  ModelRunner(const std::string& folder, const EngineSetup& setup, std::unique_ptr<Backend> backend,
              Rank rank = {});

  // They throw what the backend throws.
  void submit(const StepInput& input) override;
  void complete(const StepInput& late) override;
  const StepOutput& wait() override;

 private:
  /// A step that was submitted and not waited for.
  struct Flight {
    StepOutput output;
    std::vector<Logprob> known_logprobs;              ///< of its outputs of kLogprobs
    std::vector<std::pair<int32_t, uint64_t>> slots;  ///< of drawn tokens: slot, its num_starts()
  };
  Flight& flight(uint64_t number) { return flights_[number % flights_.size()]; }
  /// The number of rows to which the step is padded for a graph replay; 0: it cannot be replayed.
  int64_t replay_size(const StepInput& input, const Step& step) const;
  int64_t max_replay_rows() const { return std::min(state_.num_slots(), kMostGraphRows); }
  void allocate_cache(const EngineSetup& setup);
  void prepare(const EngineSetup& setup);  // calls Backend::prepare()
  void warm_up(const WarmupStep& warmup, int64_t max_len);
  /// Computes the layers (the first `num_layers`) and what the outputs of a step need of them:
  /// first the log-probabilities of known tokens, the outputs `known`, which it appends to
  /// `logprobs`, then the tokens that are drawn. Returns the logits of these.
  Tensor compute(const Step& step, std::span<const OutputInput> known,
                 std::vector<Logprob>& logprobs, int64_t num_layers = INT64_MAX);
  void start_outputs(const StepInput& input, Flight& flight);
  /// Waits for the step's tokens and appends them to their slots.
  void fetch(Flight& flight);

  std::unique_ptr<Backend> backend_;
  Model model_;
  Activations activations_;
  KvCache kv_;
  std::vector<Buffer> buffers_;  // the cache's and the tables'
  RankState state_;
  std::array<Flight, 2> flights_;
  uint64_t num_submitted_ = 0, num_waited_ = 0;
  std::optional<Tensor> late_logits_;  // of a step whose late part has not come yet
  bool replays_;

  // Arrays of one step, whose memory is reused.
  std::vector<int32_t> token_ids_, targets_;
  std::vector<RowStatus> status_;
};

}  // namespace nanovllm
