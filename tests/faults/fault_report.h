#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace nanovllm::testing {

/// The kinds of calls that can be made to fail.
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
/// Two allocations have the same path of calls if this number of their callers is the same.
constexpr size_t kPathLength = 6;

/// The results of a run with the shim, in a file that both sides map, so that they exist even if
/// the run was killed.
struct Report {
  std::array<std::atomic<uint64_t>, kFaultNames.size()> calls;
  std::atomic<uint64_t> num_faults, num_paths;
  std::array<std::atomic<uint64_t>, kMaxPaths> hashes;  // used only by the shim
  std::array<uint64_t, kMaxPaths> paths;                ///< numbers of allocations, in no order
};

}  // namespace nanovllm::testing
