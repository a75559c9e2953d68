#include "nanovllm/base/system/cgroup.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace nanovllm {
namespace {

constexpr size_t kNone = CgroupLimits::kNone;
constexpr size_t kMiB = size_t{1} << 20;

/// A tree of groups in a folder, and the files that /proc/self would have for a process in it.
class Machine {
 public:
  Machine() { std::filesystem::create_directories(root_ / "proc"); }
  ~Machine() { std::filesystem::remove_all(root_); }

  /// The lines of /proc/self/cgroup.
  Machine& in(const std::string& text) { return write("proc/cgroup", text); }
  /// Adds a line of /proc/self/mountinfo: the group `root` of a hierarchy is seen in `folder`.
  Machine& mount(const std::string& root, const std::string& folder, const std::string& type,
                 const std::string& options, const std::string& optional_fields = "") {
    std::filesystem::create_directories(root_ / folder);
    std::string point = root_ / folder;
    for (size_t at; (at = point.find(' ')) != point.npos;) point.replace(at, 1, "\\040");
    std::ofstream(root_ / "proc/mountinfo", std::ios::app)
        << "35 31 0:32 " << root << " " << point << " rw,relatime " << optional_fields << "- "
        << type << " cgroup " << options << "\n";
    return *this;
  }
  Machine& write(const std::string& file, const std::string& text) {
    std::filesystem::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
    return *this;
  }
  /// The limit of a group of version 1, and what its processes use.
  Machine& memory_1(const std::string& group, size_t limit, size_t used) {
    return write(group + "/memory.limit_in_bytes", std::to_string(limit) + "\n")
        .write(group + "/memory.usage_in_bytes", std::to_string(used) + "\n")
        .write(group + "/memory.use_hierarchy", "1\n");
  }
  Machine& memory_2(const std::string& group, const std::string& limit, size_t used) {
    return write(group + "/memory.max", limit + "\n")
        .write(group + "/memory.current", std::to_string(used) + "\n");
  }
  Machine& cpu_1(const std::string& group, const std::string& quota, const std::string& period) {
    return write(group + "/cpu.cfs_quota_us", quota + "\n")
        .write(group + "/cpu.cfs_period_us", period + "\n");
  }
  CgroupLimits limits() const { return cgroup_limits(root_ / "proc"); }

 private:
  std::filesystem::path root_ = ::testing::TempDir() + "cgroup test " + std::to_string(::getpid());
};

constexpr size_t kNoLimit1 = 9223372036854771712U;  // what version 1 writes if there is none

TEST(Cgroup, WithoutGroupsThereIsNoLimit) {
  const CgroupLimits limits = Machine().limits();
  EXPECT_EQ(limits.memory, kNone);
  EXPECT_EQ(limits.memory_left, kNone);
  EXPECT_EQ(limits.num_cpus, kNone);
  const CgroupLimits unmounted = Machine().in("4:memory:/a\n1:cpu:/a\n0::/a\n").limits();
  EXPECT_EQ(unmounted.memory, kNone);
}

TEST(Cgroup, Version1LimitsMemoryAndProcessors) {
  Machine machine;
  machine.in("4:memory:/app\n1:cpu,cpuacct:/app\n9:name=systemd:/\n0::/\n")
      .mount("/", "memory", "cgroup", "rw,memory")
      .mount("/", "cpu", "cgroup", "rw,cpu,cpuacct", "shared:9 master:1 ")
      .mount("/", "systemd", "cgroup", "rw,name=systemd")
      .memory_1("memory", kNoLimit1, 900 * kMiB)
      .memory_1("memory/app", 300 * kMiB, 250 * kMiB)
      .write("memory/app/memory.stat",
             "cache 1\ninactive_file 7\nhierarchical_memory_limit 314572800\n"
             "total_inactive_file 104857600\ntotal_active_file 52428800\n")
      .cpu_1("cpu", "-1", "100000")
      .cpu_1("cpu/app", "150000", "100000");
  EXPECT_EQ(machine.limits().memory, 300 * kMiB);
  EXPECT_EQ(machine.limits().memory_left, 200 * kMiB);  // the page cache of 150 MiB can be dropped
  EXPECT_EQ(machine.limits().num_cpus, 2u);
  machine.cpu_1("cpu/app", "50000", "100000");
  EXPECT_EQ(machine.limits().num_cpus, 1u);
  machine.cpu_1("cpu/app", "200000", "0");
  EXPECT_EQ(machine.limits().num_cpus, kNone);
  machine.cpu_1("cpu/app", "-1", "100000").memory_1("memory/app", kNoLimit1, kMiB);
  machine.write("memory/app/memory.stat", "hierarchical_memory_limit 9223372036854771712\n");
  EXPECT_EQ(machine.limits().num_cpus, kNone);
  EXPECT_EQ(machine.limits().memory, kNone);
  EXPECT_EQ(machine.limits().memory_left, kNone);
}

TEST(Cgroup, EveryGroupAboveLimitsTheProcess) {
  Machine machine;
  machine.in("4:memory:/pod/app/worker\n1:cpu:/pod/app/worker\n")
      .mount("/", "memory", "cgroup", "rw,memory")
      .mount("/", "cpu", "cgroup", "rw,cpu")
      .memory_1("memory", kNoLimit1, 0)
      .memory_1("memory/pod", 500 * kMiB, 480 * kMiB)
      .memory_1("memory/pod/app", 400 * kMiB, 100 * kMiB)
      .memory_1("memory/pod/app/worker", kNoLimit1, 50 * kMiB)
      .cpu_1("cpu/pod", "300000", "100000")
      .cpu_1("cpu/pod/app", "400000", "100000")
      .cpu_1("cpu/pod/app/worker", "-1", "100000");
  EXPECT_EQ(machine.limits().memory, 400 * kMiB);
  EXPECT_EQ(machine.limits().memory_left, 20 * kMiB);
  EXPECT_EQ(machine.limits().num_cpus, 3u);
  // A limit that does not hold for the groups below.
  machine.write("memory/pod/memory.use_hierarchy", "0\n");
  EXPECT_EQ(machine.limits().memory_left, 300 * kMiB);
}

// /proc/self/cgroup has the path from the root of the machine, and the mount shows only the
// container's group and those below.
TEST(Cgroup, PathsInAContainerBeginAtTheMachinesRoot) {
  Machine machine;
  machine.in("4:memory:/docker/f00/inner\n1:cpu:/docker/f00\n")
      .mount("/docker/f00", "sys fs/memory", "cgroup", "ro,memory", "master:11 ")
      .mount("/docker/f00", "sys fs/cpu", "cgroup", "ro,cpu")
      .memory_1("sys fs/memory", 300 * kMiB, 10 * kMiB)
      .memory_1("sys fs/memory/inner", 200 * kMiB, 10 * kMiB)
      .cpu_1("sys fs/cpu", "100000", "100000");
  EXPECT_EQ(machine.limits().memory, 200 * kMiB);
  EXPECT_EQ(machine.limits().num_cpus, 1u);
  // A name that only begins alike is another group: what the mount shows is all that is known.
  machine.in("4:memory:/docker/f00d/inner\n");
  EXPECT_EQ(machine.limits().memory, 300 * kMiB);
  // The process is outside of what its namespace can name.
  machine.in("4:memory:/../other\n1:cpu:/../../x\n");
  EXPECT_EQ(machine.limits().memory, 300 * kMiB);
  EXPECT_EQ(machine.limits().num_cpus, 1u);
}

// With a namespace for groups, both paths are "/"; limits of groups that cannot be seen are in the
// entry of memory.stat for the whole hierarchy.
TEST(Cgroup, LimitsAboveTheMountAreInMemoryStat) {
  Machine machine;
  machine.in("4:memory:/\n")
      .mount("/", "memory", "cgroup", "rw,memory")
      .memory_1("memory", kNoLimit1, 60 * kMiB)
      .write("memory/memory.stat", "hierarchical_memory_limit 104857600\ntotal_active_file 0\n");
  EXPECT_EQ(machine.limits().memory, 100 * kMiB);
  EXPECT_EQ(machine.limits().memory_left, 40 * kMiB);
}

TEST(Cgroup, TheMountThatShowsMostGroupsCounts) {
  Machine machine;
  machine.in("4:memory:/pod/app\n")
      .mount("/pod/app", "bound", "cgroup", "rw,memory")
      .mount("/", "memory", "cgroup", "rw,memory")
      .mount("/else", "other", "cgroup", "rw,memory")
      .memory_1("bound", kNoLimit1, 0)
      .memory_1("other", kMiB, 0)
      .memory_1("memory/pod", 100 * kMiB, 30 * kMiB)
      .memory_1("memory/pod/app", kNoLimit1, 20 * kMiB);
  EXPECT_EQ(machine.limits().memory, 100 * kMiB);
  EXPECT_EQ(machine.limits().memory_left, 70 * kMiB);
  // Only one of these mounts shows a group of the process.
  machine.write("proc/mountinfo", "")
      .mount("/else", "other", "cgroup", "rw,memory")
      .mount("/pod/app", "bound", "cgroup", "rw,memory")
      .mount("/else", "other", "cgroup", "rw,memory")
      .memory_1("bound", 50 * kMiB, 0);
  EXPECT_EQ(machine.limits().memory, 50 * kMiB);
}

// A container whose limit is slightly above the size of the model. At the second start, the files
// of the model are in the page cache.
TEST(Cgroup, Version2LimitsMemoryAndProcessors) {
  Machine machine;
  machine.in("0::/user/app\n")
      .mount("/", "unified", "cgroup2", "rw,nsdelegate")
      .memory_2("unified/user", "max", 1900000)
      .memory_2("unified/user/app", "1000000", 900000)
      .write("unified/user/cpu.max", "250000 100000\n")
      .write("unified/user/app/cpu.max", "max 100000\n");
  EXPECT_EQ(machine.limits().memory, 1000000u);
  EXPECT_EQ(machine.limits().memory_left, 100000u);
  EXPECT_EQ(machine.limits().num_cpus, 3u);
  machine.write("unified/user/app/memory.stat",
                "anon 200000\nfile 690000\nshmem 90000\ninactive_anon 5\nactive_file 100000\n"
                "inactive_file 500000\nslab_reclaimable 77\n");
  EXPECT_EQ(machine.limits().memory_left, 700000u);
  machine.memory_2("unified/user/app", "1000000", 500000);  // usage changes between the two reads
  EXPECT_EQ(machine.limits().memory_left, 1000000u);
  machine.memory_2("unified/user/app", "1000000", 1900000);
  EXPECT_EQ(machine.limits().memory_left, 0u);
  machine.memory_2("unified/user/app", "max", 500000);
  EXPECT_EQ(machine.limits().memory_left, kNone);
  machine.memory_2("unified/user", "2000000", 1900000);
  EXPECT_EQ(machine.limits().memory_left, 100000u);
}

TEST(Cgroup, HybridLayoutHasBoth) {
  Machine machine;
  machine.in("4:memory:/a\n1:cpu:/a\n0::/b\n")
      .mount("/", "memory", "cgroup", "rw,memory")
      .mount("/", "unified", "cgroup2", "rw")
      .memory_1("memory/a", 300 * kMiB, 0)
      .write("unified/b/cpu.max", "100000 100000\n");
  EXPECT_EQ(machine.limits().memory, 300 * kMiB);
  EXPECT_EQ(machine.limits().num_cpus, 1u);
  machine.memory_2("unified/b", std::to_string(200 * kMiB), 0);
  EXPECT_EQ(machine.limits().memory, 200 * kMiB);
}

// A path of a group may have any character but a newline.
TEST(Cgroup, OddNamesAndLinesAreHarmless) {
  Machine machine;
  machine.in("nonsense\n\n4\n4:memory\n4:memory:/a:b c\n:::\n")
      .mount("/", "memory", "cgroup", "rw,memory")
      .memory_1("memory/a:b c", 300 * kMiB, 0)
      .write("memory/a:b c/memory.stat", "total_active_file\nx y z");
  EXPECT_EQ(machine.limits().memory, 300 * kMiB);
  machine.write("memory/a:b c/memory.limit_in_bytes", "-1\n");
  EXPECT_EQ(machine.limits().memory, kNone);
  machine.write("memory/a:b c/memory.limit_in_bytes", "");
  EXPECT_EQ(machine.limits().memory, kNone);
  machine.write("proc/mountinfo", "1 2\nx\n35 31 0:32 / /sys - cgroup\n");
  EXPECT_EQ(machine.limits().memory, kNone);
}

}  // namespace
}  // namespace nanovllm
