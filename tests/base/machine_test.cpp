#include "nanovllm/base/machine.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/sysinfo.h>

namespace nanovllm {
namespace {

TEST(Machine, AvailableMemoryIsSomethingAndNoMoreThanTheMachines) {
  struct sysinfo machine {};
  ASSERT_EQ(::sysinfo(&machine), 0);
  EXPECT_GT(available_host_memory(), size_t{1} << 20);
  EXPECT_LE(available_host_memory(), machine.totalram * machine.mem_unit);
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

}  // namespace
}  // namespace nanovllm
