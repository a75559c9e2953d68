#include "nanovllm/ops/cuda/backend/parts/attention_plan.h"

#include <algorithm>
#include <limits>

#include "nanovllm/base/ceil_div.h"

namespace nanovllm::cuda {

void AttentionPlan::plan(const Step& step, const KvCache& kv) {
  reserve(step, kv);
  has_decode_ = has_prefill_ = false;
  prefill_lengths_.clear();
  int64_t num_keys = 0, longest = 0;
  int num_padding = 0;
  int32_t fewest_tiles = std::numeric_limits<int32_t>::max(),
          most_tiles = 0;  // of decoding sequences
  for (const StepRow& row : step.rows) {
    const bool is_padding = row.slot < 0, decodes = row.num_tokens == 1;
    const int32_t context = is_padding ? 0 : row.start + row.num_tokens;
    prefill_lengths_.push_back({row.num_tokens, context});
    (decodes ? has_decode_ : has_prefill_) = true;
    num_keys += context;
    longest = std::max<int64_t>(longest, context);
    if (is_padding) ++num_padding;
    if (!decodes || is_padding) continue;
    const int32_t tiles = num_decode_tiles(context);
    fewest_tiles = std::min(fewest_tiles, tiles);
    most_tiles = std::max(most_tiles, tiles);
  }
  has_equal_tiles_ = most_tiles - 1 <= fewest_tiles;
  prefill_groups_.clear();
  if (has_prefill_ && kv.dtype == DType::kE4M3) group_prefills(step, kv);
  if (most_kv_heads_ == 0) agree(kv);
  decode_cluster_ = 0;
  KvLayout layout(kv);
  if (device_.collectives != nullptr) layout.num_kv_heads = most_kv_heads_;
  if (!has_prefill_ && !device_.portable())
    decode_cluster_ = decode_cluster_size(device_.where, layout, static_cast<int>(step.num_seqs()),
                                          num_padding, num_keys, longest);
}

void AttentionPlan::reserve(const Step& step, const KvCache& kv) {
  const auto max_seqs = static_cast<size_t>(step.last_tokens.shape[0]);
  const auto head_dim = static_cast<int>(kv.head_dim);
  const int num_sms = device_.where.num_sms;
  decode_.num_blocks = num_sms * (head_dim <= 128 ? 2 : 1);
  const auto num_blocks = static_cast<size_t>(decode_.num_blocks);
  device_.grow(plan_memory_, (num_blocks + 1) * sizeof(DecodeStart) + sizeof(DecodeSplits) +
                                 (max_seqs + 1) * sizeof(int32_t));
  decode_.starts = plan_memory_.as<DecodeStart>();
  decode_.splits = reinterpret_cast<DecodeSplits*>(decode_.starts + num_blocks + 1);
  decode_.first_tile = reinterpret_cast<int32_t*>(decode_.splits + 1);
  device_.grow(partial_, static_cast<size_t>(decode_partial_size(decode_.num_blocks, head_dim)) *
                             sizeof(float));
  device_.grow(counters_, max_seqs * static_cast<size_t>(kv.num_kv_heads) * sizeof(int32_t));
  if (device_.portable()) return;
  device_.grow(prefill_counters_,
               static_cast<size_t>(num_prefill_counters(num_sms)) * sizeof(int32_t));
  device_.grow(prefill_partial_,
               static_cast<size_t>(prefill_partial_size(num_sms, head_dim)) * sizeof(float));
}

void AttentionPlan::agree(const KvCache& kv) {
  most_kv_heads_ = static_cast<int>(kv.num_kv_heads);
  Launch& where = device_.where;
  if (!device_.portable()) where.most_in_cluster = most_in_decode_cluster(where.num_sms);
  if (device_.collectives == nullptr) return;
  Communicator& ranks = device_.collectives->ranks();
  most_kv_heads_ = static_cast<int>(-ranks.smallest(-most_kv_heads_));
  where.most_in_cluster = static_cast<int>(ranks.smallest(where.most_in_cluster));
}

void AttentionPlan::group_prefills(const Step& step, const KvCache& kv) {
  // The copies of a group are read soon after they are written, so small groups find them in the L2
  // cache; but each group costs two launches.
  constexpr int64_t kGroupBytes = 64 << 20;
  const int64_t block_bytes = dequantized_block_bytes(kv);
  int64_t largest = 0;  // bytes of a group
  for (int s = 0; s < static_cast<int>(step.rows.size()); ++s) {
    const auto [num_tokens, context] = prefill_lengths_[static_cast<size_t>(s)];
    if (num_tokens <= 1) continue;
    const auto blocks = static_cast<int>(ceil_div(context, kv.block_size));
    bool fits = false;
    if (!prefill_groups_.empty()) {
      PrefillGroup& group = prefill_groups_.back();
      const int most = std::max(group.blocks_per_seq, blocks), count = s + 1 - group.first;
      fits = int64_t{count} * most * block_bytes <= kGroupBytes;
      if (fits) {
        // Sequences between this one and the group's last one decode: they have one token each.
        const int between = count - 1 - group.num_seqs;
        group = {group.first, count, group.num_tokens + between + num_tokens, most};
      }
    }
    if (!fits) prefill_groups_.push_back({s, 1, num_tokens, blocks});
    const PrefillGroup& group = prefill_groups_.back();
    largest = std::max(largest, int64_t{group.num_seqs} * group.blocks_per_seq * block_bytes);
  }
  device_.grow(dequantized_, static_cast<size_t>(std::max(largest, kGroupBytes)));
  device_.grow(dequantized_tables_, kv.block_tables.bytes());
}

bool AttentionPlan::supports(const AttentionArgs& args, const KvCache& kv) const {
  // The portable kernel must fit in the 99 KB of shared memory that every GPU has.
  const int64_t most =
      device_.portable() && kv.head_dim == 256 ? 8 : kMaxGroup;  // query heads of a KV head
  return KvLayout(kv).tiled && args.qkv.dtype != DType::kF32 &&
         args.num_heads <= most * kv.num_kv_heads;
}

void AttentionPlan::run(const AttentionParams& params, DType dtype, const KvCache& kv,
                        bool prefetch_keys) {
  const Launch& where = device_.where;
  if (has_decode_)
    decode_attention(where, params, decode_, {partial_.as<float>(), counters_.as<int32_t>()}, dtype,
                     {.portable = device_.portable(), .prefetch_keys = prefetch_keys});
  if (!has_prefill_) return;
  const auto prefill = [&](const AttentionParams& of, std::span<const PrefillLengths> lengths) {
    if (device_.portable()) prefill_attention(where, of, dtype);
    else
      prefill_attention_sm90(where, of, lengths,
                             {prefill_partial_.as<float>(), prefill_counters_.as<int32_t>()},
                             dtype);
  };
  const std::span lengths(prefill_lengths_);
  if (kv.dtype != DType::kE4M3) return prefill(params, lengths);
  for (const PrefillGroup& group : prefill_groups_) {
    const AttentionParams part = params.sequences(group.first, group.num_seqs, group.num_tokens);
    prefill(dequantize(where, part, dtype, group.blocks_per_seq,
                       {dequantized_.memory.get(), dequantized_tables_.as<int32_t>()}),
            lengths.subspan(static_cast<size_t>(group.first), static_cast<size_t>(group.num_seqs)));
  }
}

}  // namespace nanovllm::cuda
