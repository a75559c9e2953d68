// Attention of the CPU backend in Qwen3-0.6B's shape (16 query heads, 8 KV heads, head_dim 128).
// GB/s counts the bytes of K and V that are read, GFLOP/s the operations that the causal mask
// leaves.
//   attention_bench [threads]

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "nanovllm/ops/cpu/attention.h"
#include "nanovllm/ops/cpu/machine/memory.h"
#include "nanovllm/ops/cpu/machine/parallel.h"

using namespace nanovllm;

namespace {

constexpr int64_t kHeads = 16, kKvHeads = 8, kHeadDim = 128, kBlockSize = 64;

void fill(void* data, DType dtype, int64_t count) {
  std::mt19937 random(1);
  float table[4096];
  for (float& x : table) x = static_cast<float>(random()) / 4294967296.0f - 0.5f;
  for (int64_t i = 0; i < count; ++i) {
    const float x = table[i * 7 % 4093];
    if (dtype == DType::kF32) static_cast<float*>(data)[i] = x;
    else static_cast<uint16_t*>(data)[i] = dtype == DType::kBF16 ? f32_to_bf16(x) : f32_to_f16(x);
  }
}

/// The shortest time, in seconds, of attention for `num_seqs` sequences with `num_tokens` new
/// tokens each.
double seconds(DType dtype, DType kv_dtype, cpu::Isa isa, int64_t num_seqs, int64_t num_tokens,
               int64_t context) {
  const int64_t seq_blocks = (context + kBlockSize - 1) / kBlockSize;
  const int64_t num_blocks = num_seqs * seq_blocks, tokens = num_seqs * num_tokens;
  KvCache kv{.data = nullptr,
             .dtype = kv_dtype,
             .num_layers = 1,
             .num_blocks = num_blocks,
             .block_size = kBlockSize,
             .num_kv_heads = kKvHeads,
             .head_dim = kHeadDim};
  const Buffer cache = cpu::allocate(kv.block_bytes() * static_cast<size_t>(num_blocks));
  kv.data = cache.get();
  if (kv_dtype != DType::kE4M3)
    fill(kv.data, dtype, 2 * kv.num_kv_heads * kHeadDim * kBlockSize * num_blocks);
  else  // small positive numbers both as elements and, four of these bytes, as a scale
    std::memset(kv.data, 0x39, kv.block_bytes() * static_cast<size_t>(num_blocks));

  const int64_t columns = (kHeads + 2 * kKvHeads) * kHeadDim;
  std::vector<float> qkv(static_cast<size_t>(tokens * columns));
  std::vector<float> out(static_cast<size_t>(tokens * kHeads * kHeadDim));
  fill(qkv.data(), dtype, tokens * columns);
  std::vector<int32_t> starts,
      contexts(static_cast<size_t>(num_seqs), static_cast<int32_t>(context));
  for (int64_t s = 0; s <= num_seqs; ++s) starts.push_back(static_cast<int32_t>(s * num_tokens));
  std::vector<int32_t> tables(static_cast<size_t>(num_blocks));
  for (int64_t i = 0; i < num_blocks; ++i) tables[i] = static_cast<int32_t>(i);
  std::shuffle(tables.begin(), tables.end(), std::mt19937(2));
  Step step;
  step.token_ids.resize(static_cast<size_t>(tokens));
  step.rows.resize(static_cast<size_t>(num_seqs));
  step.cu_seqlens_q = Tensor(starts.data(), DType::kI32, num_seqs + 1);
  step.context_lens = Tensor(contexts.data(), DType::kI32, num_seqs);
  std::vector<int32_t> slots(static_cast<size_t>(num_seqs));
  std::iota(slots.begin(), slots.end(), 0);
  step.seq_slots = Tensor(slots.data(), DType::kI32, num_seqs);
  kv.block_tables = Tensor(tables.data(), DType::kI32, num_seqs, seq_blocks);
  const AttentionArgs args = {.out = Tensor(out.data(), dtype, tokens, kHeads * kHeadDim),
                              .qkv = Tensor(qkv.data(), dtype, tokens, columns),
                              .num_heads = kHeads,
                              .scale = 0.0884f,
                              .layer = 0};
  double best = 1e9, total = 0;
  for (int i = 0; i < 5 || (total < 0.5 && i < 200); ++i) {
    const auto start = std::chrono::steady_clock::now();
    cpu::attention(args, kv, step, isa, isa);
    const double time =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::min(best, time);
    total += time;
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) cpu::set_num_threads(std::atoi(argv[1]));
  fmt::print("{} threads\n{:<10} {:<14} {:<12} {:>5} {:>7} {:>8} {:>10} {:>8} {:>9}\n",
             cpu::num_threads(), "dtype", "cache", "isa", "seqs", "tokens", "context", "ms", "GB/s",
             "GFLOP/s");
  struct Work {
    int64_t num_seqs, num_tokens, context;
  };
  constexpr std::pair<DType, DType> kDTypes[] = {{DType::kF32, DType::kF32},
                                                 {DType::kBF16, DType::kBF16},
                                                 {DType::kF16, DType::kF16},
                                                 {DType::kBF16, DType::kE4M3}};
  for (const auto& [dtype, kv_dtype] : kDTypes)
    for (const cpu::Isa isa : {cpu::Isa::kPlain, cpu::Isa::kAvx2, cpu::Isa::kAvx512,
                               cpu::Isa::kAvx512Bf16, cpu::Isa::kAmx}) {
      const bool is_of_bf16 = isa >= cpu::Isa::kAvx512Bf16;
      if (!cpu::is_supported(isa) || (is_of_bf16 && kv_dtype != DType::kBF16)) continue;
      for (const auto& [num_seqs, num_tokens, context] :
           {Work{256, 1, 160}, Work{32, 1, 1024}, Work{1, 1, 16384}, Work{1, 1024, 1024},
            Work{4, 256, 4096}}) {
        const double time = seconds(dtype, kv_dtype, isa, num_seqs, num_tokens, context);
        const double keys_and_values = 2.0 * static_cast<double>(num_seqs * context * kKvHeads) *
                                       static_cast<double>(kv_key_bytes(kv_dtype, kHeadDim));
        const double seen =
            static_cast<double>(num_seqs * num_tokens) *
            (static_cast<double>(context) - static_cast<double>(num_tokens - 1) / 2);
        fmt::print("{:<10} {:<14} {:<12} {:>5} {:>7} {:>8} {:>10.3f} {:>8.1f} {:>9.1f}\n",
                   dtype_name(dtype), dtype_name(kv_dtype), cpu::isa_name(isa), num_seqs,
                   num_tokens, context, time * 1e3, keys_and_values / time / 1e9,
                   4 * seen * kHeads * kHeadDim / time / 1e9);
      }
    }
}
