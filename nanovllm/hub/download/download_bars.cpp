#include "nanovllm/hub/download/download_bars.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "nanovllm/base/terminal/bar_text.h"
#include "nanovllm/base/terminal/capabilities.h"
#include "nanovllm/base/terminal/escape.h"

namespace nanovllm::hub {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLongestBar = 10, kShortestName = 8;

std::string scaled(double bytes, const char* space) {
  constexpr double kStep = 1000, kThreeDigits = 999.5;
  const char* const units[] = {"", "k", "M", "G", "T"};
  size_t unit = 0;
  for (; bytes >= kThreeDigits && unit + 1 < std::size(units); ++unit) bytes /= kStep;
  int digits = bytes < 9.995 ? 2 : bytes < 99.95 ? 1 : 0;
  if (unit == 0) digits = 0;
  return fmt::format("{:.{}f}{}{}", bytes, digits, space, units[unit]);
}

std::string bar_of(const FileProgress& file, int columns) {
  const double elapsed = std::chrono::duration<double>(Clock::now() - file.start).count();
  const uint64_t done = file.done;
  const uint64_t here = done - std::min(done, file.done_at_start);
  return bar_of_file(file.name, file.size, done, elapsed,
                     elapsed > 0 ? static_cast<double>(here) / elapsed : 0, columns);
}

}  // namespace

void FileProgress::begin(uint64_t bytes_there) {
  start = Clock::now();
  done_at_start = bytes_there;
  done = bytes_there;
  state = kRunning;
}

DownloadBars::DownloadBars(const std::vector<FileProgress*>& files)
    : files_(files), enabled_(stderr_is_terminal() && has_escape_sequences()) {}

DownloadBars::~DownloadBars() { draw(); }

void DownloadBars::note(std::string line) {
  const std::lock_guard lock(mutex_);
  notes_.push_back(std::move(line));
}

void DownloadBars::draw() {
  // The last column stays empty: a character there makes some terminals begin a new line.
  const int columns = std::max(terminal_width(STDERR_FILENO) - 1, 1);
  std::string text = num_lines_ > 0 ? fmt::format("\r\x1b[{}A\x1b[J", num_lines_) : "";
  {
    const std::lock_guard lock(mutex_);
    for (const std::string& line : notes_) text += escape_controls(line) + "\n";
    notes_.clear();
  }
  num_lines_ = 0;
  if (enabled_) {
    std::erase_if(files_, [&](const FileProgress* file) {
      if (file->state != FileProgress::kFinished) return false;
      text += bar_of(*file, columns) + "\n";
      return true;
    });
    for (const FileProgress* file : files_) {
      if (file->state != FileProgress::kRunning) continue;
      text += bar_of(*file, columns) + "\n";
      ++num_lines_;
    }
  }
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

std::string bar_of_file(const std::string& name, uint64_t size, uint64_t done, double elapsed,
                        double bytes_per_second, int columns) {
  const double share = size > 0 ? static_cast<double>(done) / static_cast<double>(size) : 1;
  const double left = static_cast<double>(size - std::min(done, size));
  const std::string rest = bytes_per_second > 0 ? duration_text(left / bytes_per_second) : "?";
  const std::string percent = fmt::format(": {:3.0f}%", 100 * share);
  const std::string bar = "|" + bar_text(share, kLongestBar) + "|";
  const std::string count = fmt::format(" {}/{}", short_size(static_cast<double>(done)),
                                        short_size(static_cast<double>(size)));
  const std::string times =
      fmt::format(" [{}<{}, {}B/s]", duration_text(elapsed), rest, short_size(bytes_per_second));
  const std::string shown = escape_controls(name);
  for (const std::string& right :
       {percent + bar + count + times, percent + count + times, percent + count, percent}) {
    const int room = columns - columns_of(right);
    if (room >= std::min(columns_of(shown), kShortestName)) {
      const auto cut = static_cast<size_t>(std::max(columns_of(shown) - room, 0));
      return (cut == 0 ? shown : "…" + shown.substr(cut + 1)) + right;
    }
  }
  return "";
}

std::string short_size(double bytes) { return scaled(bytes, ""); }
std::string size_text(uint64_t bytes) { return scaled(static_cast<double>(bytes), " ") + "B"; }

}  // namespace nanovllm::hub
