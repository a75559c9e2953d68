#include "nanovllm/runtime/rank_state.h"

#include <algorithm>

#include "nanovllm/base/check.h"

namespace nanovllm {

namespace {

Tensor ids(std::vector<int32_t>& v) {
  return {v.data(), DType::kI32, static_cast<int64_t>(v.size())};
}

}  // namespace

Batch HostBatch::view() {
  Batch batch;
  batch.input_ids = ids(input_ids);
  batch.positions = ids(positions);
  batch.slot_mapping = ids(slot_mapping);
  batch.cu_seqlens_q = ids(cu_seqlens_q);
  batch.context_lens = ids(context_lens);
  batch.block_tables = {block_tables.data(), DType::kI32, static_cast<int64_t>(context_lens.size()),
                        max_blocks};
  batch.sample_rows = ids(sample_rows);
  return batch;
}

RankState::RankState(int64_t max_num_seqs, int64_t max_blocks_per_seq, int64_t block_size)
    : slots_(static_cast<size_t>(max_num_seqs)),
      block_tables_(static_cast<size_t>(max_num_seqs * max_blocks_per_seq)),
      max_blocks_per_seq_(max_blocks_per_seq),
      block_size_(block_size) {}

void RankState::apply(const StepInput& input, HostBatch& batch) {
  size_t next_masked = 0;
  for (const SlotSetup& setup : input.setups()) {
    Slot& s = slot(setup.slot);
    s.setup = setup;
    const auto masked =
        input.masked_ids().subspan(next_masked, static_cast<size_t>(setup.num_masked_ids));
    s.masked_ids.assign(masked.begin(), masked.end());
    next_masked += masked.size();
  }
  for (const BlockUpdate& update : input.block_updates())
    block_tables_[static_cast<size_t>(update.slot * max_blocks_per_seq_ + update.index)] =
        update.block;

  const size_t num_tokens = input.token_ids().size();
  batch.input_ids.resize(num_tokens);
  batch.positions.resize(num_tokens);
  batch.slot_mapping.resize(num_tokens);
  batch.cu_seqlens_q.assign(1, 0);
  batch.context_lens.clear();
  batch.max_blocks = 1;
  for (const RowInput& row : input.rows())
    batch.max_blocks =
        std::max(batch.max_blocks, (row.start + row.num_tokens + block_size_ - 1) / block_size_);
  batch.block_tables.resize(input.rows().size() * static_cast<size_t>(batch.max_blocks));

  size_t t = 0;
  int32_t* table_out = batch.block_tables.data();
  for (const RowInput& row : input.rows()) {
    const int32_t* table = block_tables_.data() + row.slot * max_blocks_per_seq_;
    const int32_t end = row.start + row.num_tokens;
    const int64_t num_blocks = (end + block_size_ - 1) / block_size_;
    for (int32_t position = row.start; position < end; ++position, ++t) {
      const int32_t id = input.token_ids()[t];
      batch.input_ids[t] = id == kTokenInFlight ? slot(row.slot).last_token : id;
      batch.positions[t] = position;
      batch.slot_mapping[t] =
          row.store == 0 ? -1
                         : static_cast<int32_t>(table[position / block_size_] * block_size_ +
                                                position % block_size_);
    }
    batch.cu_seqlens_q.push_back(static_cast<int32_t>(t));
    batch.context_lens.push_back(end);
    std::copy_n(table, num_blocks, table_out);
    std::fill_n(table_out + num_blocks, batch.max_blocks - num_blocks, 0);
    table_out += batch.max_blocks;
  }
  check(t == num_tokens, "step {}: {} tokens in rows, {} ids", input.header().step, t, num_tokens);
  batch.sample_rows.clear();
  for (const SampleInput& sample : input.samples())
    batch.sample_rows.push_back(batch.cu_seqlens_q[static_cast<size_t>(sample.row) + 1] - 1);
}

}  // namespace nanovllm
