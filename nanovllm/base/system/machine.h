#pragma once

#include <sched.h>

#include <cstddef>
#include <string>

/// How much of this machine the process may use: the smallest of what the machine has, what the
/// limits of the process (ulimit) allow, and what its cgroups allow (cgroup.h).
namespace nanovllm {

/// The most memory in bytes that this process could ever use.
size_t host_memory();

/// How much more memory in bytes this process can use now.
size_t available_host_memory();

/// How many processors this process can keep busy: the number of processors that it may run on, but
/// at most the CPU quota of its cgroups, rounded up.
int num_usable_cpus();

/// The processors of `allowed` that are on one socket, which is number `index` modulo the number of
/// sockets. `folder` contains the kernel's description of the processors.
cpu_set_t cpus_of_socket(const cpu_set_t& allowed, int index,
                         const std::string& folder = "/sys/devices/system/cpu");

/// While it exists, the calling thread runs only on one socket. Threads that it starts meanwhile
/// stay on that socket as long as they run. So memory that they touch first is allocated on the
/// same socket.
class SocketBinding {
 public:
  explicit SocketBinding(int index, const std::string& folder = "/sys/devices/system/cpu");
  ~SocketBinding();

 private:
  cpu_set_t before_;
};

}  // namespace nanovllm
