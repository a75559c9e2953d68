#include "nanovllm/base/system/machine.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "nanovllm/base/system/cgroup.h"

namespace nanovllm {

namespace {

constexpr size_t kUnlimited = CgroupLimits::kNone;

// An entry of /proc/meminfo, in bytes.
size_t machine_memory(const char* name) {
  std::ifstream file("/proc/meminfo");
  std::string key;
  size_t kib = 0;
  while (file >> key >> kib) {
    if (key == name) return kib * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return kUnlimited;
}

size_t soft_limit(decltype(RLIMIT_AS) resource) {
  rlimit bound{};
  const bool is_bound = ::getrlimit(resource, &bound) == 0 && bound.rlim_cur != RLIM_INFINITY;
  return is_bound ? bound.rlim_cur : kUnlimited;
}

// How much more memory this process may map (ulimit -v, -d).
size_t left_by_limits() {
  std::ifstream file("/proc/self/statm");  // in pages: size, resident, shared, text, lib, data
  std::array<size_t, 6> pages{};
  for (size_t& n : pages)
    if (!(file >> n)) n = 0;
  size_t left = kUnlimited;
  for (const auto& [resource, used] : {std::pair(RLIMIT_AS, pages[0]), {RLIMIT_DATA, pages[5]}}) {
    const size_t limit = soft_limit(resource);
    const size_t taken = used * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    if (limit != kUnlimited) left = std::min(left, limit - std::min(limit, taken));
  }
  return left;
}

}  // namespace

size_t host_memory() {
  return std::min({machine_memory("MemTotal:"), soft_limit(RLIMIT_AS), soft_limit(RLIMIT_DATA),
                   cgroup_limits().memory});
}

size_t available_host_memory() {
  return std::min({machine_memory("MemAvailable:"), left_by_limits(), cgroup_limits().memory_left});
}

int num_usable_cpus() {
  cpu_set_t set;
  size_t cpus = std::max(1U, std::thread::hardware_concurrency());
  if (::sched_getaffinity(0, sizeof set, &set) == 0) cpus = static_cast<size_t>(CPU_COUNT(&set));
  return static_cast<int>(std::min(cpus, cgroup_limits().num_cpus));
}

cpu_set_t cpus_of_socket(const cpu_set_t& allowed, int index, const std::string& folder) {
  std::map<size_t, cpu_set_t> sockets;
  for (size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    const size_t socket =
        number_in_file(folder + "/cpu" + std::to_string(cpu) + "/topology/physical_package_id");
    CPU_SET(cpu, &sockets[socket]);
  }
  if (sockets.empty()) return allowed;
  return std::next(sockets.begin(), index % std::ssize(sockets))->second;
}

SocketBinding::SocketBinding(int index, const std::string& folder) {
  CPU_ZERO(&before_);
  if (::sched_getaffinity(0, sizeof before_, &before_) != 0) return;
  const cpu_set_t socket = cpus_of_socket(before_, index, folder);
  ::sched_setaffinity(0, sizeof socket, &socket);
}

SocketBinding::~SocketBinding() { ::sched_setaffinity(0, sizeof before_, &before_); }

}  // namespace nanovllm
