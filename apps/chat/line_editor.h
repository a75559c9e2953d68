#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/chat/key_reader.h"

namespace nanovllm {

/// The user's input: a text, Ctrl-D or the end of the terminal, or Ctrl-C to leave.
struct Input {
  enum class Kind { kText, kEnd, kInterrupt };
  Kind kind = Kind::kEnd;
  std::string text = {};
};

inline constexpr std::string_view kBlock = "\"\"\"";
/// Whether the text begins with """ and no other """ follows, so that the next line belongs to it.
bool is_open_block(std::string_view text);

/// Edits one text on the terminal with the keys of Emacs, as shells do. The text may have several
/// lines: a paste is inserted unchanged, Alt-Enter begins a line, and so does Enter in a text that
/// begins with """ until another """ ends it. A text that is taller than the terminal is shown in
/// part.
class LineEditor {
 public:
  /// Up and Down bring back the texts of `history`, whose latest one is last. Ctrl-C clears the
  /// text; the next Ctrl-C ends the input with kInterrupt. With `interrupted` the first one does.
  LineEditor(KeyReader& keys, const std::vector<std::string>& history, bool interrupted)
      : keys_(keys), history_(history), entry_(history.size()), interrupted_(interrupted) {}
  Input read();

 private:
  /// A row of the terminal.
  struct Row {
    std::string text;
    int columns = 0;
  };
  /// A row, counted from the first one, and a column in it.
  struct Place {
    size_t row = 0;
    int column = 0;
  };

  void apply(const std::string& key);
  void enter();
  void interrupt();
  void end_of_input();
  void insert(std::string_view text);
  void erase(size_t from, size_t to);
  void kill(size_t from, size_t to);
  void up();
  void down();
  void recall(size_t entry);

  // These functions take and return positions in text_.
  size_t before(size_t at) const;
  size_t after(size_t at) const;
  size_t word_before(size_t at) const;
  size_t word_after(size_t at) const;
  size_t line_start(size_t at) const;
  size_t line_end(size_t at) const;

  Place lay_out(std::vector<Row>& rows, int columns) const;
  void draw(bool whole = false);
  void end_line(std::string_view mark);

  KeyReader& keys_;
  const std::vector<std::string>& history_;
  std::string text_;
  size_t cursor_ = 0;
  std::string killed_;  // the text that Ctrl-Y inserts
  size_t entry_;        // index of the shown entry of the history; its size: the new text
  std::string draft_;   // the new text, while an entry is shown
  bool interrupted_;
  bool done_ = false;
  Input::Kind kind_ = Input::Kind::kText;

  size_t top_ = 0;          // the first row that is visible
  std::vector<Row> drawn_;  // the visible rows, and where the cursor is in them
  Place drawn_cursor_;
};

}  // namespace nanovllm
