#include "nanovllm/ops/step.h"

#include <algorithm>
#include <cstddef>

#include "nanovllm/base/to_size.h"

namespace nanovllm {

void Step::clear() {
  token_ids.clear();
  rows.clear();
  outputs.clear();
  samples.clear();
  block_updates.clear();
}

bool Step::has_late_rows() const {
  return std::ranges::any_of(samples, [](const SampleRow& row) { return row.num_late_words > 0; });
}

bool Step::has_outputs_in_order() const {
  int32_t row = 0, offset = 0;
  for (const OutputPlace& output : outputs) {
    if (output.row != row || output.offset != offset) return false;
    if (++offset == rows[to_size(row)].num_tokens) ++row, offset = 0;
  }
  return true;
}

void Step::pad(int64_t size) {
  while (num_seqs() < size) {
    outputs.push_back({.row = static_cast<int32_t>(num_seqs())});
    rows.push_back({.num_tokens = 1, .store = 0});
    token_ids.push_back(0);
    samples.push_back({{.temperature = 0}});
  }
}

void derive(Step& step, const KvCache& kv, DerivedArrays& arrays) {
  const auto block_table = [&](int32_t slot) {
    return kv.block_tables.rows(slot, 1).as<int32_t>();
  };
  for (const BlockUpdate& update : step.block_updates)
    block_table(update.slot)[update.index] = update.block;
  auto& [input_ids, positions, slot_mapping, cu_seqlens_q, context_lens, seq_slots, output_rows] =
      arrays;
  for (auto* const array : {&positions, &slot_mapping, &context_lens, &seq_slots, &output_rows})
    array->clear();
  cu_seqlens_q.assign(1, 0);
  input_ids = step.token_ids;
  for (const StepRow& row : step.rows) {
    const bool is_padding = row.slot < 0;
    const int32_t slot = is_padding ? 0 : row.slot, end = row.start + row.num_tokens;
    for (int64_t position = row.start; position < end; ++position) {
      positions.push_back(static_cast<int32_t>(position));
      slot_mapping.push_back(
          row.store == 0
              ? -1
              : static_cast<int32_t>(block_table(slot)[position / kv.block_size] * kv.block_size +
                                     position % kv.block_size));
    }
    cu_seqlens_q.push_back(static_cast<int32_t>(positions.size()));
    context_lens.push_back(is_padding ? 0 : end);
    seq_slots.push_back(slot);
    // Only the newest token of a sequence can be in flight.
    int32_t& last = input_ids[positions.size() - 1];
    if (last == kTokenInFlight) last = step.last_tokens.as<const int32_t>()[slot];
  }
  for (const OutputPlace& output : step.outputs)
    output_rows.push_back(cu_seqlens_q[to_size(output.row)] + output.offset);
  const auto view = [](std::vector<int32_t>& array) {
    return Tensor(array.data(), DType::kI32, std::ssize(array));
  };
  step.input_ids = view(input_ids);
  step.positions = view(positions);
  step.slot_mapping = view(slot_mapping);
  step.cu_seqlens_q = view(cu_seqlens_q);
  step.context_lens = view(context_lens);
  step.seq_slots = view(seq_slots);
  step.output_rows = view(output_rows);
}

}  // namespace nanovllm
