#include "nanovllm/runtime/step_io.h"

#include <cstring>
#include <type_traits>

#include "nanovllm/base/check.h"

namespace nanovllm {

namespace {

// The arrays follow each other from the largest alignment to the smallest, so that none needs
// padding.
static_assert(sizeof(StepInput::Header) % alignof(SampleInput) == 0);
static_assert(sizeof(SampleInput) % alignof(SlotSetup) == 0);
static_assert(sizeof(SlotSetup) % alignof(RowInput) == 0);

template <class T>
std::span<const T> take(std::span<const std::byte>& rest, size_t count) {
  static_assert(std::is_trivially_copyable_v<T>);
  check(count <= rest.size() / sizeof(T), "step input: {} entries of {} bytes in {} bytes", count,
        sizeof(T), rest.size());
  const std::span<const T> array(reinterpret_cast<const T*>(rest.data()), count);
  rest = rest.subspan(count * sizeof(T));
  return array;
}

template <class T>
std::byte* put(std::byte* at, const std::vector<T>& array) {
  const size_t bytes = array.size() * sizeof(T);
  if (bytes != 0) std::memcpy(at, array.data(), bytes);
  return at + bytes;
}

}  // namespace

StepInput::StepInput(std::span<const std::byte> buffer) : buffer_(buffer) {
  check(buffer.size() >= sizeof(Header) && header().bytes == buffer.size(),
        "step input: {} bytes do not agree with their header", buffer.size());
  const Header& h = header();
  std::span<const std::byte> rest = buffer.subspan(sizeof(Header));
  samples_ = take<SampleInput>(rest, h.num_samples);
  setups_ = take<SlotSetup>(rest, h.num_setups);
  rows_ = take<RowInput>(rest, h.num_rows);
  block_updates_ = take<BlockUpdate>(rest, h.num_block_updates);
  copies_ = take<BlockCopy>(rest, h.num_copies);
  token_ids_ = take<int32_t>(rest, h.num_tokens);
  setup_ids_ = take<int32_t>(rest, h.num_setup_ids);
  biases_ = take<TokenBias>(rest, h.num_biases);
  check(rest.empty(), "step input: {} bytes too many", rest.size());
}

void StepArrays::clear() {
  samples.clear();
  setups.clear();
  rows.clear();
  block_updates.clear();
  copies.clear();
  token_ids.clear();
  setup_ids.clear();
  biases.clear();
}

StepInput StepArrays::write(uint64_t step, std::vector<std::byte>& buffer) const {
  StepInput::Header h;
  h.step = step;
  h.num_samples = static_cast<uint32_t>(samples.size());
  h.num_setups = static_cast<uint32_t>(setups.size());
  h.num_rows = static_cast<uint32_t>(rows.size());
  h.num_block_updates = static_cast<uint32_t>(block_updates.size());
  h.num_copies = static_cast<uint32_t>(copies.size());
  h.num_tokens = static_cast<uint32_t>(token_ids.size());
  h.num_setup_ids = static_cast<uint32_t>(setup_ids.size());
  h.num_biases = static_cast<uint32_t>(biases.size());
  h.bytes = sizeof h + samples.size() * sizeof(SampleInput) + setups.size() * sizeof(SlotSetup) +
            rows.size() * sizeof(RowInput) + block_updates.size() * sizeof(BlockUpdate) +
            copies.size() * sizeof(BlockCopy) +
            (token_ids.size() + setup_ids.size()) * sizeof(int32_t) +
            biases.size() * sizeof(TokenBias);
  buffer.resize(h.bytes);
  std::memcpy(buffer.data(), &h, sizeof h);
  std::byte* at = buffer.data() + sizeof h;
  at = put(at, samples);
  at = put(at, setups);
  at = put(at, rows);
  at = put(at, block_updates);
  at = put(at, copies);
  at = put(at, token_ids);
  at = put(at, setup_ids);
  put(at, biases);
  return StepInput(buffer);
}

void StepOutput::clear() {
  samples.clear();
  logprobs.clear();
  prompt.clear();
  prompt_logprobs.clear();
}

}  // namespace nanovllm
