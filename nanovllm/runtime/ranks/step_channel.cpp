#include "nanovllm/runtime/ranks/step_channel.h"

#include <algorithm>
#include <climits>
#include <cstring>

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/futex.h"
#include "nanovllm/base/to_size.h"

namespace nanovllm {

StepChannel::StepChannel(void* memory, Communicator& ranks)
    : shared_(*static_cast<Shared*>(memory)), ranks_(ranks) {
  check(ranks.rank().world <= kMaxRanks, "{} ranks", ranks.rank().world);
  if (ranks.rank().index == 0) shared_.checksum = kBuildChecksum;
}

void StepChannel::send(const StepInput& input) {
  const std::span<const std::byte> bytes = input.bytes();
  ++shared_.num_inputs_sent.value;
  for (size_t at = 0; at < bytes.size(); at += kSlotBytes) {
    const uint32_t slot = shared_.num_slots_sent.value.load(std::memory_order_relaxed);
    for (int r = 1; r < ranks_.rank().world; ++r) {
      const std::atomic<uint32_t>& read = shared_.num_slots_read[to_size(r)].value;
      for (uint32_t seen = read; slot - seen >= kNumSlots; seen = read) {
        if (ranks_.aborted()) ranks_.throw_aborted();
        futex_wait(read, seen, /*milliseconds=*/1);
      }
    }
    std::memcpy(shared_.slots[slot % kNumSlots].data(), &bytes[at],
                std::min(kSlotBytes, bytes.size() - at));
    shared_.num_slots_sent.value = slot + 1;
    futex_wake_all(shared_.num_slots_sent.value);
  }
}

void StepChannel::stop() {
  shared_.stopped = 1;
  ++shared_.num_slots_sent.value;
  futex_wake_all(shared_.num_slots_sent.value);
}

bool StepChannel::wait_for_slot(int milliseconds) {
  const uint32_t read = shared_.num_slots_read[to_size(ranks_.rank().index)].value;
  const std::atomic<uint32_t>& sent = shared_.num_slots_sent.value;
  for (int polls = 0; sent == read && polls < ranks_.polls_before_sleep(); ++polls)
    __builtin_ia32_pause();
  while (sent == read) {
    futex_wait(sent, read, milliseconds < 0 ? INT_MAX : milliseconds);
    if (milliseconds >= 0) break;
  }
  return sent != read && shared_.stopped == 0;
}

StepChannel::Received StepChannel::receive(int milliseconds) {
  std::atomic<uint32_t>& read = shared_.num_slots_read[to_size(ranks_.rank().index)].value;
  uint64_t size = sizeof size;  // StepInput::Header::bytes comes first
  for (size_t at = 0; at < size; at += kSlotBytes) {
    if (!wait_for_slot(at == 0 ? milliseconds : -1))
      return shared_.stopped != 0 ? Received::kStop : Received::kNothing;
    const std::array<std::byte, kSlotBytes>& slot = shared_.slots[read % kNumSlots];
    if (at == 0) {
      std::memcpy(&size, slot.data(), sizeof size);
      message_.resize(size);
    }
    std::memcpy(&message_[at], slot.data(), std::min(kSlotBytes, size - at));
    ++read;
  }
  return Received::kInput;
}

void StepChannel::done() {
  ++shared_.num_inputs_done[to_size(ranks_.rank().index)].value;
  ++ranks_.progress();
}

bool StepChannel::is_busy() const {
  const uint32_t sent = shared_.num_inputs_sent.value;
  for (int r = 1; r < ranks_.rank().world; ++r)
    if (shared_.num_inputs_done[to_size(r)].value != sent) return true;
  return false;
}

}  // namespace nanovllm
