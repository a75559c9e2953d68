#pragma once

#include <cstdint>
#include <vector>

#include "nanovllm/ops/batch.h"
#include "nanovllm/runtime/step_io.h"

namespace nanovllm {

/// The arrays of a Batch on the host, reused from step to step.
struct HostBatch {
  std::vector<int32_t> input_ids, positions, slot_mapping, cu_seqlens_q, context_lens, block_tables,
      sample_rows;
  int64_t max_blocks = 1;  ///< row length of block_tables

  Batch view();
};

/// What a rank keeps for each slot from step to step.
struct Slot {
  SlotSetup setup;
  std::vector<int32_t> masked_ids;
  int32_t last_token = 0;
};

/// The slots of one rank and their block tables: takes in what a step changed and spells the step
/// out as a batch.
class RankState {
 public:
  RankState(int64_t max_num_seqs, int64_t max_blocks_per_seq, int64_t block_size);

  void apply(const StepInput& input, HostBatch& batch);
  Slot& slot(int32_t i) { return slots_[static_cast<size_t>(i)]; }

 private:
  std::vector<Slot> slots_;
  std::vector<int32_t> block_tables_;  // [max_num_seqs, max_blocks_per_seq]
  int64_t max_blocks_per_seq_;
  int64_t block_size_;
};

}  // namespace nanovllm
