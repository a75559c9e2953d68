#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace nanovllm {

/// A progress bar on stderr that looks like tqdm's and is redrawn at most ten times a second:
/// "Generating:  45%|████▌     | 115/256 [00:12<00:15, 9.20it/s, Prefill=1234tok/s,
/// Decode=567tok/s]". Only one thread at a time may use it.
class ProgressBar {
 public:
  ProgressBar(std::string_view title, int64_t total, bool enabled);
  /// Draws the bar a last time and ends its line.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// `prefill_tokens` and `decode_tokens` are the numbers of tokens computed so far.
  void update(int64_t done, int64_t prefill_tokens, int64_t decode_tokens);
  /// Removes the bar from the terminal, so that other lines can be printed. The next update draws
  /// it again.
  void hide();

 private:
  using Clock = std::chrono::steady_clock;
  void draw(Clock::time_point now);

  std::string title_;
  int64_t total_;
  bool enabled_;
  bool visible_ = false;
  int64_t done_ = 0;
  Clock::time_point start_, last_draw_;
  // The rates are measured from one drawing to the next. If no token of a kind was computed, its
  // rate stays as it was.
  int64_t prefill_tokens_ = 0, decode_tokens_ = 0, drawn_prefill_ = 0, drawn_decode_ = 0;
  double prefill_rate_ = 0, decode_rate_ = 0;
};

/// Whether stderr is a terminal.
bool stderr_is_terminal();

}  // namespace nanovllm
