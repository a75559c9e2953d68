#include "nanovllm/base/system/machine.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace nanovllm {

namespace {

constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();

// The next word as a number; "max", and anything else that is not a number, means no limit.
size_t read_number(std::istream& file) {
  std::string text;
  size_t value = kUnlimited;
  if (file >> text) std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

size_t read_number(const std::string& path) {
  std::ifstream file(path);
  return read_number(file);
}

// The folders of this process's cgroup and of all cgroups above it.
std::vector<std::string> cgroup_folders() {
  std::ifstream file("/proc/self/cgroup");
  std::string line, group;
  while (std::getline(file, line))
    if (line.starts_with("0::/")) group = line.substr(3);
  if (group == "/") group.clear();
  std::vector<std::string> folders;
  for (;; group.resize(group.rfind('/'))) {
    folders.push_back("/sys/fs/cgroup" + group);
    if (group.empty()) return folders;
  }
}

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

// The pages of files, such as a model that was read earlier, which the kernel drops before it
// refuses memory.
size_t page_cache(const std::string& folder) {
  std::ifstream file(folder + "/memory.stat");
  std::string key;
  size_t bytes = 0, sum = 0;
  while (file >> key >> bytes)
    if (key == "inactive_file" || key == "active_file") sum += bytes;
  return sum;
}

// How much more memory this process may map (ulimit -v, -d).
size_t left_by_limits() {
  std::ifstream file("/proc/self/statm");  // in pages: size, resident, shared, text, lib, data
  std::array<size_t, 6> pages{};
  for (size_t& n : pages) n = read_number(file);
  size_t left = kUnlimited;
  for (const auto& [limit, used] : {std::pair(RLIMIT_AS, pages[0]), {RLIMIT_DATA, pages[5]}}) {
    rlimit bound{};
    if (::getrlimit(limit, &bound) != 0 || bound.rlim_cur == RLIM_INFINITY || used == kUnlimited)
      continue;
    const size_t taken = used * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    left = std::min(left, bound.rlim_cur - std::min<size_t>(bound.rlim_cur, taken));
  }
  return left;
}

}  // namespace

size_t host_memory() {
  size_t total = machine_memory("MemTotal:");
  for (const std::string& folder : cgroup_folders())
    total = std::min(total, read_number(folder + "/memory.max"));
  return total;
}

size_t cgroup_memory_left(const std::string& folder) {
  const size_t limit = read_number(folder + "/memory.max");
  const size_t current = read_number(folder + "/memory.current");
  if (limit == kUnlimited || current == kUnlimited) return kUnlimited;
  const size_t used = current - std::min(current, page_cache(folder));
  return limit - std::min(limit, used);
}

size_t available_host_memory() {
  size_t left = std::min(machine_memory("MemAvailable:"), left_by_limits());
  for (const std::string& folder : cgroup_folders())
    left = std::min(left, cgroup_memory_left(folder));
  return left;
}

int num_usable_cpus() {
  cpu_set_t set;
  size_t cpus = std::max(1U, std::thread::hardware_concurrency());
  if (::sched_getaffinity(0, sizeof set, &set) == 0) cpus = static_cast<size_t>(CPU_COUNT(&set));
  for (const std::string& folder : cgroup_folders()) {
    std::ifstream file(
        folder + "/cpu.max");  // two numbers: CPU time and length of a period, in microseconds
    const size_t quota = read_number(file), period = read_number(file);
    if (quota != kUnlimited && period != kUnlimited && period > 0)
      cpus = std::min(cpus, std::max<size_t>(1, (quota + period - 1) / period));
  }
  return static_cast<int>(cpus);
}

cpu_set_t cpus_of_socket(const cpu_set_t& allowed, int index, const std::string& folder) {
  std::map<size_t, cpu_set_t> sockets;
  for (size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    const size_t socket =
        read_number(folder + "/cpu" + std::to_string(cpu) + "/topology/physical_package_id");
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
