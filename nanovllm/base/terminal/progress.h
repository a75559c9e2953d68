#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nanovllm {

/// A progress bar on stderr that looks like tqdm's and is redrawn at most ten times a second:
/// "Generating:  45%|████▌     | 115/256 [00:12<00:15, 9.20it/s, Prefill=1234tok/s,
/// Decode=567tok/s]". The rates are those of the whole run. In a narrow terminal the bar gets
/// shorter, and then the less important parts are left out, so that it is always one line. As long
/// as the total is unknown there is no bar: "Generating: 12it [00:03, 4.00it/s, ...]". Only one
/// thread at a time may use it.
class ProgressBar {
 public:
  ProgressBar(std::string_view title, std::optional<int64_t> total, bool enabled);
  /// Draws the bar a last time and ends its line.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// `prefill_tokens` and `decode_tokens` are the numbers of tokens computed so far.
  void update(int64_t done, int64_t prefill_tokens, int64_t decode_tokens);
  void set_total(std::optional<int64_t> total) { total_ = total; }
  /// Removes the bar from the terminal, so that other lines can be printed. The next update draws
  /// it again.
  void hide();

 private:
  using Clock = std::chrono::steady_clock;
  void draw(Clock::time_point now);
  std::string text(double elapsed, int columns) const;
  void show(const std::string& line, int columns);

  std::string title_;
  std::optional<int64_t> total_;
  bool enabled_;
  int64_t done_ = 0, prefill_tokens_ = 0, decode_tokens_ = 0;
  Clock::time_point start_, last_draw_;
  int drawn_columns_ = 0;  // columns of the visible bar; 0: no bar is visible
};

}  // namespace nanovllm
