#include "apps/chat/line_editor.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <csignal>
#include <cwchar>
#include <initializer_list>
#include <map>
#include <utility>

#include "nanovllm/base/strings/utf8.h"
#include "terminal.h"

namespace nanovllm {

namespace {

constexpr std::string_view kPrompt = "> ", kIndent = "  ";  // begin the first and each later line

/// The columns of a character. A combining character has none: it is drawn over the one before it.
int columns_of(char32_t c) {
  const int columns = ::wcwidth(static_cast<wchar_t>(c));
  return columns >= 0 ? columns : c >= 0x1f000 ? 2 : 1;  // emoji that the C library does not know
}

bool is_control(char32_t c) { return c < 0x20 || (c >= 0x7f && c < 0xa0); }

bool is_combining(const char* at) { return columns_of(code_point_at(at)) == 0; }

bool is_word(char c) { return is_continuation(c) || c < 0 || std::isalnum(c) != 0; }

}  // namespace

bool is_open_block(std::string_view text) {
  const size_t first = text.find_first_not_of(" \n\t");
  return first != std::string_view::npos && text.substr(first).starts_with(kBlock) &&
         text.find(kBlock, first + kBlock.size()) == std::string_view::npos;
}

Input LineEditor::read() {
  const RawMode raw;
  draw();
  while (!done_) {
    const auto key = keys_.read();
    if (!key) {
      kind_ = Input::Kind::kEnd;
      break;
    }
    if (key->empty()) raw.enter();
    else if (*key == "\x1a") {
      end_line("");
      raw.leave();
      ::kill(0, SIGTSTP);  // all processes of the job, as the terminal does
      raw.enter();
    } else {
      apply(*key);
    }
    if (!done_ && !keys_.has_more()) draw();
  }
  return {kind_, kind_ == Input::Kind::kText ? text_ : ""};
}

void LineEditor::apply(const std::string& key) {
  using Self = LineEditor;
  using Action = void (*)(Self&);
  static const std::map<std::string_view, Action> kActions = [] {
    std::map<std::string_view, Action> actions;
    const auto on = [&](std::initializer_list<std::string_view> keys, Action action) {
      for (const std::string_view name : keys) actions[name] = action;
    };
    on({"\r", "\n"}, [](Self& e) { e.enter(); });
    on({"\x03"}, [](Self& e) { e.interrupt(); });
    on({"\x04"}, [](Self& e) { e.end_of_input(); });
    on({"\033[200~"}, [](Self& e) { e.insert(e.keys_.read_paste()); });
    on({"\033\r", "\033\n", "\033[13;2u"}, [](Self& e) { e.insert("\n"); });
    on({"\x02", "\033[D", "\033OD"}, [](Self& e) { e.cursor_ = e.before(e.cursor_); });
    on({"\x06", "\033[C", "\033OC"}, [](Self& e) { e.cursor_ = e.after(e.cursor_); });
    on({"\033b", "\033[1;5D", "\033[1;3D"}, [](Self& e) { e.cursor_ = e.word_before(e.cursor_); });
    on({"\033f", "\033[1;5C", "\033[1;3C"}, [](Self& e) { e.cursor_ = e.word_after(e.cursor_); });
    on({"\x01", "\033[H", "\033OH", "\033[1~", "\033[7~"},
       [](Self& e) { e.cursor_ = e.line_start(e.cursor_); });
    on({"\x05", "\033[F", "\033OF", "\033[4~", "\033[8~"},
       [](Self& e) { e.cursor_ = e.line_end(e.cursor_); });
    on({"\x10", "\033[A", "\033OA"}, [](Self& e) { e.up(); });
    on({"\x0e", "\033[B", "\033OB"}, [](Self& e) { e.down(); });
    on({"\x7f", "\x08"}, [](Self& e) { e.erase(e.before(e.cursor_), e.cursor_); });
    on({"\033[3~"}, [](Self& e) { e.erase(e.cursor_, e.after(e.cursor_)); });
    on({"\x17", "\033\x7f"}, [](Self& e) { e.kill(e.word_before(e.cursor_), e.cursor_); });
    on({"\033d"}, [](Self& e) { e.kill(e.cursor_, e.word_after(e.cursor_)); });
    on({"\x15"}, [](Self& e) { e.kill(e.line_start(e.cursor_), e.cursor_); });
    on({"\x0b"}, [](Self& e) {
      const size_t end = e.line_end(e.cursor_);
      e.kill(e.cursor_, end > e.cursor_ ? end : e.after(e.cursor_));  // or the line's end itself
    });
    on({"\x19"}, [](Self& e) { e.insert(e.killed_); });
    on({"\x0c"}, [](Self& e) {
      print_styled("\033[H\033[2J");
      e.drawn_.clear();
      e.drawn_cursor_ = {};
    });
    return actions;
  }();
  if (key != "\x03") interrupted_ = false;
  if (const auto action = kActions.find(key); action != kActions.end()) action->second(*this);
  else if (static_cast<unsigned char>(key[0]) >= 0x20) insert(key);
}

// -- Keys

void LineEditor::enter() {
  if (is_open_block(text_)) return insert("\n");
  end_line("");
  done_ = true;
}

void LineEditor::interrupt() {
  if (text_.empty() && interrupted_) {
    kind_ = Input::Kind::kInterrupt;
    done_ = true;
    return end_line("^C");
  }
  end_line(text_.empty() ? "^C\r\nCtrl-C again, or Ctrl-D, ends the program." : "^C");
  interrupted_ = true;
  text_.clear();
  cursor_ = 0;
  entry_ = history_.size();
}

void LineEditor::end_of_input() {
  if (!text_.empty()) return erase(cursor_, after(cursor_));
  kind_ = Input::Kind::kEnd;
  done_ = true;
  end_line("");
}

void LineEditor::insert(std::string_view text) {
  text_.insert(cursor_, text);
  cursor_ += text.size();
}

void LineEditor::erase(size_t from, size_t to) {
  text_.erase(from, to - from);
  cursor_ = from;
}

void LineEditor::kill(size_t from, size_t to) {
  if (from < to) killed_ = text_.substr(from, to - from);
  erase(from, to);
}

void LineEditor::up() {
  const size_t start = line_start(cursor_);
  if (start > 0) cursor_ = std::min(line_start(start - 1) + (cursor_ - start), start - 1);
  else if (entry_ > 0) return recall(entry_ - 1);
  while (cursor_ < text_.size() && is_continuation(text_[cursor_])) --cursor_;
}

void LineEditor::down() {
  const size_t start = line_start(cursor_), end = line_end(cursor_);
  if (end < text_.size()) cursor_ = std::min(end + 1 + (cursor_ - start), line_end(end + 1));
  else if (entry_ < history_.size()) return recall(entry_ + 1);
  while (cursor_ < text_.size() && is_continuation(text_[cursor_])) --cursor_;
}

void LineEditor::recall(size_t entry) {
  if (entry_ == history_.size()) draft_ = text_;
  entry_ = entry;
  text_ = entry == history_.size() ? draft_ : history_[entry];
  cursor_ = text_.size();
}

// -- Positions

size_t LineEditor::before(size_t at) const {
  while (at > 0) {
    at = last_char(std::string_view(text_).substr(0, at));
    if (!is_combining(&text_[at])) break;
  }
  return at;
}

size_t LineEditor::after(size_t at) const {
  if (at < text_.size()) at += utf8_len(text_[at]);
  while (at < text_.size() && is_combining(&text_[at])) at += utf8_len(text_[at]);
  return at;
}

size_t LineEditor::word_before(size_t at) const {
  while (at > 0 && !is_word(text_[at - 1])) --at;
  while (at > 0 && is_word(text_[at - 1])) --at;
  return at;
}

size_t LineEditor::word_after(size_t at) const {
  while (at < text_.size() && !is_word(text_[at])) ++at;
  while (at < text_.size() && is_word(text_[at])) ++at;
  return at;
}

size_t LineEditor::line_start(size_t at) const {
  return at == 0 ? 0 : text_.rfind('\n', at - 1) + 1;  // npos + 1 is 0
}
size_t LineEditor::line_end(size_t at) const {
  return std::min(text_.find('\n', at), text_.size());
}

// -- Drawing

/// The text as rows of at most `columns`, and where the cursor is.
LineEditor::Place LineEditor::lay_out(std::vector<Row>& rows, int columns) const {
  rows.push_back({std::string(kPrompt), static_cast<int>(kPrompt.size())});
  Place cursor;
  for (size_t i = 0;;) {
    const bool at_end = i == text_.size();
    const bool is_line_end = !at_end && text_[i] == '\n', is_tab = !at_end && text_[i] == '\t';
    const char32_t c = at_end ? ' ' : code_point_at(&text_[i]);
    const int width = is_line_end ? 0 : is_tab ? 8 - rows.back().columns % 8 : columns_of(c);
    if (rows.back().columns + width > columns) rows.emplace_back();
    if (i == cursor_) cursor = {rows.size() - 1, std::min(rows.back().columns, columns - 1)};
    if (at_end) return cursor;
    const auto length = static_cast<size_t>(utf8_len(text_[i]));
    if (is_line_end) {
      rows.push_back({std::string(kIndent), static_cast<int>(kIndent.size())});
    } else {
      if (is_tab) rows.back().text.append(static_cast<size_t>(width), ' ');
      else if (is_control(c)) rows.back().text += kReplacementCharacter;
      else rows.back().text.append(text_, i, length);
      rows.back().columns += width;
    }
    i += length;
  }
}

/// Draws the text in place of the last drawing. With `whole`, rows that do not fit move out at the
/// top.
void LineEditor::draw(bool whole) {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) size = {};
  // The prompt and a tab must fit.
  const int columns = std::max(size.ws_col > 0 ? size.ws_col : 80, 10);
  const auto height = static_cast<size_t>(size.ws_row > 0 ? size.ws_row : 24);
  std::vector<Row> rows;
  const Place cursor = lay_out(rows, columns);
  top_ = std::clamp(top_, cursor.row >= height ? cursor.row - height + 1 : 0, cursor.row);
  top_ = whole ? 0 : std::min(top_, rows.size() - std::min(rows.size(), height));
  const size_t end = whole ? rows.size() : std::min(top_ + height, rows.size());

  // A terminal that has become narrower has wrapped the rows that it shows.
  size_t up = drawn_cursor_.column >= columns ? drawn_cursor_.column / columns : 0;
  for (size_t i = 0; i < drawn_cursor_.row && i < drawn_.size(); ++i)
    up += (std::max(drawn_[i].columns, 1) + columns - 1) / columns;
  std::string out = (up > 0 ? fmt::format("\033[{}A", up) : "") + "\r";
  for (size_t i = top_; i < end; ++i) {
    if (i > top_) out += "\r\n";
    out += rows[i].text;
    // After a full row the cursor is still on its last character, which must not be erased.
    if (rows[i].columns < columns) out += i + 1 < end ? "\033[K" : "\033[J";
  }
  if (const size_t below = end - 1 - cursor.row; below > 0) out += fmt::format("\033[{}A", below);
  out += "\r";
  if (cursor.column > 0) out += fmt::format("\033[{}C", cursor.column);
  print_styled(out);
  drawn_.assign(rows.begin() + static_cast<ptrdiff_t>(top_),
                rows.begin() + static_cast<ptrdiff_t>(end));
  drawn_cursor_ = {cursor.row - top_, cursor.column};
}

/// Shows the whole text and `mark` behind it, and moves to the next line.
void LineEditor::end_line(std::string_view mark) {
  const size_t cursor = std::exchange(cursor_, text_.size());
  draw(/*whole=*/true);
  print_styled(std::string(mark) + "\r\n");
  cursor_ = cursor;
  drawn_.clear();
  drawn_cursor_ = {};
  top_ = 0;
}

}  // namespace nanovllm
