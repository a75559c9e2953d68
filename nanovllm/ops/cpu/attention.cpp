#include "nanovllm/ops/cpu/attention.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numbers>
#include <vector>

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/thread_owned.h"
#include "nanovllm/ops/cpu/kernels/attention.h"
#include "nanovllm/ops/cpu/machine/memory.h"
#include "nanovllm/ops/cpu/machine/parallel.h"

namespace nanovllm::cpu {
namespace {

/// The query rows that are computed against one load of K and V: enough to hide the loads, few
/// enough for scores and sums to stay in the L2 cache.
constexpr int64_t kTileRows = 96;
/// Long tiles are split so that each thread gets about this many tasks.
constexpr int64_t kTasksPerThread = 4;

/// Key blocks [first_block, end_block) for a tile, which is query tokens [first_token, first_token
/// + num_tokens) of the batch, all of one sequence, and one KV head.
struct Task {
  int32_t seq, kv_head;
  int32_t first_token, num_tokens;
  int32_t first_position;  // position of the first token in its sequence
  int32_t first_block, end_block;
  int64_t first_partial;  // number of block 0's partial result if several threads share the tile,
                          // else -1
};

/// Memory of the calling thread that is kept from call to call.
struct Workspace {
  std::vector<Task> tasks;
  std::vector<size_t> runs;  // where each run of tasks begins, and the end
  std::vector<Task> shared;  // a task with all blocks for each tile that several threads share
  Scratch floats;
};

/// The best kernels, of `isa` or a lower instruction set, whose vectors divide head_dim.
const AttentionKernels& choose_kernels(Isa isa, DType dtype, const KvCache& kv) {
  for (;; isa = static_cast<Isa>(static_cast<int>(isa) - 1)) {
    const Kernels all = kernels_for(isa, dtype);
    const AttentionKernels& kernels = kv.dtype == DType::kE4M3 ? all.e4m3_attention : all.attention;
    if (kv.head_dim % kernels.head_dim_multiple == 0) return kernels;
  }
}

class Attention {
 public:
  Attention(const AttentionArgs& args, const KvCache& kv, const Step& step, Isa isa, Isa prompt_isa)
      : args_(args),
        kv_(kv),
        step_(step),
        head_dim_(kv.head_dim),
        group_(args.num_heads / kv.num_kv_heads),
        tokens_per_tile_(std::max<int64_t>(kTileRows / group_, 1)),
        max_rows_((tokens_per_tile_ * group_ + kRowTile - 1) / kRowTile * kRowTile),
        kernels_(choose_kernels(isa, args.qkv.dtype, kv)),
        prompt_kernels_(choose_kernels(prompt_isa, args.qkv.dtype, kv)) {}

  void run(Workspace& workspace) {
    const int64_t num_partials = plan(num_threads(), workspace);
    const int64_t num_floats = num_threads() * thread_floats() + num_partials * partial_floats();
    auto* const memory = static_cast<float*>(
        workspace.floats.reserve(static_cast<size_t>(num_floats) * sizeof(float)));
    partials_ = memory + num_threads() * thread_floats();

    const auto& tasks = workspace.tasks;
    const auto& runs = workspace.runs;
    parallel_for(std::ssize(runs) - 1, [&](int64_t run, int thread) {
      const size_t end = runs[static_cast<size_t>(run) + 1];
      for (size_t i = runs[static_cast<size_t>(run)]; i < end; ++i)
        compute(tasks[i], i + 1 < end ? &tasks[i + 1] : nullptr, memory + thread * thread_floats());
    });
    const auto& shared = workspace.shared;
    parallel_for(static_cast<int64_t>(shared.size()), [&](int64_t i, int thread) {
      const Task& task = shared[static_cast<size_t>(i)];
      finish(task, partial_at(memory + thread * thread_floats()),
             [&](int32_t block) { return partial(task, block); });
    });
  }

 private:
  /// Lists the tasks, from the last sequence to the first, because prefills come after decodes
  /// and long tasks should start first. Returns the number of partial results. How tiles are split
  /// depends on the number of threads, but the results do not, since each key block has its own
  /// partial result.
  int64_t plan(int num_threads, Workspace& workspace) const {
    auto& [tasks, runs, shared, floats] = workspace;
    tasks.clear();
    runs.clear();
    shared.clear();
    const int32_t* starts = step_.cu_seqlens_q.as<int32_t>();
    const int32_t* contexts = step_.context_lens.as<int32_t>();
    int64_t total_cost = 0;
    for (int64_t seq = step_.num_seqs() - 1; seq >= 0; --seq) {
      const int64_t num_tokens = starts[seq + 1] - starts[seq];
      const int64_t context = contexts[seq];
      check(0 <= num_tokens && num_tokens <= context &&
                context <= kv_.block_tables.shape[1] * kv_.block_size,
            "sequence {} of the batch: {} new tokens, context {}, {} blocks of {}", seq, num_tokens,
            context, kv_.block_tables.shape[1], kv_.block_size);
      for (int64_t head = 0; head < kv_.num_kv_heads; ++head) {
        for (int64_t end = num_tokens, first = 0; end > 0; end = first) {
          first = (end - 1) / tokens_per_tile_ * tokens_per_tile_;
          const int64_t num_keys = context - num_tokens + end;
          tasks.push_back(
              {.seq = static_cast<int32_t>(seq),
               .kv_head = static_cast<int32_t>(head),
               .first_token = static_cast<int32_t>(starts[seq] + first),
               .num_tokens = static_cast<int32_t>(end - first),
               .first_position = static_cast<int32_t>(context - num_tokens + first),
               .first_block = 0,
               .end_block = static_cast<int32_t>((num_keys + kKeyBlock - 1) / kKeyBlock),
               .first_partial = -1});
          total_cost += cost(tasks.back());
        }
      }
    }
    int64_t num_partials = 0;
    const int64_t aim = std::max<int64_t>(total_cost / (num_threads * kTasksPerThread), 1);
    const size_t num_tiles = num_threads == 1 ? 0 : tasks.size();
    for (size_t i = 0; i < num_tiles; ++i) {
      Task part = tasks[i];
      const int32_t blocks = part.end_block;
      const auto parts = static_cast<int32_t>(std::min<int64_t>(cost(part) / aim, blocks));
      if (parts < 3) continue;
      part.first_partial = num_partials;
      num_partials += blocks;
      shared.push_back(part);
      for (int32_t p = 0; p < parts; ++p) {
        part.first_block = blocks * p / parts;
        part.end_block = blocks * (p + 1) / parts;
        if (p == 0) tasks[i] = part;
        else tasks.push_back(part);
      }
    }
    int64_t run_cost = aim;
    for (size_t i = 0; i < tasks.size(); ++i) {
      if (run_cost >= aim) {
        runs.push_back(i);
        run_cost = 0;
      }
      run_cost += cost(tasks[i]);
    }
    runs.push_back(tasks.size());
    return num_partials;
  }

  /// Loading a key block costs as much as computing some rows of it.
  int64_t cost(const Task& tile) const {
    return (tile.end_block - tile.first_block) * (num_rows(tile) + 8);
  }

  /// `next` is the task that the thread computes next, or null.
  void compute(const Task& task, const Task* next, float* memory) const {
    const Partial total = partial_at(memory);
    const Partial own = partial_at(memory + partial_floats());
    float* const scores = memory + 2 * partial_floats();
    char* const queries = reinterpret_cast<char*>(scores + kKeyBlock * max_rows_);
    float* const panel = scores + (kKeyBlock + head_dim_) * max_rows_;
    const AttentionKernels& kernels = kernels_of(task);
    for (int64_t row = 0; row < num_rows(task); ++row)
      kernels.load_queries(queries + row * head_dim_ * kernels.query_bytes,
                           row_of(args_.qkv, task, row), static_cast<int>(head_dim_));
    if (task.first_partial < 0) {
      finish(task, total, [&](int32_t block) {
        compute_block(task, block, next, queries, panel, scores, own);
        return own;
      });
    } else {
      for (int32_t block = task.first_block; block < task.end_block; ++block)
        compute_block(task, block, next, queries, panel, scores, partial(task, block));
    }
  }

  /// Merges the task's partial results, partial_of(block), and stores the tile's output.
  template <class PartialOf>
  void finish(const Task& task, const Partial& total, PartialOf partial_of) const {
    const int64_t rows = num_rows(task);
    const auto head_dim = static_cast<int>(head_dim_);
    std::fill_n(total.max, rows, -std::numeric_limits<float>::infinity());
    std::fill_n(total.sum, rows, 0.0f);
    std::fill_n(total.out, rows * head_dim_, 0.0f);
    for (int32_t block = task.first_block; block < task.end_block; ++block) {
      const int64_t skipped = first_row(task, block);
      kernels_of(task).merge(
          {total.max + skipped, total.sum + skipped, total.out + skipped * head_dim_},
          partial_of(block), static_cast<int>(rows - skipped), head_dim);
    }
    for (int64_t row = 0; row < rows; ++row)
      kernels_of(task).store_row(row_of(args_.out, task, row), total.out + row * head_dim_,
                                 total.sum[row], head_dim);
  }

  /// Computes the partial result of the rows that see any key of the block. `next` is the task that
  /// follows the task's last block, or null.
  void compute_block(const Task& task, int32_t block, const Task* next, const char* queries,
                     float* panel, float* scores, const Partial& partial) const {
    const int64_t first_key = int64_t{block} * kKeyBlock;
    const int64_t skipped = first_row(task, block);
    KeyBlockArgs block_args = {
        .queries = queries + skipped * head_dim_ * kernels_of(task).query_bytes,
        .keys = {},
        .values = {},
        .next_keys = {},
        .num_next = 0,
        .first_visible = static_cast<int>(task.first_position + skipped / group_ + 1 - first_key),
        .group = static_cast<int>(group_),
        .rows = static_cast<int>(num_rows(task) - skipped),
        .head_dim = static_cast<int>(head_dim_),
        .scale = args_.scale * std::numbers::log2e_v<float>,
        .panel = panel,
        .scores = scores,
    };
    list_groups(task, block, 0, block_args.keys);
    list_groups(task, block, 1, block_args.values);
    if (block + 1 < task.end_block)
      block_args.num_next = list_groups(task, block + 1, 0, block_args.next_keys);
    else if (next != nullptr)
      block_args.num_next = list_groups(*next, next->first_block, 0, block_args.next_keys);
    kernels_of(task).key_block(block_args, partial);
  }

  /// The groups of keys or values of a block, and how many there are.
  int list_groups(const Task& task, int32_t block, int64_t value_not_key,
                  const void** groups) const {
    const int64_t first_key = int64_t{block} * kKeyBlock;
    const int64_t num_keys =
        std::min<int64_t>(task.first_position + task.num_tokens - first_key, kKeyBlock);
    const int32_t* blocks = kv_.block_tables.as<int32_t>() +
                            step_.seq_slots.as<int32_t>()[task.seq] * kv_.block_tables.row_stride;
    int count = 0;
    for (int64_t key = first_key; key < first_key + num_keys; key += kKeyGroup)
      groups[count++] = kv_key(
          kv_,
          kv_entry(kv_, args_.layer, blocks[key / kv_.block_size], value_not_key, task.kv_head),
          key % kv_.block_size);
    return count;
  }

  const AttentionKernels& kernels_of(const Task& task) const {
    const int32_t* starts = step_.cu_seqlens_q.as<int32_t>() + task.seq;
    return starts[1] - starts[0] > 1 ? prompt_kernels_ : kernels_;
  }
  int64_t num_rows(const Task& task) const { return task.num_tokens * group_; }
  /// The first row of the tile that sees any key of the block.
  int64_t first_row(const Task& task, int32_t block) const {
    return std::max(block * kKeyBlock - task.first_position, 0) * group_;
  }

  /// The head [head_dim] of a row of the tile in a tensor [T, heads * head_dim].
  char* row_of(const Tensor& x, const Task& task, int64_t row) const {
    const int64_t token = task.first_token + row / group_;
    const int64_t head = task.kv_head * group_ + row % group_;
    return x.as<char>() +
           (token * x.row_stride + head * head_dim_) * static_cast<int64_t>(dtype_size(x.dtype));
  }

  Partial partial_at(float* memory) const {
    return {memory, memory + max_rows_, memory + 2 * max_rows_};
  }
  Partial partial(const Task& task, int32_t block) const {
    return partial_at(partials_ + (task.first_partial + block) * partial_floats());
  }
  int64_t partial_floats() const { return max_rows_ * (head_dim_ + 2); }
  int64_t thread_floats() const {
    return 2 * partial_floats() + head_dim_ * kMostInPanel + max_rows_ * (kKeyBlock + head_dim_);
  }

  const AttentionArgs& args_;
  const KvCache& kv_;
  const Step& step_;
  const int64_t head_dim_;
  const int64_t group_;  // query heads of a KV head
  const int64_t tokens_per_tile_;
  const int64_t max_rows_;  // rows of a tile; a multiple of a cache line's floats and of kRowTile
  const AttentionKernels &kernels_, &prompt_kernels_;
  float* partials_ = nullptr;
};

}  // namespace

void attention(const AttentionArgs& args, const KvCache& kv, const Step& step, Isa isa,
               Isa prompt_isa) {
  check(kv.block_size % kKeyGroup == 0, "block size {} is no multiple of {}", kv.block_size,
        kKeyGroup);
  check(kv.head_dim % 8 == 0, "head_dim {} is no multiple of 8", kv.head_dim);
  check(args.qkv.dtype == kv.dtype || kv.dtype == DType::kE4M3,
        "attention of {} over a cache of {}", dtype_name(args.qkv.dtype), dtype_name(kv.dtype));
  check(args.num_heads % kv.num_kv_heads == 0, "{} query heads for {} KV heads", args.num_heads,
        kv.num_kv_heads);
  Attention(args, kv, step, isa, prompt_isa).run(thread_owned<Workspace>());
}

}  // namespace nanovllm::cpu
