#include "nanovllm/base/terminal/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

#include "nanovllm/base/terminal/bar_text.h"
#include "nanovllm/base/terminal/capabilities.h"
#include "nanovllm/base/terminal/escape.h"

namespace nanovllm {

namespace {

constexpr std::chrono::milliseconds kBetweenDrawings{100};
constexpr int kLongestBar = 10, kShortestBar = 4;

}  // namespace

ProgressBar::ProgressBar(std::string_view title, std::optional<int64_t> total, bool enabled)
    : title_(escape_controls(title)),
      total_(total),
      enabled_(enabled),
      start_(Clock::now()),
      last_draw_(start_) {
  if (enabled_) draw(start_);
}

ProgressBar::~ProgressBar() {
  if (!enabled_) return;
  draw(Clock::now());
  std::fputc('\n', stderr);
}

void ProgressBar::update(int64_t done, int64_t prefill_tokens, int64_t decode_tokens) {
  done_ = done;
  prefill_tokens_ = prefill_tokens;
  decode_tokens_ = decode_tokens;
  if (!enabled_) return;
  const Clock::time_point now = Clock::now();
  if (drawn_columns_ == 0 || now - last_draw_ >= kBetweenDrawings) draw(now);
}

void ProgressBar::hide() {
  if (drawn_columns_ > 0) show("", terminal_width(STDERR_FILENO));
}

void ProgressBar::draw(Clock::time_point now) {
  const int columns = terminal_width(STDERR_FILENO);
  // The last column stays empty: a character there makes some terminals begin a new line.
  show(text(std::chrono::duration<double>(now - start_).count(), std::max(columns - 1, 1)),
       columns);
  last_draw_ = now;
}

/// Replaces the visible bar.
void ProgressBar::show(const std::string& line, int columns) {
  const int length = columns_of(line);
  if (has_escape_sequences()) {
    // A terminal that has become narrower than the bar has wrapped it into several lines; only
    // xterm cuts it instead.
    const int wraps = std::getenv("XTERM_VERSION") == nullptr ? (drawn_columns_ - 1) / columns : 0;
    const std::string up = wraps > 0 ? fmt::format("\x1b[{}A", wraps) : "";
    fmt::print(stderr, "{}\r{}\x1b[J", up, line);
  } else {
    fmt::print(stderr, "\r{}{:{}}", line, "", std::max(drawn_columns_ - length, 0));
    if (length == 0) std::fputc('\r', stderr);
  }
  std::fflush(stderr);
  drawn_columns_ = length;
}

/// The text of the bar in the longest of several forms that fits.
std::string ProgressBar::text(double elapsed, int columns) const {
  const auto per_second = [&](int64_t count) {
    return elapsed > 0 ? static_cast<double>(count) / elapsed : 0;
  };
  const double rate = per_second(done_);
  const std::string speed = rate >= 1 || rate == 0 ? fmt::format(", {:.2f}it/s", rate)
                                                   : fmt::format(", {:.2f}s/it", 1 / rate);
  const std::string prefill = fmt::format(", Prefill={:.0f}tok/s", per_second(prefill_tokens_));
  const std::string decode = fmt::format(", Decode={:.0f}tok/s", per_second(decode_tokens_));
  const std::array all_rates = {speed + prefill + decode, prefill + decode, decode, std::string()};
  if (!total_) {
    const std::string count = fmt::format("{}: {}it", title_, done_);
    for (const std::string& rates : all_rates)
      if (std::string form = fmt::format("{} [{}{}]", count, duration_text(elapsed), rates);
          columns_of(form) <= columns)
        return form;
    return columns_of(count) <= columns ? count : "";
  }
  const double share = *total_ > 0 ? static_cast<double>(done_) / static_cast<double>(*total_) : 1;
  const std::string rest =
      rate > 0 ? duration_text(static_cast<double>(*total_ - done_) / rate) : "?";
  const std::string percent = fmt::format("{:3.0f}%", 100 * share);
  const std::string left = title_ + ": " + percent + "|";
  const std::string count = fmt::format(" {}/{}", done_, *total_);
  const std::string times = fmt::format(" [{}<{}", duration_text(elapsed), rest);
  for (const std::string& rates : all_rates) {
    const std::string right = fmt::format("|{}{}{}]", count, times, rates);
    const int room = columns - columns_of(left) - columns_of(right);
    if (room >= kShortestBar)
      return fmt::format("{}{}{}", left, bar_text(share, std::min(room, kLongestBar)), right);
  }
  const std::array forms = {fmt::format("{}{}{}]", left, count, times), left + count,
                            percent + count};
  for (const std::string& form : forms)
    if (columns_of(form) <= columns) return form;
  return columns_of(percent) <= columns ? percent : "";
}

}  // namespace nanovllm
