#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nanovllm/ops/communicator.h"
#include "nanovllm/runtime/step_io.h"

namespace nanovllm {

/// A checksum of the sources that this program was built from.
extern const uint64_t kBuildChecksum;

constexpr int kMaxRanks = 64;

/// Sends steps and their late parts from rank 0 to the other ranks: a ring buffer of slots in
/// memory that all of them map. Each message takes one or more slots. Each rank copies a message
/// out before it uses it, so that a step may be larger than the ring, and its slots soon become
/// free. Rank 0 waits only for a rank that is a whole ring behind.
class StepChannel {
 public:
  static size_t bytes();
  /// Uses `memory`, which all ranks share and which is filled with zeros at first.
  StepChannel(void* memory, Communicator& ranks);

  // -- rank 0, one thread
  /// Writes this build's checksum to the memory.
  void open();
  /// Throws what the Communicator throws if it was aborted.
  void send(const StepInput& step) {
    ++shared_.num_steps_sent.value;
    send(Kind::kStep, step.bytes());
  }
  void send(const LateInput& late) { send(Kind::kLate, late.bytes()); }
  /// Ends the ranks' receive().
  void stop();

  // -- the other ranks, one thread each
  /// Whether rank 0 is the same build; if not, nothing else may be called.
  bool is_same_build() const;
  enum class Received { kStep, kLate, kNothing, kStop };
  /// Waits for the next step or late part; at most `milliseconds`, unless that is negative.
  Received receive(int milliseconds);
  /// The step, or the late part, that was received, until the next receive().
  StepInput step() const { return StepInput(message_); }
  LateInput late() const { return LateInput(message_); }
  /// Reports that the oldest received step that was not reported yet is done.
  void done();

  // -- any thread
  /// Whether a rank has not finished all steps that were sent.
  bool is_busy() const;

 private:
  static constexpr size_t kSlotBytes = size_t{64} << 10;
  static constexpr uint32_t kNumSlots = 32;
  enum class Kind : uint32_t { kStep, kLate };
  struct alignas(64) Counter {
    std::atomic<uint32_t> value;
  };
  struct Shared {
    uint64_t checksum;
    std::atomic<uint32_t> stopped;
    Counter num_slots_sent, num_steps_sent;
    std::array<Counter, kMaxRanks> num_slots_read, num_steps_done;
    std::array<Kind, kNumSlots> kinds;  // of the message that begins in a slot
    alignas(64) std::array<std::array<std::byte, kSlotBytes>, kNumSlots> slots;
  };
  void send(Kind kind, std::span<const std::byte> bytes);
  /// Returns false if no slot was sent in time, or after stop().
  bool wait_for_slot(int milliseconds);

  Shared& shared_;
  Communicator& ranks_;
  std::vector<std::byte> message_;
};

}  // namespace nanovllm
