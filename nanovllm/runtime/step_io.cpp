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

/// Calls f(array, count) for each of the arrays and its count.
template <class Arrays, class Counts, class F>
void for_each_array(Arrays& arrays, Counts& counts, F f) {
  std::apply(
      [&](auto&... array) {
        std::apply([&](auto&... count) { (f(array, count), ...); }, Counts::all(counts));
      },
      Arrays::all(arrays));
}

}  // namespace

StepInput::StepInput(std::span<const std::byte> buffer) : buffer_(buffer) {
  check(buffer.size() >= sizeof(Header) && header().bytes == buffer.size(),
        "step input: {} bytes do not agree with their header", buffer.size());
  std::span<const std::byte> rest = buffer.subspan(sizeof(Header));
  for_each_array(arrays_, header().counts, [&]<class T>(std::span<const T>& array, size_t count) {
    static_assert(std::is_trivially_copyable_v<T>);
    check(count <= rest.size() / sizeof(T), "step input: {} entries of {} bytes in {} bytes", count,
          sizeof(T), rest.size());
    array = {reinterpret_cast<const T*>(rest.data()), count};
    rest = rest.subspan(array.size_bytes());
  });
  check(rest.empty(), "step input: {} bytes too many", rest.size());
}

void StepArrays::clear() {
  std::apply([](auto&... array) { (array.clear(), ...); }, all(*this));
}

StepInput StepArrays::write(uint64_t step, std::vector<std::byte>& buffer) const {
  StepInput::Header h;
  h.step = step;
  h.bytes = sizeof h;
  for_each_array(*this, h.counts, [&]<class T>(const std::vector<T>& array, uint32_t& count) {
    count = static_cast<uint32_t>(array.size());
    h.bytes += array.size() * sizeof(T);
  });
  buffer.resize(h.bytes);
  std::memcpy(buffer.data(), &h, sizeof h);
  std::byte* at = buffer.data() + sizeof h;
  for_each_array(*this, h.counts, [&]<class T>(const std::vector<T>& array, uint32_t count) {
    if (count != 0) std::memcpy(at, array.data(), count * sizeof(T));
    at += count * sizeof(T);
  });
  return StepInput(buffer);
}

void StepOutput::clear() {
  samples.clear();
  logprobs.clear();
  prompt.clear();
  prompt_logprobs.clear();
}

}  // namespace nanovllm
