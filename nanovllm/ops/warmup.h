#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "nanovllm/ops/step.h"

namespace nanovllm {

/// A step without requests, whose results are lost. With up to max_num_seqs tokens, each token is
/// of a sequence that decodes; otherwise all are of prompts.
struct WarmupStep {
  int64_t num_tokens = 1;
  int64_t num_keys = 1;        ///< of the longest sequence that decodes
  bool has_equal_keys = true;  ///< whether all sequences that decode have as many
  int64_t num_padding = 0;     ///< of the tokens, at the end of the step: of no sequence
  bool has_filters = false;    ///< whether a row has filters and wants log-probabilities
  bool replays = false;        ///< only calls Backend::replay(), for the whole model
};

/// The steps that a backend may run to prepare itself (Backend::prepare()).
struct Warmup {
  int64_t max_tokens = 0;            ///< of a step
  int64_t max_seqs = 1;              ///< of a step, so the largest number of rows of logits
  std::vector<int64_t> graph_sizes;  ///< with which Backend::replay() will be called
  size_t weight_bytes = 0;
  /// Runs a step: a few layers and the sampler, unless it only replays.
  std::function<void(const WarmupStep&)> run;
};

/// Writes the first part of a step without requests. Its sequences have the slot 0 and store
/// nothing. No sequence has more than `max_len` tokens, and there are at most `max_seqs` of them.
void fill(Step& step, const WarmupStep& warmup, int64_t max_seqs, int64_t max_len);

}  // namespace nanovllm
