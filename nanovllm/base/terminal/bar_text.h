#pragma once

#include <string>
#include <string_view>

namespace nanovllm {

/// "01:05" or "2:01:05".
std::string duration_text(double seconds);

/// tqdm's bar of `length` columns: "████▌     ".
std::string bar_text(double share, int length);

/// The columns of a text whose characters all have one, such as the blocks of the bar.
int columns_of(std::string_view text);

}  // namespace nanovllm
