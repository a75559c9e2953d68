#pragma once

#include <cstddef>

/// What of this machine is ours: the least of what it has and what each cgroup (version 2) from
/// this process's up to the root allows.
namespace nanovllm {

/// Memory in bytes that this process may still take.
size_t available_host_memory();

/// Processors that this process may keep busy: those it may run on, at most its cgroups' quota of
/// time, rounded up.
int num_usable_cpus();

}  // namespace nanovllm
