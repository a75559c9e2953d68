#include "apps/chat/thoughts.h"

#include <algorithm>
#include <string_view>

namespace nanovllm {

namespace {

constexpr const char* kDim = "\x1b[2m";
constexpr const char* kPlain = "\x1b[0m";

}  // namespace

std::string Thoughts::show(const std::string& piece) {
  held_ += piece;
  std::string out;
  for (;;) {
    const std::string_view tag = thinking_ ? "</think>" : "<think>";
    if (const size_t at = held_.find(tag); at != std::string::npos) {
      add(out, held_.substr(0, at));
      if (!at_start_) out += thinking_ ? std::string(kPlain) + "\n\n" : "";
      held_.erase(0, at + tag.size());
      thinking_ = !thinking_;
      newlines_ = 0;
      at_start_ = true;
      continue;
    }
    // The last characters may be the beginning of a tag.
    size_t keep = std::min(held_.rfind('<'), held_.size());
    if (!tag.starts_with(std::string_view(held_).substr(keep))) keep = held_.size();
    add(out, held_.substr(0, keep));
    held_.erase(0, keep);
    return out;
  }
}

std::string Thoughts::finish() {
  std::string out;
  add(out, held_);
  return out + (thinking_ ? kPlain : "");
}

void Thoughts::add(std::string& out, std::string text) {
  if (at_start_) {
    text.erase(0, text.find_first_not_of(" \n"));
    if (text.empty()) return;
    at_start_ = false;
    if (thinking_) out += kDim;
  }
  // Newlines at the end of the thoughts are left out too.
  if (thinking_) {
    text.insert(0, newlines_, '\n');
    const size_t end = text.find_last_not_of('\n') + 1;
    newlines_ = text.size() - end;
    text.resize(end);
  }
  out += text;
}

std::string dimmed(const std::string& text) { return kDim + text + kPlain; }

}  // namespace nanovllm
