#include "nanovllm/runtime/step_io.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "nanovllm/base/check.h"

namespace nanovllm {

namespace {

static_assert(sizeof(StepInput::Header) % alignof(OutputInput) == 0);
static_assert(sizeof(OutputInput) % alignof(SlotSetup) == 0);
static_assert(sizeof(SlotSetup) % alignof(StepRow) == 0);

template <class T>
void take(std::span<const std::byte>& rest, size_t count, std::span<const T>& array) {
  static_assert(std::is_trivially_copyable_v<T>);
  check(count <= rest.size() / sizeof(T), "step input: {} entries of {} bytes in {} bytes", count,
        sizeof(T), rest.size());
  array = {reinterpret_cast<const T*>(rest.data()), count};
  rest = rest.subspan(array.size_bytes());
}

}  // namespace

StepInput::StepInput(std::span<const std::byte> buffer) : buffer_(buffer) {
  check(buffer.size() >= sizeof(Header) && header().bytes == buffer.size(),
        "step input: {} bytes do not agree with their header", buffer.size());
  std::span<const std::byte> rest = buffer.subspan(sizeof(Header));
  const uint32_t* count = header().counts.data();
  for_each(*this, [&](auto& array) { take(rest, *count++, array); });
  check(rest.empty(), "step input: {} bytes too many", rest.size());
}

bool StepInput::has_late() const {
  return std::ranges::any_of(outputs, [](const OutputInput& o) { return o.num_late_words > 0; });
}

StepInput StepArrays::write(uint64_t step, std::vector<std::byte>& buffer,
                            size_t num_mask_words) const {
  StepInput::Header h = {.bytes = sizeof h + num_mask_words * sizeof(int32_t), .step = step};
  uint32_t* count = h.counts.data();
  for_each(*this, [&](const auto& array) {
    *count++ = static_cast<uint32_t>(array.size());
    h.bytes += std::as_bytes(std::span(array)).size();
  });
  h.counts.back() += static_cast<uint32_t>(num_mask_words);
  if (buffer.size() < h.bytes) buffer.resize(h.bytes);
  std::memcpy(buffer.data(), &h, sizeof h);
  std::byte* at = buffer.data() + sizeof h;
  for_each(*this, [&](const auto& array) {
    at = std::ranges::copy(std::as_bytes(std::span(array)), at).out;
  });
  return StepInput(std::span(buffer).first(h.bytes));
}

}  // namespace nanovllm
