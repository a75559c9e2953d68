#pragma once

#include <sched.h>

#include <cstddef>
#include <string>

/// What of this machine is ours: the least of what it has, what this process's own limits (ulimit)
/// leave and what each cgroup (version 2) from this process's up to the root allows.
namespace nanovllm {

/// Memory in bytes that this process could ever take.
size_t host_memory();

/// Memory in bytes that this process may still take.
size_t available_host_memory();

/// The same by one cgroup's limit alone; `folder` is the kernel's description of it. Its page cache
/// counts as free, since the kernel drops it before it refuses memory. SIZE_MAX without a limit.
size_t cgroup_memory_left(const std::string& folder);

/// Processors that this process may keep busy: those it may run on, at most its cgroups' quota of
/// time, rounded up.
int num_usable_cpus();

/// Those of `allowed` that are on one socket: number `index`, modulo the sockets that there are.
/// `folder` is the kernel's description of the processors.
cpu_set_t cpus_of_socket(const cpu_set_t& allowed, int index,
                         const std::string& folder = "/sys/devices/system/cpu");

/// While it lives, the calling thread keeps to a socket, and threads that it starts do for ever: so
/// that memory which they are the first to touch is that socket's too.
class SocketBinding {
 public:
  explicit SocketBinding(int index, const std::string& folder = "/sys/devices/system/cpu");
  ~SocketBinding();

 private:
  cpu_set_t before_;
};

}  // namespace nanovllm
