#include "nanovllm/ops/cuda/backend/parts/step_upload.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "nanovllm/ops/cuda/backend/parts/step.h"

namespace nanovllm::cuda {

namespace {

/// The initial size of a step's buffers: large enough that they rarely grow, because graphs contain
/// their addresses.
constexpr size_t kBytes = size_t{4} << 20;

/// Places arrays in one buffer, each at a multiple of 16 bytes. The offsets are the same on the
/// host and on the device. Without memory it only computes the size.
class Packer {
 public:
  Packer(char* host, char* device) : host_(host), device_(device) {}

  /// Copies an array to its place, and returns the place on the device.
  template <class T>
  std::span<T> add(std::span<const T> array) {
    if (host_ != nullptr && !array.empty())
      std::memcpy(host_ + bytes_, array.data(), array.size_bytes());
    return place<T>(array.size());
  }
  template <class T>
  std::span<T> place(size_t count) {
    T* const first = device_ == nullptr ? nullptr : reinterpret_cast<T*>(device_ + bytes_);
    const std::span<T> here(first, first == nullptr ? 0 : count);
    bytes_ = (bytes_ + count * sizeof(T) + 15) / 16 * 16;
    return here;
  }
  size_t bytes() const { return bytes_; }

 private:
  char *host_, *device_;
  size_t bytes_ = 0;
};

Tensor view(std::span<int32_t> ints) { return {ints.data(), DType::kI32, std::ssize(ints)}; }

/// Gives the tensors that are derived their places.
size_t place_derived(Step& step, char* device) {
  const size_t num_tokens = step.token_ids.size(), num_seqs = step.rows.size();
  Packer pack(nullptr, device);
  step.positions = view(pack.place<int32_t>(num_tokens));
  step.slot_mapping = view(pack.place<int32_t>(num_tokens));
  step.cu_seqlens_q = view(pack.place<int32_t>(num_seqs + 1));
  step.context_lens = view(pack.place<int32_t>(num_seqs));
  step.seq_slots = view(pack.place<int32_t>(num_seqs));
  step.output_rows = view(pack.place<int32_t>(step.outputs.size()));
  return pack.bytes();
}

/// The step's input on the device.
struct Sent {
  std::span<int32_t> token_ids;
  std::span<StepRow> rows;
  std::span<OutputPlace> outputs;
  std::span<RowParams> row_params;
  std::span<BlockUpdate> updates;
  std::span<int32_t> special;
  std::span<LogprobRow> wanted;
  std::span<int32_t> wanted_rows;
};
size_t pack_input(const Step& step, const StepSampler::Arrays& arrays, Packer pack, Sent& sent) {
  // Arrays whose length varies between steps of one size come last: a graph contains the addresses
  // of all others.
  sent = {.token_ids = pack.add(std::span<const int32_t>(step.token_ids)),
          .rows = pack.add(std::span<const StepRow>(step.rows)),
          .outputs = pack.add(std::span<const OutputPlace>(step.outputs)),
          .row_params = pack.add(arrays.rows),
          .updates = pack.add(std::span<const BlockUpdate>(step.block_updates)),
          .special = pack.add(arrays.special),
          .wanted = pack.add(arrays.wanted),
          .wanted_rows = pack.add(arrays.wanted_rows)};
  return pack.bytes();
}

}  // namespace

void StepUpload::publish(Step& step, const KvCache& kv, StepSampler& sampler,
                         const AttentionPlan& plan) {
  const StepSampler::Arrays arrays = sampler.arrays();
  Sent sent;
  const size_t bytes = pack_input(step, arrays, {nullptr, nullptr}, sent);
  const size_t turn = num_begun_++ % kNumSteps;
  device_.wait(sent_[turn]);
  device_.grow(input_, std::max(bytes, kBytes));
  device_.grow(pinned_[turn], std::max(bytes, kBytes));
  device_.grow(derived_, std::max(place_derived(step, nullptr), kBytes));

  pack_input(step, arrays, {pinned_[turn].as<char>(), input_.as<char>()}, sent);
  place_derived(step, derived_.as<char>());
  step.input_ids = view(sent.token_ids);
  sampler.set_arrays({sent.row_params, sent.special, sent.wanted, sent.wanted_rows});

  begin_step(device_.where, {.input = pinned_[turn].memory.get(),
                             .to = input_.memory.get(),
                             .input_bytes = static_cast<int>(bytes),
                             .drawn = sampler.drawn(),
                             .drawn_at = sampler.drawn_at(),
                             .rows = sent.rows.data(),
                             .outputs = sent.outputs.data(),
                             .updates = sent.updates.data(),
                             .input_ids = sent.token_ids.data(),
                             .block_tables = kv.block_tables.as<int32_t>(),
                             .last_tokens = step.last_tokens.as<const int32_t>(),
                             .positions = step.positions.as<int32_t>(),
                             .slot_mapping = step.slot_mapping.as<int32_t>(),
                             .cu_seqlens_q = step.cu_seqlens_q.as<int32_t>(),
                             .context_lens = step.context_lens.as<int32_t>(),
                             .seq_slots = step.seq_slots.as<int32_t>(),
                             .output_rows = step.output_rows.as<int32_t>(),
                             .plan = plan.decode(),
                             .num_tokens = static_cast<int>(step.num_tokens()),
                             .num_seqs = static_cast<int>(step.num_seqs()),
                             .num_outputs = static_cast<int>(step.outputs.size()),
                             .num_updates = static_cast<int>(step.block_updates.size()),
                             .max_blocks = static_cast<int>(kv.block_tables.shape[1]),
                             .block_size = static_cast<int>(kv.block_size),
                             .num_kv_heads = static_cast<int>(kv.num_kv_heads),
                             .is_even = plan.has_equal_tiles()});
  sent_[turn].record(device_.where.stream);
}

}  // namespace nanovllm::cuda
