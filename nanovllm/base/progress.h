#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace nanovllm {

/// A bar on stderr in the form of tqdm's, redrawn in place at most ten times a second:
/// "Generating:  45%|████▌     | 115/256 [00:12<00:15, 9.20it/s, Prefill=1234tok/s,
/// Decode=567tok/s]". One thread at a time.
class ProgressBar {
 public:
  ProgressBar(std::string_view title, int64_t total, bool enabled);
  /// Leaves the bar as it stands and ends its line.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// `prefill_tokens` and `decode_tokens`: computed so far in all.
  void update(int64_t done, int64_t prefill_tokens, int64_t decode_tokens);
  /// Takes the bar off the terminal, so that other lines can be printed; the next update draws it
  /// again.
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
  // Rates over the time since the last drawing; a kind of token that did not come keeps its last
  // rate.
  int64_t prefill_tokens_ = 0, decode_tokens_ = 0, drawn_prefill_ = 0, drawn_decode_ = 0;
  double prefill_rate_ = 0, decode_rate_ = 0;
};

/// Whether stderr is a terminal.
bool stderr_is_terminal();

}  // namespace nanovllm
