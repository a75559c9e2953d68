#include <algorithm>
#include <cstring>
#include <limits>

#include "nanovllm/ops/cuda/backend/cuda_backend.h"
#include "nanovllm/ops/cuda/backend/step.h"

// How CudaBackend begins a step, and captures and launches graphs.
namespace nanovllm::cuda {

namespace {

/// The initial size of a step's input: large enough that it rarely grows, because graphs contain
/// its address.
constexpr size_t kInputBytes = size_t{4} << 20;

template <class T>
void append(std::vector<int32_t>& words, std::span<const T> list) {
  static_assert(sizeof(T) % sizeof(int32_t) == 0);
  const size_t at = words.size();
  words.resize(at + list.size_bytes() / sizeof(int32_t));
  if (!list.empty()) std::memcpy(words.data() + at, list.data(), list.size_bytes());
}

/// Puts arrays into one buffer, each at a multiple of 16 bytes. With a null `host` it only computes
/// the offsets, which are the same on the host and on the device.
class Packer {
 public:
  explicit Packer(char* host) : host_(host) {}
  template <class T>
  size_t add(std::span<const T> array) {
    const size_t at = bytes_;
    if (host_ != nullptr && !array.empty())
      std::memcpy(host_ + at, array.data(), array.size_bytes());
    bytes_ = (at + array.size_bytes() + 15) / 16 * 16;
    return at;
  }
  size_t bytes() const { return bytes_; }

 private:
  char* host_;
  size_t bytes_ = 0;
};

}  // namespace

void CudaBackend::forget_graphs() {
  for (auto& [key, graph] : graphs_) cudaGraphExecDestroy(graph);
  graphs_.clear();
}

RowParams CudaBackend::row_params(const SampleRow& row, int32_t slot) {
  RowParams params{row};
  params.slot = slot;
  params.last_token = row.last_token;
  if (!row.has_lists() && (!row.has_filters() || row.temperature < 1e-5f)) return params;
  params.is_plain = 0;
  words_.resize((words_.size() + 1) / 2 * 2);  // aligned, because the kernel reads pairs of words
  params.first_word = static_cast<int32_t>(words_.size());
  params.num_counts = static_cast<int32_t>(row.counts.size());
  params.num_biases = static_cast<int32_t>(row.biases.size());
  params.num_masked_after = static_cast<int32_t>(row.masked_after.size());
  params.num_masked = static_cast<int32_t>(row.masked_ids.size());
  params.num_allowed = static_cast<int32_t>(row.allowed_ids.size());
  params.num_mask_words = static_cast<int32_t>(row.allowed_mask.size());
  append(words_, row.counts);
  append(words_, row.biases);
  append(words_, row.masked_after);
  append(words_, row.masked_ids);
  append(words_, row.allowed_ids);
  append(words_, row.allowed_mask);
  return params;
}

Batch CudaBackend::begin_step(HostBatch& host, const SlotTables& slots, const KvCache& kv) {
  const ContextScope here(context_);
  if (!is_loading_) weight_upload_.reset();  // all weights have been loaded
  const size_t num_seqs = host.context_lens.size(), num_rows = host.samples.size();
  words_.clear();
  special_.clear();
  row_params_.clear();
  wanted_.clear();
  wanted_rows_.clear();
  for (size_t i = 0; i < num_rows; ++i) {
    const SampleRow& sample = host.samples[i];
    row_params_.push_back(row_params(sample, host.sample_slots[i]));
    if (row_params_.back().is_plain == 0) special_.push_back(static_cast<int32_t>(i));
    if (sample.num_logprobs == 0) continue;
    const int32_t first = wanted_.empty() ? 0 : wanted_.back().first + wanted_.back().count;
    wanted_rows_.push_back(static_cast<int32_t>(i));
    wanted_.push_back({.row = wanted_rows_.back(), .count = sample.num_logprobs, .first = first});
  }
  processed_logprobs_ = host.processed_logprobs;
  if (!words_.empty()) send_words();
  struct {
    size_t input_ids, positions, slot_mapping, cu_seqlens_q, context_lens, seq_slots, sample_rows,
        sample_slots, rows, updates, special, wanted, wanted_rows;
  } at;
  const auto pack_all = [&](char* memory) {
    Packer pack(memory);
    const auto ints = [&](const std::vector<int32_t>& v) { return pack.add(std::span(v)); };
    // Those whose number varies come last: a graph contains the offsets of all others.
    at = {ints(host.input_ids),
          ints(host.positions),
          ints(host.slot_mapping),
          ints(host.cu_seqlens_q),
          ints(host.context_lens),
          ints(host.seq_slots),
          ints(host.sample_rows),
          ints(host.sample_slots),
          pack.add(std::span<const RowParams>(row_params_)),
          pack.add(std::span<const BlockUpdate>(host.block_updates)),
          ints(special_),
          pack.add(std::span<const LogprobRow>(wanted_)),
          ints(wanted_rows_)};
    return pack.bytes();
  };
  const size_t bytes = pack_all(nullptr);
  const size_t turn = num_begun_++ % kNumSlots;
  wait(input_sent_[turn]);
  grow(input_, std::max(bytes, kInputBytes));
  grow(pinned_input_[turn], std::max(bytes, kInputBytes));
  pack_all(pinned_input_[turn].as<char>());

  const auto max_seqs = static_cast<size_t>(slots.last_tokens.shape[0]);
  const auto num_kv_heads = static_cast<size_t>(kv.num_kv_heads);
  const auto head_dim = static_cast<int>(kv.head_dim);
  plan_.num_blocks = where_.num_sms * (head_dim <= 128 ? 2 : 1);
  const auto num_blocks = static_cast<size_t>(plan_.num_blocks);
  grow(plan_memory_, (num_blocks + 1) * sizeof(DecodeStart) + sizeof(DecodeSplits) +
                         (max_seqs + 1) * sizeof(int32_t));
  if (!portable_) {
    grow(prefill_counters_,
         static_cast<size_t>(num_prefill_counters(where_.num_sms)) * sizeof(int32_t));
    grow(prefill_partial_,
         static_cast<size_t>(prefill_partial_size(where_.num_sms, head_dim)) * sizeof(float));
  }
  grow(partial_, static_cast<size_t>(decode_partial_size(plan_.num_blocks, head_dim)) * 4);
  grow(counters_, max_seqs * num_kv_heads * sizeof(int32_t));
  grow(progress_, max_seqs * sizeof(RowProgress));
  grow(drawn_at_, sizeof(DrawnRow*));
  if (collectives_)
    grow(found_, (1 + static_cast<size_t>(collectives_->ranks().rank().world)) * (max_seqs + 1) *
                     sizeof(FoundRow));
  for (Results& results : results_) grow(results.drawn, max_seqs * sizeof(DrawnRow));
  plan_.starts = plan_memory_.as<DecodeStart>();
  plan_.splits = reinterpret_cast<DecodeSplits*>(plan_.starts + num_blocks + 1);
  plan_.first_tile = reinterpret_cast<int32_t*>(plan_.splits + 1);
  decode_scratch_ = {partial_.as<float>(), counters_.as<int32_t>()};
  last_tokens_ = slots.last_tokens.as<int32_t>();

  char* const device = input_.as<char>();
  const auto ints = [&](size_t offset, const std::vector<int32_t>& v) {
    return Tensor(device + offset, DType::kI32, static_cast<int64_t>(v.size()));
  };
  Batch batch = {.input_ids = ints(at.input_ids, host.input_ids),
                 .positions = ints(at.positions, host.positions),
                 .slot_mapping = ints(at.slot_mapping, host.slot_mapping),
                 .cu_seqlens_q = ints(at.cu_seqlens_q, host.cu_seqlens_q),
                 .context_lens = ints(at.context_lens, host.context_lens),
                 .seq_slots = ints(at.seq_slots, host.seq_slots),
                 .block_tables = slots.block_tables,
                 .last_tokens = slots.last_tokens,
                 .sample_rows = ints(at.sample_rows, host.sample_rows),
                 .sample_slots = ints(at.sample_slots, host.sample_slots),
                 .samples = host.samples,
                 .processed_logprobs = host.processed_logprobs};
  rows_ = reinterpret_cast<const RowParams*>(device + at.rows);
  input_ids_ = batch.input_ids.as<const int32_t>();
  sample_rows_ = batch.sample_rows.as<const int32_t>();
  context_lens_ = batch.context_lens;
  special_rows_ = {reinterpret_cast<const int32_t*>(device + at.special),
                   reinterpret_cast<const LogprobRow*>(device + at.wanted),
                   reinterpret_cast<const int32_t*>(device + at.wanted_rows)};
  draws_in_gemm_ = wanted_.empty() && special_.empty() && !portable_ && kernels_.gemm < 0 &&
                   num_rows >= kFewestDrawn && num_rows <= kMostDrawn;
  has_decode_ = has_prefill_ = false;
  prefill_lengths_.clear();
  int64_t num_keys = 0, longest = 0;
  int num_padding = 0;
  int32_t fewest_tiles = std::numeric_limits<int32_t>::max(),
          most_tiles = 0;  // of decoding sequences
  for (size_t s = 0; s < num_seqs; ++s) {
    const int32_t context = host.context_lens[s];
    prefill_lengths_.push_back({host.cu_seqlens_q[s + 1] - host.cu_seqlens_q[s], context});
    const bool decodes = prefill_lengths_.back().num_new == 1;
    (decodes ? has_decode_ : has_prefill_) = true;
    num_keys += context;
    longest = std::max<int64_t>(longest, context);
    if (context == 0) ++num_padding;
    if (!decodes || context == 0) continue;
    const int32_t tiles = num_decode_tiles(context);
    fewest_tiles = std::min(fewest_tiles, tiles);
    most_tiles = std::max(most_tiles, tiles);
  }
  prefill_groups_.clear();
  if (has_prefill_ && kv.dtype == DType::kE4M3) group_prefills(host, slots, kv);
  decode_cluster_ = 0;
  KvLayout layout(kv);
  if (most_kv_heads_ == 0) agree_on_decode(kv);
  if (collectives_) layout.num_kv_heads = most_kv_heads_;
  if (!has_prefill_ && !portable_)
    decode_cluster_ = decode_cluster_size(where_, layout, static_cast<int>(num_seqs), num_padding,
                                          num_keys, longest);
  cuda::begin_step(where_, {.input = pinned_input_[turn].memory.get(),
                            .to = device,
                            .input_bytes = static_cast<int>(bytes),
                            .drawn = results_[num_finished_ % kNumSlots].drawn.as<DrawnRow>(),
                            .drawn_at = drawn_at_.as<DrawnRow*>(),
                            .updates = reinterpret_cast<const BlockUpdate*>(device + at.updates),
                            .block_tables = slots.block_tables.as<int32_t>(),
                            .last_tokens = last_tokens_,
                            .input_ids = batch.input_ids.as<int32_t>(),
                            .cu_seqlens_q = batch.cu_seqlens_q.as<const int32_t>(),
                            .context_lens = batch.context_lens.as<const int32_t>(),
                            .seq_slots = batch.seq_slots.as<const int32_t>(),
                            .plan = plan_,
                            .num_updates = static_cast<int>(host.block_updates.size()),
                            .max_blocks = static_cast<int>(slots.block_tables.shape[1]),
                            .block_size = static_cast<int>(kv.block_size),
                            .num_seqs = static_cast<int>(num_seqs),
                            .num_kv_heads = static_cast<int>(num_kv_heads),
                            .is_even = most_tiles - 1 <= fewest_tiles});
  cuda_check(cudaEventRecord(input_sent_[turn], where_.stream), "step");
  return batch;
}

void CudaBackend::agree_on_decode(const KvCache& kv) {
  most_kv_heads_ = static_cast<int>(kv.num_kv_heads);
  if (!portable_) where_.most_in_cluster = most_in_decode_cluster(where_.num_sms);
  if (!collectives_) return;
  Communicator& ranks = collectives_->ranks();
  most_kv_heads_ = static_cast<int>(-ranks.smallest(-most_kv_heads_));
  where_.most_in_cluster = static_cast<int>(ranks.smallest(where_.most_in_cluster));
}

void CudaBackend::group_prefills(const HostBatch& host, const SlotTables& slots,
                                 const KvCache& kv) {
  // The copies of a group are read soon after they are written, so small groups find them in the L2
  // cache; but each group costs two launches.
  constexpr int64_t kGroupBytes = 64 << 20;
  const int64_t block_bytes = dequantized_block_bytes(kv);
  int64_t largest = 0;  // bytes of a group
  const auto num_seqs = static_cast<int>(host.context_lens.size());
  for (int s = 0; s < num_seqs; ++s) {
    const auto i = static_cast<size_t>(s);
    const int num_tokens = host.cu_seqlens_q[i + 1] - host.cu_seqlens_q[i];
    if (num_tokens <= 1) continue;
    const auto blocks =
        static_cast<int>((host.context_lens[i] + kv.block_size - 1) / kv.block_size);
    bool fits = false;
    if (!prefill_groups_.empty()) {
      PrefillGroup& group = prefill_groups_.back();
      const int most = std::max(group.blocks_per_seq, blocks), count = s + 1 - group.first;
      fits = int64_t{count} * most * block_bytes <= kGroupBytes;
      if (fits)
        group = {group.first, count,
                 host.cu_seqlens_q[i + 1] - host.cu_seqlens_q[static_cast<size_t>(group.first)],
                 most};
    }
    if (!fits) prefill_groups_.push_back({s, 1, num_tokens, blocks});
    const PrefillGroup& group = prefill_groups_.back();
    largest = std::max(largest, int64_t{group.num_seqs} * group.blocks_per_seq * block_bytes);
  }
  grow(dequantized_, static_cast<size_t>(std::max(largest, kGroupBytes)));
  grow(dequantized_tables_, slots.block_tables.bytes());
}

void CudaBackend::replay(int64_t size, const std::function<void()>& enqueue) {
  const ContextScope here(context_);
  const std::tuple key(size, decode_cluster_, draws_in_gemm_);
  const auto at = graphs_.find(key);
  if (at != graphs_.end()) {
    if (!preparing_) cuda_check(cudaGraphLaunch(at->second, where_.stream), "graph");
    return;
  }
  // prepare() has captured the usual graphs. Any other one is captured while the GPU is already
  // busy with the step.
  if (!preparing_) enqueue();
  graphs_[key] = capture(enqueue);
}

cudaGraphExec_t CudaBackend::capture(const std::function<void()>& enqueue) {
  cuda_check(cudaStreamBeginCapture(where_.stream, cudaStreamCaptureModeThreadLocal), "graph");
  capturing_ = true;
  cudaGraph_t graph = nullptr;
  try {
    enqueue();
  } catch (...) {
    capturing_ = false;
    cudaStreamEndCapture(where_.stream, &graph);
    cudaGraphDestroy(graph);
    throw;
  }
  capturing_ = false;
  cuda_check(cudaStreamEndCapture(where_.stream, &graph), "graph");
  cudaGraphExec_t ready = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&ready, graph, 0);
  cudaGraphDestroy(graph);
  cuda_check(error, "graph");
  return ready;
}

}  // namespace nanovllm::cuda
