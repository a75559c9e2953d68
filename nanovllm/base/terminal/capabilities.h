#pragma once

namespace nanovllm {

/// Whether stderr is a terminal.
bool stderr_is_terminal();

/// The columns of the terminal `fd` at this moment, since the user may resize it; 80 if they are
/// unknown.
int terminal_width(int fd);

/// Whether the terminal understands escape sequences: TERM is set and is not "dumb".
bool has_escape_sequences();

/// Whether text on `fd` may be dimmed or coloured: it is a terminal with escape sequences, and the
/// environment variable NO_COLOR is unset or empty.
bool may_style(int fd);

}  // namespace nanovllm
