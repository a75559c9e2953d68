#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace nanovllm::testing {

/// The fields of /proc/PID/stat that follow the name: state, parent, ... Empty if there is no such
/// process.
inline std::vector<std::string> process_stat(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  std::vector<std::string> fields;
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return fields;
  std::istringstream rest(line.substr(name_end + 1));
  for (std::string field; rest >> field;) fields.push_back(field);
  return fields;
}

inline bool is_running(pid_t pid) {
  const auto stat = process_stat(pid);
  return !stat.empty() && stat[0] != "Z" && stat[0] != "X";
}

inline std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const auto pid = static_cast<pid_t>(std::stol(name));
    const auto stat = process_stat(pid);
    if (stat.size() > 1 && stat[1] == std::to_string(parent) && stat[0] != "Z")
      children.push_back(pid);
  }
  return children;
}

/// Waits until `condition` holds or `seconds` have passed. Returns whether it holds.
template <class Condition>
bool holds_within(double seconds, Condition condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

/// The program and arguments of a process, as in /proc/PID/cmdline.
inline std::string command_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline");
  std::string command;
  std::getline(file, command);
  return command;
}

/// Waits until `parent` has started `count` workers, and returns their process ids. A child that
/// still has the command of its parent is not a worker yet: until it has become one, the parent
/// cannot react to anything.
inline std::vector<pid_t> wait_for_children(pid_t parent, size_t count) {
  std::vector<pid_t> children;
  const auto is_worker = [&](pid_t pid) { return command_of(pid) != command_of(parent); };
  EXPECT_TRUE(holds_within(10,
                           [&] {
                             children = children_of(parent);
                             return children.size() == count &&
                                    std::ranges::all_of(children, is_worker);
                           }))
      << children.size() << " of " << count << " workers";
  return children;
}

/// Expects that these processes have ended or end within 5 seconds, and kills those that do not.
inline void expect_gone(const std::vector<pid_t>& pids) {
  for (const pid_t pid : pids) {
    const bool gone = holds_within(5, [&] { return !is_running(pid); });
    EXPECT_TRUE(gone) << "process " << pid;
    if (!gone) kill(pid, SIGKILL);
  }
}

}  // namespace nanovllm::testing
