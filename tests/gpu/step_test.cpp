#include <algorithm>
#include <numeric>
#include <random>

#include "two_backends.h"

namespace nanovllm {
namespace {

class GpuStep : public TwoBackends {
 protected:
  /// A cache of which only the block tables are used, and the last tokens of its slots.
  struct Tables {
    Buffer memory;
    KvCache kv;
    Tensor last_tokens;
  };
  static constexpr int64_t kNumSlots = 600, kMaxBlocks = 70;

  Tables make_tables(Backend& backend, int64_t block_size, const std::vector<int32_t>& contents) {
    Tables tables = {.memory = backend.allocate(contents.size() * sizeof(int32_t)),
                     .kv = {.dtype = DType::kBF16,
                            .num_layers = 1,
                            .num_blocks = 1,
                            .block_size = block_size,
                            .num_kv_heads = 2,
                            .head_dim = 64},
                     .last_tokens = {}};
    auto* const ints = static_cast<int32_t*>(tables.memory.get());
    backend.upload(ints, contents.data(), contents.size() * sizeof(int32_t));
    tables.kv.block_tables = {ints, DType::kI32, kNumSlots, kMaxBlocks};
    tables.last_tokens = {ints + kNumSlots * kMaxBlocks, DType::kI32, kNumSlots};
    return tables;
  }

  std::vector<int32_t> ints(Backend& backend, const Tensor& tensor) {
    std::vector<int32_t> values(static_cast<size_t>(tensor.size()));
    backend.download(values.data(), tensor.data, values.size() * sizeof(int32_t));
    return values;
  }
};

// The first kernel of a step and derive() in ops/step.h are twins.
TEST_P(GpuStep, DerivesTheSameAsTheCpu) {
  if (skips()) return;
  std::mt19937 random(1);
  const auto below = [&](uint32_t n) { return static_cast<int32_t>(random() % n); };
  for (const int num_rows : {1, 2, 31, 64, 300, 600})
    for (const bool decodes : {true, false})
      for (const int64_t block_size : {16, 48}) {
        std::vector<int32_t> contents(static_cast<size_t>(kNumSlots * (kMaxBlocks + 1)));
        for (int32_t& value : contents) value = below(1000);
        std::vector<StepRow> rows;
        std::vector<int32_t> slots(kNumSlots);
        std::iota(slots.begin(), slots.end(), 0);
        std::ranges::shuffle(slots, random);
        std::vector<int32_t> ids;
        std::vector<OutputPlace> outputs;
        std::vector<BlockUpdate> updates;
        for (int32_t r = 0; r < num_rows; ++r) {
          const int32_t slot = slots[static_cast<size_t>(r)];
          const int32_t count = decodes ? 1 : 1 + below(r % 5 == 0 ? 200 : 4);
          rows.push_back({slot, below(800), count, below(5) == 0 ? 0 : 1});
          for (int32_t i = 0; i < count; ++i) ids.push_back(below(30000));
          if (below(2) == 0) ids.back() = kTokenInFlight;
          if (below(3) == 0) updates.push_back({slot, below(kMaxBlocks), below(1000)});
          outputs.push_back({r, below(static_cast<uint32_t>(count)), slot});
        }
        std::vector<std::vector<int32_t>> derived[2];
        for (const bool on_gpu : {false, true}) {
          Backend& backend = on_gpu ? *gpu : *cpu;
          const Tables tables = make_tables(backend, block_size, contents);
          Step& step = backend.new_step();
          step.token_ids = ids;
          step.rows = rows;
          step.outputs = outputs;
          step.samples.resize(outputs.size());
          step.block_updates = updates;
          step.last_tokens = tables.last_tokens;
          if (decodes) step.pad(num_rows + 7);
          backend.begin_step(tables.kv);
          for (const Tensor& tensor :
               {step.input_ids, step.positions, step.slot_mapping, step.cu_seqlens_q,
                step.context_lens, step.seq_slots, step.output_rows, tables.kv.block_tables})
            derived[on_gpu].push_back(ints(backend, tensor));
        }
        for (size_t i = 0; i < derived[0].size(); ++i)
          EXPECT_EQ(derived[1][i], derived[0][i]) << "array " << i << ", " << num_rows << " rows";
      }
}

NANOVLLM_BOTH_KERNELS(GpuStep);

}  // namespace
}  // namespace nanovllm
