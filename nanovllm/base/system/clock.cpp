#include "nanovllm/base/system/clock.h"

#include <unistd.h>

#include <ctime>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "nanovllm/base/check.h"

namespace nanovllm {

double seconds_since_process_start() {
  std::ifstream file("/proc/self/stat");
  std::string text(std::istreambuf_iterator<char>(file), {});
  // The program's name, the second field, is in parentheses and may itself contain spaces.
  const size_t name_end = text.rfind(')');
  check(name_end != std::string::npos, "/proc/self/stat: no program's name");
  std::istringstream fields(text.substr(name_end + 1));
  constexpr int kFirst = 3, kStartTime = 22;  // fields as proc(5) counts them
  std::string field;
  for (int i = kFirst; i < kStartTime; ++i) fields >> field;
  double ticks = 0;  // ticks since the machine was started, including the time in which it slept
  check(static_cast<bool>(fields >> ticks), "/proc/self/stat: no start time");
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) -
         ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

}  // namespace nanovllm
