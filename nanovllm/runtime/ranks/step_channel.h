#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
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
  static size_t bytes() { return (sizeof(Shared) + 4095) / 4096 * 4096; }
  /// Uses `memory`, which all ranks share; at first it is zero. Rank 0 writes its build's checksum.
  StepChannel(void* memory, Communicator& ranks);

  // -- rank 0, one thread
  /// Throws what the Communicator throws if it was aborted.
  void send(const StepInput& input);
  /// Ends the ranks' receive().
  void stop();

  // -- the other ranks, one thread each
  /// Whether rank 0 is the same build; if not, nothing else may be called.
  bool is_same_build() const { return shared_.checksum == kBuildChecksum; }
  enum class Received { kInput, kNothing, kStop };
  /// Waits for the next step or late part; at most `milliseconds`, unless that is negative.
  Received receive(int milliseconds);
  /// What was received, until the next receive().
  StepInput input() const { return StepInput(message_); }
  /// Reports that one more of the received steps or late parts is done.
  void done();

  // -- any thread
  /// Whether a rank has not done all that was sent.
  bool is_busy() const;

 private:
  static constexpr size_t kSlotBytes = size_t{64} << 10;
  static constexpr uint32_t kNumSlots = 32;
  struct alignas(64) Counter {
    std::atomic<uint32_t> value;
  };
  struct Shared {
    uint64_t checksum;
    std::atomic<uint32_t> stopped;
    Counter num_slots_sent, num_inputs_sent;
    std::array<Counter, kMaxRanks> num_slots_read, num_inputs_done;
    alignas(64) std::array<std::array<std::byte, kSlotBytes>, kNumSlots> slots;
  };
  /// Returns false if no slot was sent in time, or after stop().
  bool wait_for_slot(int milliseconds);

  Shared& shared_;
  Communicator& ranks_;
  std::vector<std::byte> message_;
};

}  // namespace nanovllm
