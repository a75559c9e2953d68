#include "nanovllm/base/system/machine.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>
#include <vector>

namespace nanovllm {
namespace {

size_t meminfo(const std::string& name) {
  std::ifstream file("/proc/meminfo");
  for (std::string key; file >> key;)
    if (size_t kib = 0; key == name && file >> kib) return kib * 1024;
  return 0;
}
size_t mem_available() { return meminfo("MemAvailable:"); }
size_t mem_total() { return meminfo("MemTotal:"); }

// Other processes allocate and free memory meanwhile, so the kernel is asked before and after.
TEST(Machine, AvailableMemoryIsTheKernelsFigureWithoutOtherLimits) {
  constexpr size_t kSlack = size_t{64} << 20;
  const size_t before = mem_available(), left = available_host_memory(), after = mem_available();
  ASSERT_GT(before, kSlack);
  EXPECT_LE(left, std::max(before, after) + kSlack);
  rlimit address_space{}, data{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &address_space), 0);
  ASSERT_EQ(::getrlimit(RLIMIT_DATA, &data), 0);
  if (address_space.rlim_cur != RLIM_INFINITY || data.rlim_cur != RLIM_INFINITY ||
      host_memory() < mem_total())
    GTEST_SKIP() << "a limit or a cgroup bounds this process";
  EXPECT_GE(left, std::min(before, after) - kSlack);
}

TEST(Machine, ProcessLimitsBoundTheMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own memory does not fit the limits";
#endif
  constexpr size_t kLeft = size_t{64} << 20;
  for (const auto& [limit, column] : {std::pair(RLIMIT_AS, 0), {RLIMIT_DATA, 5}}) {
    std::ifstream file("/proc/self/statm");
    size_t pages = 0;
    for (int i = 0; i <= column; ++i) file >> pages;
    rlimit before{};
    ASSERT_EQ(::getrlimit(limit, &before), 0);
    rlimit lowered = before;
    const auto left_with = [&](size_t bytes) {
      lowered.rlim_cur = bytes;
      EXPECT_EQ(::setrlimit(limit, &lowered), 0);
      const size_t left = available_host_memory();
      EXPECT_EQ(::setrlimit(limit, &before), 0);
      return left;
    };
    const size_t taken = pages * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    const size_t left = left_with(taken + kLeft);
    EXPECT_LE(left, kLeft + (kLeft >> 4));
    EXPECT_GE(left, kLeft - (kLeft >> 4));
    EXPECT_EQ(left_with(taken / 2), 0u);  // more is mapped than the limit allows
  }
}

TEST(Machine, UsableCpusAreAtMostThoseThatTheProcessMayRunOn) {
  cpu_set_t all;
  ASSERT_EQ(::sched_getaffinity(0, sizeof all, &all), 0);
  const int usable = num_usable_cpus();
  EXPECT_GE(usable, 1);
  EXPECT_LE(usable, CPU_COUNT(&all));

  cpu_set_t one;
  CPU_ZERO(&one);
  for (int cpu = 0; CPU_COUNT(&one) == 0; ++cpu)
    if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(num_usable_cpus(), 1);
  ASSERT_EQ(::sched_setaffinity(0, sizeof all, &all), 0);
  EXPECT_EQ(num_usable_cpus(), usable);
}

std::vector<int> listed(const cpu_set_t& set) {
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  return cpus;
}

/// A folder with a description of processors in the kernel's format.
class Topology {
 public:
  explicit Topology(const std::vector<int>& socket_of) {
    for (size_t cpu = 0; cpu < socket_of.size(); ++cpu) {
      const auto topology = folder_ / ("cpu" + std::to_string(cpu)) / "topology";
      std::filesystem::create_directories(topology);
      std::ofstream(topology / "physical_package_id") << socket_of[cpu] << "\n";
    }
  }
  ~Topology() { std::filesystem::remove_all(folder_); }
  std::string folder() const { return folder_; }

 private:
  std::filesystem::path folder_ =
      ::testing::TempDir() + "machine_test_cpus_" + std::to_string(::getpid());
};

// The numbering of two sockets with two cores of two threads each: first one thread of every core,
// then the other ones.
TEST(Machine, CpusOfASocketAreFoundForAnyNumbering) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  for (const int cpu : {0, 1, 2, 3, 4, 6, 7}) CPU_SET(cpu, &allowed);
  std::optional<Topology> topology(std::in_place, std::vector<int>{0, 0, 1, 1, 0, 0, 1, 1});
  const std::string folder = topology->folder();
  const auto cpus = [&](int index) { return listed(cpus_of_socket(allowed, index, folder)); };
  EXPECT_EQ(cpus(0), (std::vector<int>{0, 1, 4}));
  EXPECT_EQ(cpus(1), (std::vector<int>{2, 3, 6, 7}));
  EXPECT_EQ(cpus(2), cpus(0));
  topology.reset();
  EXPECT_EQ(cpus(1), listed(allowed));  // without a description there is one socket
}

TEST(Machine, HostMemoryIsMoreThanAvailableMemory) {
  EXPECT_GE(host_memory(), available_host_memory());
  EXPECT_LE(host_memory(), mem_total());
}

cpu_set_t own_cpus() {
  cpu_set_t set;
  EXPECT_EQ(::sched_getaffinity(0, sizeof set, &set), 0);
  return set;
}

TEST(Machine, SocketBindingHoldsAThreadUntilItsScopeEnds) {
  const std::vector<int> all = listed(own_cpus());
  if (all.size() < 2) GTEST_SKIP() << "needs two processors to bind to one of them";
  std::vector<int> socket_of(static_cast<size_t>(all.back()) + 1);
  std::vector<int> of_socket[2];
  for (size_t i = 0; i < all.size(); ++i) {
    socket_of[static_cast<size_t>(all[i])] = i % 2;
    of_socket[i % 2].push_back(all[i]);
  }
  const Topology topology(socket_of);
  for (const int index : {0, 1}) {
    {
      const SocketBinding binding(index, topology.folder());
      EXPECT_EQ(listed(own_cpus()), of_socket[index]);
      std::thread([&] { EXPECT_EQ(listed(own_cpus()), of_socket[index]); }).join();
    }
    EXPECT_EQ(listed(own_cpus()), all);
  }
}

}  // namespace
}  // namespace nanovllm
