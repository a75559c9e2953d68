#include "nanovllm/base/terminal/bar_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace nanovllm {

std::string duration_text(double seconds) {
  const auto s = static_cast<int64_t>(seconds);
  if (s >= 3600) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{:02}:{:02}", s / 60, s % 60);
}

std::string bar_text(double share, int length) {
  static constexpr const char* kEighths[] = {" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int eighths = static_cast<int>(share * length * 8);
  std::string text;
  for (int i = 0; i < length; ++i) {
    const int filled = eighths - 8 * i;
    text += filled >= 8 ? "█" : kEighths[filled > 0 ? filled : 0];
  }
  return text;
}

int columns_of(std::string_view text) {
  const auto starts = [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; };
  return static_cast<int>(std::ranges::count_if(text, starts));
}

}  // namespace nanovllm
