#include "nanovllm/base/terminal/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "nanovllm/base/terminal/escape.h"

namespace nanovllm {

namespace {

constexpr std::chrono::milliseconds kBetweenDrawings{100};
constexpr int kWidth = 10;

std::string duration(double seconds) {
  const auto s = static_cast<int64_t>(seconds);
  if (s >= 3600) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{:02}:{:02}", s / 60, s % 60);
}

std::string bar(double share) {
  static constexpr const char* kEighths[] = {" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int eighths = static_cast<int>(share * kWidth * 8);
  std::string text;
  for (int i = 0; i < kWidth; ++i) {
    const int filled = eighths - 8 * i;
    text += filled >= 8 ? "█" : kEighths[filled > 0 ? filled : 0];
  }
  return text;
}

}  // namespace

bool stderr_is_terminal() { return ::isatty(STDERR_FILENO) == 1; }

ProgressBar::ProgressBar(std::string_view title, int64_t total, bool enabled)
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
  if (!visible_ || now - last_draw_ >= kBetweenDrawings) draw(now);
}

void ProgressBar::hide() {
  if (!visible_) return;
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
  visible_ = false;
}

void ProgressBar::draw(Clock::time_point now) {
  const double since = std::chrono::duration<double>(now - last_draw_).count();
  if (since > 0.01) {
    if (prefill_tokens_ > drawn_prefill_)
      prefill_rate_ = static_cast<double>(prefill_tokens_ - drawn_prefill_) / since;
    if (decode_tokens_ > drawn_decode_)
      decode_rate_ = static_cast<double>(decode_tokens_ - drawn_decode_) / since;
    drawn_prefill_ = prefill_tokens_;
    drawn_decode_ = decode_tokens_;
    last_draw_ = now;
  }
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const double share = total_ > 0 ? static_cast<double>(done_) / static_cast<double>(total_) : 1;
  const double rate = elapsed > 0 ? static_cast<double>(done_) / elapsed : 0;
  const std::string rest = rate > 0 ? duration(static_cast<double>(total_ - done_) / rate) : "?";
  const std::string speed = rate >= 1 || rate == 0 ? fmt::format("{:.2f}it/s", rate)
                                                   : fmt::format("{:.2f}s/it", 1 / rate);
  fmt::print(stderr,
             "\r{}: {:3.0f}%|{}| {}/{} [{}<{}, {}, Prefill={:.0f}tok/s, Decode={:.0f}tok/s]\x1b[K",
             title_, 100 * share, bar(share), done_, total_, duration(elapsed), rest, speed,
             prefill_rate_, decode_rate_);
  std::fflush(stderr);
  visible_ = true;
}

}  // namespace nanovllm
