#include "apps/chat/key_reader.h"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <string_view>

#include "nanovllm/base/strings/utf8.h"

namespace nanovllm {

namespace {

volatile std::sig_atomic_t must_draw = 0;
extern "C" void on_change(int) { must_draw = 1; }

// A terminal sends an escape sequence at once; a longer pause means that Esc itself was pressed.
constexpr int kEscapeMilliseconds = 100;
constexpr int kForever = -1;
constexpr char kEscape = '\x1b';
constexpr std::string_view kPasteEnd = "\x1b[201~";

}  // namespace

KeyReader::KeyReader() {
  struct sigaction action {};
  action.sa_handler = on_change;
  ::sigaction(SIGWINCH, &action, nullptr);
  ::sigaction(SIGCONT, &action, nullptr);
}

int KeyReader::next_byte(int timeout_ms) {
  while (at_ == buffer_.size()) {
    if (must_draw != 0 && timeout_ms == kForever) {
      must_draw = 0;
      return kSignal;
    }
    pollfd waiting{STDIN_FILENO, POLLIN, 0};
    const int ready = ::poll(&waiting, 1, timeout_ms);
    if (ready == 0) return kTimeout;
    if (ready < 0 && errno != EINTR) return kEnd;
    if (ready < 0) continue;
    std::array<char, 4096> bytes;
    const ssize_t n = ::read(STDIN_FILENO, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return kEnd;
    buffer_.assign(bytes.data(), static_cast<size_t>(n));
    at_ = 0;
  }
  return static_cast<unsigned char>(buffer_[at_++]);
}

bool KeyReader::has_more() {
  const int byte = next_byte(0);
  if (byte >= 0) --at_;
  return byte >= 0;
}

std::optional<std::string> KeyReader::read() {
  const int first = next_byte(kForever);
  if (first == kEnd) return std::nullopt;
  if (first == kSignal) return "";
  std::string key(1, static_cast<char>(first));
  const auto add = [&](int timeout_ms) {
    const int byte = next_byte(timeout_ms);
    if (byte >= 0) key += static_cast<char>(byte);
    return byte;
  };
  if (first == kEscape) {
    const int second = add(kEscapeMilliseconds);
    if (second == 'O') add(kEscapeMilliseconds);
    // In ECMA-48 parameters and intermediate bytes follow, then one final byte.
    if (second == '[')
      for (int byte = 0; (byte = add(kEscapeMilliseconds)) >= 0x20 && byte <= 0x3f;) {
      }
    return key;
  }
  // A character has up to four bytes. Bytes that are not UTF-8 become U+FFFD.
  std::string valid;
  while (append_utf8(valid, key, false) == 0 && valid.empty())
    if (add(kEscapeMilliseconds) < 0) break;
  if (valid.empty()) append_utf8(valid, key, true);
  if (valid.size() > 1) std::erase_if(valid, [](char c) { return c >= 0 && c < 0x20; });
  return valid;
}

std::string KeyReader::read_paste() {
  std::string bytes;
  while (!bytes.ends_with(kPasteEnd)) {
    const int byte = next_byte(kForever);
    if (byte == kEnd) break;
    if (byte >= 0) bytes += static_cast<char>(byte);
  }
  if (bytes.ends_with(kPasteEnd)) bytes.resize(bytes.size() - kPasteEnd.size());
  std::string valid, text;
  append_utf8(valid, bytes, true);
  for (size_t i = 0; i < valid.size(); ++i) {
    const auto byte = static_cast<unsigned char>(valid[i]);
    if (byte == '\r') text += i + 1 < valid.size() && valid[i + 1] == '\n' ? "" : "\n";
    else if (byte == '\n' || byte == '\t' || (byte >= 0x20 && byte != 0x7f)) text += valid[i];
  }
  return text;
}

}  // namespace nanovllm
