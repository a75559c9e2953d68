#include "nanovllm/ops/cpu/attention.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numbers>
#include <vector>

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/thread_owned.h"
#include "nanovllm/ops/cpu/attention_kernels.h"
#include "nanovllm/ops/cpu/memory.h"
#include "nanovllm/ops/cpu/parallel.h"

namespace nanovllm::cpu {
namespace {

/// Query rows computed against one load of K and V: enough to hide the loads, few enough for scores
/// and sums to stay in the second-level cache.
constexpr int64_t kTileRows = 96;
/// Tasks for each thread that a split aims at.
constexpr int64_t kTasksPerThread = 4;

/// Query tokens [first_token, first_token + num_tokens) of the batch, all of one sequence, for one
/// KV head.
struct Tile {
  int32_t seq, kv_head;
  int32_t first_token, num_tokens;
  int32_t first_position;  // of the first token in its sequence
  int32_t num_key_blocks() const {
    return (first_position + num_tokens + kKeyBlock - 1) / kKeyBlock;
  }
};

/// Key blocks [first_block, end_block) of a tile. Where several threads share a tile, its blocks'
/// partial results wait in slots, block 0's in first_slot.
struct Task {
  Tile tile;
  int32_t first_block, end_block;
  int64_t first_slot;  // -1: not shared
};

/// Memory of the calling thread that grows and stays.
struct Scratch {
  std::vector<Task> tasks;
  std::vector<Task> shared;  // whole tiles that are shared
  Buffer floats;
  size_t num_floats = 0;

  float* reserve(size_t count) {
    if (count > num_floats) {
      floats = allocate(count * sizeof(float));
      num_floats = count;
    }
    return static_cast<float*>(floats.get());
  }
};

/// The kernels for `dtype`; `other` is what the products' other side has.
const AttentionKernels& choose_kernels(DType dtype, DType other, int64_t head_dim, Isa isa) {
  check(dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16,
        "attention does not work on {}", dtype_name(dtype));
  const int index = dtype == DType::kF32 ? 0 : dtype == DType::kBF16 ? 1 : 2;
  const auto fits = [&](const AttentionKernels& kernels) {
    return head_dim % kernels.head_dim_multiple == 0;
  };
  if (isa >= Isa::kAvx512Bf16 && dtype == DType::kBF16 && other == dtype &&
      fits(kAttentionAvx512Bf16))
    return kAttentionAvx512Bf16;
  if (isa >= Isa::kAvx512 && fits(kAttentionAvx512[index])) return kAttentionAvx512[index];
  return isa >= Isa::kAvx2 ? kAttentionAvx2[index] : kAttentionPlain[index];
}

class Attention {
 public:
  Attention(const AttentionArgs& args, const KvCache& kv, const Batch& batch, Isa isa)
      : args_(args),
        kv_(kv),
        batch_(batch),
        head_dim_(kv.head_dim),
        group_(args.num_heads / kv.num_kv_heads),
        tokens_per_tile_(std::max<int64_t>(kTileRows / group_, 1)),
        max_rows_((tokens_per_tile_ * group_ + 15) / 16 * 16),
        model_(choose_kernels(args.qkv.dtype, kv.dtype, head_dim_, isa)),
        cache_(choose_kernels(kv.dtype, args.qkv.dtype, head_dim_, isa)) {}

  void run(Scratch& scratch) {
    plan(num_threads(), scratch);
    const int64_t num_slots = num_slots_;
    float* const memory = scratch.reserve(
        static_cast<size_t>(num_threads() * workspace_floats() + num_slots * partial_floats()));
    slots_ = memory + num_threads() * workspace_floats();
    const auto workspace = [&](int thread) { return memory + thread * workspace_floats(); };

    const auto& tasks = scratch.tasks;
    parallel_for(static_cast<int64_t>(tasks.size()), [&](int64_t i, int thread) {
      compute(tasks[static_cast<size_t>(i)], workspace(thread));
    });

    const auto& shared = scratch.shared;
    parallel_for(static_cast<int64_t>(shared.size()), [&](int64_t i, int thread) {
      finish_shared(shared[static_cast<size_t>(i)], workspace(thread));
    });
  }

 private:
  /// Lists the tasks, long ones first where a batch holds decodes before prefills. The split
  /// follows the threads; the results do not, since every key block is a partial result of its own.
  void plan(int num_threads, Scratch& scratch) {
    scratch.tasks.clear();
    scratch.shared.clear();
    const int32_t* starts = batch_.cu_seqlens_q.as<int32_t>();
    const int32_t* contexts = batch_.context_lens.as<int32_t>();
    int64_t total_cost = 0;
    for (int64_t seq = batch_.num_seqs() - 1; seq >= 0; --seq) {
      const int64_t num_tokens = starts[seq + 1] - starts[seq];
      const int64_t context = contexts[seq];
      check(0 <= num_tokens && num_tokens <= context &&
                context <= batch_.block_tables.shape[1] * kv_.block_size,
            "sequence {} of the batch: {} new tokens, context {}, {} blocks of {}", seq, num_tokens,
            context, batch_.block_tables.shape[1], kv_.block_size);
      for (int64_t head = 0; head < kv_.num_kv_heads; ++head) {
        for (int64_t end = num_tokens; end > 0;) {
          const int64_t first = (end - 1) / tokens_per_tile_ * tokens_per_tile_;
          const Tile tile = {.seq = static_cast<int32_t>(seq),
                             .kv_head = static_cast<int32_t>(head),
                             .first_token = static_cast<int32_t>(starts[seq] + first),
                             .num_tokens = static_cast<int32_t>(end - first),
                             .first_position = static_cast<int32_t>(context - num_tokens + first)};
          scratch.tasks.push_back({tile, 0, tile.num_key_blocks(), -1});
          total_cost += cost(tile);
          end = first;
        }
      }
    }
    num_slots_ = 0;
    if (num_threads == 1) return;
    const int64_t aim = std::max<int64_t>(total_cost / (num_threads * kTasksPerThread), 1);
    const size_t num_tiles = scratch.tasks.size();
    for (size_t i = 0; i < num_tiles; ++i) {
      Task& task = scratch.tasks[i];
      const int32_t blocks = task.end_block;
      const auto parts = static_cast<int32_t>(std::min<int64_t>(cost(task.tile) / aim, blocks));
      if (parts < 3) continue;
      task.first_slot = num_slots_;
      num_slots_ += blocks;
      scratch.shared.push_back(task);
      const Task whole = task;
      task.end_block = blocks / parts;
      for (int32_t part = 1; part < parts; ++part)
        scratch.tasks.push_back(
            {whole.tile, blocks * part / parts, blocks * (part + 1) / parts, whole.first_slot});
    }
  }

  /// Loads of a key block cost as much as some rows of it.
  int64_t cost(const Tile& tile) const {
    return tile.num_key_blocks() * (tile.num_tokens * group_ + 8);
  }

  void compute(const Task& task, float* memory) const {
    const Tile& tile = task.tile;
    const Partial next = partial_at(memory);
    const Partial total = partial_at(memory + partial_floats());
    float* const panel = memory + 2 * partial_floats();
    float* const scores = panel + kMaxPanelKeys * head_dim_;
    char* const queries = reinterpret_cast<char*>(scores + kKeyBlock * max_rows_);
    const int64_t query_row_bytes = head_dim_ * model_.query_bytes;
    for (int64_t row = 0; row < tile.num_tokens * group_; ++row)
      model_.load_queries(queries + row * query_row_bytes, row_of(args_.qkv, tile, row),
                          static_cast<int>(head_dim_));

    const bool shared = task.first_slot >= 0;
    if (!shared) clear(tile, total);
    for (int32_t block = task.first_block; block < task.end_block; ++block) {
      const Partial& partial = shared ? slot(task, block) : next;
      compute_block(tile, block, queries + first_row(tile, block) * query_row_bytes, panel, scores,
                    partial);
      if (!shared) join(tile, block, total, partial);
    }
    if (!shared) store(tile, total);
  }

  void finish_shared(const Task& task, float* memory) const {
    const Partial total = partial_at(memory);
    clear(task.tile, total);
    for (int32_t block = task.first_block; block < task.end_block; ++block)
      join(task.tile, block, total, slot(task, block));
    store(task.tile, total);
  }

  /// The partial result of the rows that see any key of the block.
  void compute_block(const Tile& tile, int32_t block, const void* queries, float* panel,
                     float* scores, const Partial& partial) const {
    const int64_t first_key = int64_t{block} * kKeyBlock;
    const int64_t skipped = first_row(tile, block);
    const int64_t last_key = tile.first_position + tile.num_tokens - 1;
    KeyBlockArgs block_args = {
        .queries = queries,
        .keys = {},
        .values = {},
        .first_visible = static_cast<int>(tile.first_position + skipped / group_ + 1 - first_key),
        .group = static_cast<int>(group_),
        .rows = static_cast<int>(tile.num_tokens * group_ - skipped),
        .head_dim = static_cast<int>(head_dim_),
        .scale = args_.scale * std::numbers::log2e_v<float>,
        .panel = panel,
        .scores = scores,
    };
    const int32_t* blocks =
        batch_.block_tables.as<int32_t>() +
        batch_.seq_slots.as<int32_t>()[tile.seq] * batch_.block_tables.row_stride;
    const auto group_of = [&](int64_t key, int64_t value_not_key) {
      const int64_t offset =
          kv_offset(kv_, args_.layer, blocks[key / kv_.block_size], value_not_key, tile.kv_head) +
          key % kv_.block_size * head_dim_;
      return static_cast<const char*>(kv_.data) +
             offset * static_cast<int64_t>(dtype_size(kv_.dtype));
    };
    for (int64_t i = 0; i < kKeyBlock / kKeyGroup; ++i) {
      const int64_t key = first_key + i * kKeyGroup;
      if (key > last_key) break;
      block_args.keys[i] = group_of(key, 0);
      block_args.values[i] = group_of(key, 1);
    }
    cache_.key_block(block_args, partial);
  }

  void join(const Tile& tile, int32_t block, const Partial& total, const Partial& next) const {
    const int64_t skipped = first_row(tile, block);
    const Partial seen = {total.max + skipped, total.sum + skipped,
                          total.out + skipped * head_dim_};
    model_.join(seen, next, static_cast<int>(tile.num_tokens * group_ - skipped),
                static_cast<int>(head_dim_));
  }

  void clear(const Tile& tile, const Partial& total) const {
    const int64_t rows = tile.num_tokens * group_;
    std::fill_n(total.max, rows, -std::numeric_limits<float>::infinity());
    std::fill_n(total.sum, rows, 0.0f);
    std::fill_n(total.out, rows * head_dim_, 0.0f);
  }

  void store(const Tile& tile, const Partial& total) const {
    for (int64_t row = 0; row < tile.num_tokens * group_; ++row)
      model_.store_row(row_of(args_.out, tile, row), total.out + row * head_dim_, total.sum[row],
                       static_cast<int>(head_dim_));
  }

  /// The first row of the tile that sees any key of the block.
  int64_t first_row(const Tile& tile, int32_t block) const {
    return std::max(block * kKeyBlock - tile.first_position, 0) * group_;
  }

  /// Head by head, [head_dim] of the tile's token in a tensor [T, heads * head_dim].
  char* row_of(const Tensor& x, const Tile& tile, int64_t row) const {
    const int64_t token = tile.first_token + row / group_;
    const int64_t head = tile.kv_head * group_ + row % group_;
    return x.as<char>() +
           (token * x.row_stride + head * head_dim_) * static_cast<int64_t>(dtype_size(x.dtype));
  }

  Partial partial_at(float* memory) const {
    return {memory, memory + max_rows_, memory + 2 * max_rows_};
  }
  Partial slot(const Task& task, int32_t block) const {
    return partial_at(slots_ + (task.first_slot + block) * partial_floats());
  }
  int64_t partial_floats() const { return max_rows_ * (head_dim_ + 2); }
  int64_t workspace_floats() const {
    return 2 * partial_floats() + head_dim_ * kMaxPanelKeys + max_rows_ * (kKeyBlock + head_dim_);
  }

  const AttentionArgs& args_;
  const KvCache& kv_;
  const Batch& batch_;
  const int64_t head_dim_;
  const int64_t group_;  // query heads of a KV head
  const int64_t tokens_per_tile_;
  const int64_t max_rows_;  // of a tile; a multiple of a cache line's floats
  const AttentionKernels& model_;
  const AttentionKernels& cache_;
  int64_t num_slots_ = 0;
  float* slots_ = nullptr;
};

}  // namespace

void attention(const AttentionArgs& args, const KvCache& kv, const Batch& batch, Isa isa) {
  check(kv.block_size % kKeyGroup == 0, "block size {} is no multiple of {}", kv.block_size,
        kKeyGroup);
  check(kv.head_dim % 8 == 0, "head_dim {} is no multiple of 8", kv.head_dim);
  check(args.num_heads % kv.num_kv_heads == 0, "{} query heads for {} KV heads", args.num_heads,
        kv.num_kv_heads);
  Attention(args, kv, batch, isa).run(thread_owned<Scratch>());
}

}  // namespace nanovllm::cpu
