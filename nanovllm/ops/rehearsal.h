#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "nanovllm/ops/batch.h"

namespace nanovllm {

/// A step without requests, whose results are lost. With up to max_num_seqs tokens, each token is
/// of a sequence that decodes; otherwise all are of prompts.
struct RehearsedStep {
  int64_t num_tokens = 1;
  int64_t num_keys = 1;        ///< of the longest sequence that decodes
  bool has_equal_keys = true;  ///< whether all sequences that decode have as many
  int64_t num_padding = 0;     ///< of the tokens, at the end of the batch: of no sequence
  bool has_filters = false;    ///< whether a row has filters and wants log-probabilities
  bool replays = false;        ///< only calls Backend::replay(), for the whole model
};

/// The steps that a backend may run to prepare itself (Backend::prepare()).
struct Rehearsal {
  int64_t max_tokens = 0;             ///< of a step
  int64_t max_seqs = 1;               ///< of a step, so the largest number of rows of logits
  std::vector<int64_t> replay_sizes;  ///< with which Backend::replay() will be called
  size_t weight_bytes = 0;
  /// Runs a step: a few layers and the sampler, unless it only replays.
  std::function<void(const RehearsedStep&)> run;
};

/// Where a backend keeps what it measured, for later processes.
struct ChoiceCache {
  std::string folder = {};  ///< empty: nowhere
  uint64_t build = 0;       ///< a checksum of this program; another build does not use them
};

/// The most rows that are replayed. Larger decode batches are rare, and they run long enough to
/// hide the launches of kernels.
inline constexpr int64_t kMostReplayRows = 512;

/// The number of rows to which a decode step is padded for Backend::replay(): 1, 2, 4, 8 or a
/// multiple of 16, and not more than `most`.
int64_t padded_rows(int64_t num_rows, int64_t most);
/// All such numbers, in ascending order.
std::vector<int64_t> replay_sizes(int64_t most);

/// The batch of a step without requests. Its sequences have the slot 0 and store nothing. No
/// sequence has more than `max_len` tokens, and there are at most `max_seqs` of them.
void fill(HostBatch& batch, const RehearsedStep& step, int64_t max_seqs, int64_t max_len);

}  // namespace nanovllm
