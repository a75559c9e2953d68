#include "nanovllm/base/system/machine.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>

#include <filesystem>
#include <fstream>
#include <limits>

namespace nanovllm {
namespace {

TEST(Machine, AvailableMemoryIsSomethingAndNoMoreThanTheMachines) {
  struct sysinfo machine {};
  ASSERT_EQ(::sysinfo(&machine), 0);
  EXPECT_GT(available_host_memory(), size_t{1} << 20);
  EXPECT_LE(available_host_memory(), machine.totalram * machine.mem_unit);
}

// A container whose limit is a little above the model: at the second start its files are cached.
TEST(Machine, PageCacheOfACgroupIsFreeMemory) {
  const std::filesystem::path folder = ::testing::TempDir() + "machine_test_cgroup";
  std::filesystem::create_directories(folder);
  const auto write = [&](const char* name, const char* text) {
    std::ofstream(folder / name) << text;
  };
  EXPECT_EQ(cgroup_memory_left(folder), SIZE_MAX);  // the root has neither file
  write("memory.max", "1000000\n");
  write("memory.current", "900000\n");
  EXPECT_EQ(cgroup_memory_left(folder), 100000u);
  write("memory.stat",
        "anon 200000\nfile 690000\nshmem 90000\ninactive_anon 5\nactive_file 100000\n"
        "inactive_file 500000\nslab_reclaimable 77\n");
  EXPECT_EQ(cgroup_memory_left(folder), 700000u);
  write("memory.current", "500000\n");  // the files are read one after the other
  EXPECT_EQ(cgroup_memory_left(folder), 1000000u);
  write("memory.current", "1900000\n");
  EXPECT_EQ(cgroup_memory_left(folder), 0u);
  write("memory.max", "max\n");
  EXPECT_EQ(cgroup_memory_left(folder), SIZE_MAX);
  std::filesystem::remove_all(folder);
}

TEST(Machine, OwnLimitsBoundTheMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own memory does not fit the limits";
#endif
  for (const auto limit : {RLIMIT_AS, RLIMIT_DATA}) {
    rlimit before{};
    ASSERT_EQ(::getrlimit(limit, &before), 0);
    rlimit lowered = before;
    lowered.rlim_cur = size_t{64} << 20;  // less than is mapped, or not much more
    ASSERT_EQ(::setrlimit(limit, &lowered), 0);
    const size_t left = available_host_memory();
    ASSERT_EQ(::setrlimit(limit, &before), 0);
    EXPECT_LE(left, size_t{64} << 20);
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

// As two sockets with two cores of two threads each are numbered: cores first, then their twins.
TEST(Machine, CpusOfASocketAreTogetherHoweverTheyAreNumbered) {
  const std::filesystem::path folder = ::testing::TempDir() + "machine_test_cpus";
  const int socket_of[8] = {0, 0, 1, 1, 0, 0, 1, 1};
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  for (int cpu = 0; cpu < 8; ++cpu) {
    const auto topology = folder / ("cpu" + std::to_string(cpu)) / "topology";
    std::filesystem::create_directories(topology);
    std::ofstream(topology / "physical_package_id") << socket_of[cpu] << "\n";
    if (cpu != 5) CPU_SET(cpu, &allowed);
  }
  const auto cpus = [&](int index) { return listed(cpus_of_socket(allowed, index, folder)); };
  EXPECT_EQ(cpus(0), (std::vector<int>{0, 1, 4}));
  EXPECT_EQ(cpus(1), (std::vector<int>{2, 3, 6, 7}));
  EXPECT_EQ(cpus(2), cpus(0));
  std::filesystem::remove_all(folder);
  EXPECT_EQ(cpus(1), listed(allowed));  // nothing is known: one socket
}

TEST(Machine, AllMemoryIsMoreThanWhatIsLeft) {
  EXPECT_GE(host_memory(), available_host_memory());
  EXPECT_LT(host_memory(), std::numeric_limits<size_t>::max());
}

TEST(Machine, SocketBindingEndsWithItsScope) {
  cpu_set_t before, after;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  { const SocketBinding binding(0); }
  ASSERT_EQ(::sched_getaffinity(0, sizeof after, &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

}  // namespace
}  // namespace nanovllm
