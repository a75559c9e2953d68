#include "apps/batch/zeros.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "nanovllm/base/check.h"

namespace nanovllm {

namespace {

/// Calls visit(offset, bytes) for the pieces of the file in order, until it returns false. A hole
/// is one zero byte.
template <class Visit>
void for_each_piece(int file, const std::string& path, Visit visit) {
  constexpr size_t kPiece = size_t{1} << 20;
  const off_t size = ::lseek(file, 0, SEEK_END);
  std::string piece;
  for (off_t at = 0; at < size;) {
    off_t data = ::lseek(file, at, SEEK_DATA);
    if (data < 0) data = errno == ENXIO ? size : at;  // a hole up to the end, or holes are unknown
    if (data > at) {
      if (!visit(at, std::string_view("\0", 1))) return;
      at = data;
      continue;
    }
    piece.resize(kPiece);
    const ssize_t n = ::pread(file, piece.data(), piece.size(), at);
    if (n < 0 && errno == EINTR) continue;
    require(n >= 0, "{}: {}", path, std::strerror(errno));
    if (n == 0 || !visit(at, std::string_view(piece).substr(0, static_cast<size_t>(n)))) return;
    at += n;
  }
}

/// Appends the part of a line that is compared with the beginning of a result, `size` bytes.
void append_start(std::string& start, std::string_view text, size_t size) {
  start += text.substr(0, size - std::min(start.size(), size));
}

}  // namespace

bool Zeros::is_damaged_result(bool has_results) const {
  if (!is_text || !result_start.starts_with(start)) return false;
  const bool is_empty = start.empty() && num_text == 0;
  return has_results || is_empty || start == result_start || has_result;
}

Zeros find_zeros(int file, const std::string& path, std::string_view result_start) {
  Zeros zeros{.result_start = result_start};
  int64_t line = 0;  // where the current line begins
  std::string last;  // the end of the previous piece, since a result may begin in both
  const auto visit_damaged = [&](std::string_view bytes) {
    for (const char c : bytes) {
      if (c == '\0' || c == '\n') continue;
      ++zeros.num_text;
      if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') zeros.is_text = false;
    }
    last += bytes;
    zeros.has_result = zeros.has_result || last.find(result_start) != last.npos;
    last.erase(0, last.size() - std::min(last.size(), result_start.size() - 1));
    return zeros.is_text;  // stops at binary data, since the file is then no file of results
  };
  for_each_piece(file, path, [&](int64_t offset, std::string_view bytes) {
    if (zeros.line >= 0) return visit_damaged(bytes);
    const size_t zero = std::min(bytes.find('\0'), bytes.size());
    const std::string_view intact = bytes.substr(0, zero);
    if (const size_t newline = intact.rfind('\n'); newline != intact.npos) {
      line = offset + static_cast<int64_t>(newline) + 1;
      zeros.start.clear();
      append_start(zeros.start, intact.substr(newline + 1), result_start.size());
    } else {
      append_start(zeros.start, intact, result_start.size());
    }
    if (zero == bytes.size()) return true;
    zeros.line = line;
    return visit_damaged(bytes.substr(zero));
  });
  return zeros;
}

}  // namespace nanovllm
