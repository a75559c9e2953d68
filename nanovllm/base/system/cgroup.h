#pragma once

#include <cstddef>
#include <limits>
#include <string>

namespace nanovllm {

/// The limits of the control groups (cgroups) of this process: its own groups and each visible
/// group above them. Groups of version 1, of version 2 and both together (the hybrid layout) count.
/// SIZE_MAX means that there is no limit.
struct CgroupLimits {
  static constexpr size_t kNone = std::numeric_limits<size_t>::max();
  size_t memory = kNone;  ///< bytes that the processes of a group may use together
  /// How many of these bytes are left. The page cache counts as free, because the kernel drops it
  /// before it refuses memory.
  size_t memory_left = kNone;
  size_t num_cpus = kNone;  ///< the CPU quota, rounded up to whole processors
};

/// Reads the limits. `proc` has the files cgroup and mountinfo, in the formats of proc(5).
CgroupLimits cgroup_limits(const std::string& proc = "/proc/self");

/// The number at the beginning of a file of the kernel; SIZE_MAX if there is none, as in "max".
size_t number_in_file(const std::string& path);

}  // namespace nanovllm
