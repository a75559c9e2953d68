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

/// A run has so many allocations and reads that not each can fail in a run of its own. Those with
/// the same path of callers are alike.
constexpr bool is_by_path(Fault kind) { return kind == Fault::kMemory || kind == Fault::kRead; }
constexpr size_t kMaxPaths = 16384;
/// Two calls have the same path if this number of their callers is the same.
constexpr size_t kPathLength = 6;
/// The first call with a path, by its number among the calls of its kind.
struct CallPath {
  Fault kind;
  uint64_t number;
};

/// The results of a run with the shim, in a file that both sides map, so that they exist even if
/// the run was killed.
struct Report {
  std::array<std::atomic<uint64_t>, kFaultNames.size()> calls;
  std::atomic<uint64_t> num_faults, num_paths;
  std::array<std::atomic<uint64_t>, kMaxPaths> hashes;  // used only by the shim
  std::array<CallPath, kMaxPaths> paths;                ///< in no order
};

}  // namespace nanovllm::testing
