#include "apps/chat/history.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "nanovllm/base/error.h"
#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/base/system/file_descriptor.h"
#include "nanovllm/base/system/files.h"

namespace nanovllm {

namespace {

namespace fs = std::filesystem;

// The most texts in memory. The file may have twice as many, so that it is not rewritten for every
// text.
constexpr size_t kMaxEntries = 1000;
constexpr size_t kMaxEntryBytes = 16 * 1024;  // the longest text that is written to the file
constexpr size_t kMaxHistoryBytes = 2 * kMaxEntries * kMaxEntryBytes;

// A line of the file is a text in which a newline is "\n" and a backslash is "\\".
std::string to_line(std::string_view text) {
  std::string line;
  for (const char c : text) {
    if (c == '\n') line += "\\n";
    else if (c == '\\') line += "\\\\";
    else line += c;
  }
  return line + "\n";
}

std::string from_line(std::string_view line) {
  std::string text;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\\' && i + 1 < line.size()) text += line[++i] == 'n' ? '\n' : line[i];
    else text += line[i];
  }
  std::string valid;
  append_utf8(valid, text, /*at_end=*/true);
  return valid;
}

}  // namespace

History::History() {
  const fs::path folder = user_folder("XDG_STATE_HOME", ".local/state");
  if (folder.empty()) return;
  std::error_code ignored;
  fs::create_directories(folder, ignored);
  ::mkdir((folder / "nanovllm").c_str(), 0700);
  const std::string path = folder / "nanovllm" / "history";
  try {
    const std::string text = read_file_if_there(path, kMaxHistoryBytes).value_or("");
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      entries_.push_back(from_line(std::string_view(text).substr(at, end - at)));
      at = end + 1;
    }
  } catch (const UserError&) {
    return;  // it is no file, too large, or another user's
  }
  path_ = path;
  if (entries_.size() <= 2 * kMaxEntries) return;
  entries_.erase(entries_.begin(), entries_.end() - kMaxEntries);
  std::string lines;
  for (const std::string& entry : entries_) lines += to_line(entry);
  append(lines, O_TRUNC);
}

void History::add(const std::string& text) {
  if (!entries_.empty() && entries_.back() == text) return;
  entries_.push_back(text);
  if (!path_.empty() && text.size() <= kMaxEntryBytes) append(to_line(text), 0);
}

// One write for each text, so that conversations in several terminals do not mix their lines.
void History::append(const std::string& lines, int flags) {
  const FileDescriptor file(
      ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | flags, 0600));
  if (file.get() >= 0) (void)!::write(file.get(), lines.data(), lines.size());
}

}  // namespace nanovllm
