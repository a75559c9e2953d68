#pragma once

#include <string>
#include <string_view>

namespace nanovllm {

/// The text of a duration: "01:05" or "2:01:05".
std::string duration_text(double seconds);

/// A bar of `length` columns as tqdm draws it: "████▌     ".
std::string bar_text(double share, int length);

/// The columns of a text all of whose characters have one column, such as the blocks of the bar.
int columns_of(std::string_view text);

}  // namespace nanovllm
