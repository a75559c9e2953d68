#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace nanovllm::testing {

/// What can be made to fail.
enum class Fault {
  kThread,
  kSpawn,
  kMemfd,
  kMmap,
  kOpen,
  kDescriptor,
  kRead,
  kWrite,
  kMemory,
  kCount
};
constexpr std::array kFaultNames = {"thread",     "spawn", "memfd", "mmap",  "open",
                                    "descriptor", "read",  "write", "memory"};

constexpr size_t kMaxPaths = 16384;
/// Callers that tell one path of calls to an allocation from another.
constexpr size_t kPathLength = 6;

/// What a run under the shim leaves, in a file that both sides map: also where it was killed.
struct Report {
  std::array<std::atomic<uint64_t>, kFaultNames.size()> calls;
  std::atomic<uint64_t> num_faults, num_paths;
  std::array<std::atomic<uint64_t>, kMaxPaths> hashes;  // of the shim alone
  std::array<uint64_t, kMaxPaths> paths;                ///< numbers of allocations, in no order
};

}  // namespace nanovllm::testing
