#!/usr/bin/env python3
"""Types lines into a shell in a terminal (tmux) and draws what it shows then as an SVG.
terminal_svg.py OUT.svg [--size COLUMNSxROWS] LINE...

Each line is typed when the screen has not changed for a second. The current folder is the shell's, and build/release is on
its PATH. docs/images/chat.svg was drawn by
scripts/terminal_svg.py docs/images/chat.svg 'nanovllm chat models/tiny-tales --temperature 0.5 --sample-seed 15' \\
  'Tell me a story about a fox.' 'introduce yourself' 'list all prime numbers within 100'"""
import argparse
import os
import re
import subprocess
import time
from xml.sax.saxutils import escape

SOCKET = f"terminal_svg.{os.getpid()}"  # a tmux server of our own
CELL_WIDTH, LINE_HEIGHT, MARGIN, BAR = 8.4, 19, 16, 30  # pixels
COLORS = ["#484f58", "#ff7b72", "#3fb950", "#d29922", "#58a6ff", "#bc8cff", "#39c5cf", "#b1bac4",
          "#6e7681", "#ffa198", "#56d364", "#e3b341", "#79c0ff", "#d2a8ff", "#56d4dd", "#ffffff"]
# The window is dark on every page; its border separates it from a dark page.
STYLE = """
text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre }
.window { fill: #0d1117; stroke: #3d444d } text { fill: #e6edf3 } .bold { font-weight: bold } .dim { opacity: 0.6 }
"""


def tmux(*args):
    return subprocess.run(["tmux", "-L", SOCKET, *args], check=True, capture_output=True, text=True).stdout


def screen():
    return tmux("capture-pane", "-p", "-e")


def wait_until_still(seconds=1.0):
    last, since = screen(), time.monotonic()
    while time.monotonic() - since < seconds:
        time.sleep(0.1)
        now = screen()
        if now != last:
            last, since = now, time.monotonic()
    return last


def record(lines, columns, rows):
    path = os.path.abspath("build/release") + ":" + os.environ["PATH"]
    shell = f"env PATH='{path}' PS1='$ ' OMP_WAIT_POLICY=passive bash --norc --noprofile"
    tmux("-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(rows), shell)
    try:
        tmux("set", "-g", "status", "off")
        for line in lines:
            wait_until_still()
            tmux("send-keys", "-l", line)
            tmux("send-keys", "Enter")
            time.sleep(0.5)
        return wait_until_still(3.0)
    finally:
        tmux("kill-server")


def runs(line):
    """Divides a line with escape sequences into (column, text, classes, color)."""
    column, classes, color = 0, [], ""
    for part in re.split(r"(\x1b\[[0-9;]*m|\x1b\].*?(?:\x07|\x1b\\))", line):
        if not part.startswith("\x1b"):
            if part.strip():
                yield column, part, " ".join(classes), color
            column += len(part)
            continue
        if not part.startswith("\x1b["):
            continue
        for code in map(int, part[2:-1].split(";") if part[2:-1] else ["0"]):
            if code == 0:
                classes, color = [], ""
            elif code in (1, 2):
                classes.append("bold" if code == 1 else "dim")
            elif code == 22:
                classes = []
            elif 30 <= code <= 37 or 90 <= code <= 97:
                color = COLORS[code - 30 if code < 90 else code - 82]
            elif code == 39:
                color = ""


def draw(shown, columns):
    lines = shown.rstrip("\n").split("\n")
    while lines and not re.sub(r"\x1b\[[0-9;]*m", "", lines[-1]).strip():
        lines.pop()
    width, height = columns * CELL_WIDTH + 2 * MARGIN, len(lines) * LINE_HEIGHT + BAR + 2 * MARGIN
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
           f'viewBox="0 0 {width:g} {height:g}" role="img">',
           "<title>A terminal session</title>", f"<style>{STYLE}</style>",
           f'<rect x="0.5" y="0.5" width="{width - 1:g}" height="{height - 1:g}" rx="9" class="window"/>']
    for i, color in enumerate(("#ff5f57", "#febc2e", "#28c840")):
        out.append(f'<circle cx="{20 + 20 * i}" cy="19" r="6" fill="{color}"/>')
    for row, line in enumerate(lines):
        y = BAR + MARGIN + row * LINE_HEIGHT + 8
        for column, text, classes, color in runs(line):
            style = (f' class="{classes}"' if classes else "") + (f' style="fill: {color}"' if color else "")
            out.append(f'<text x="{MARGIN + column * CELL_WIDTH:g}" y="{y}" textLength="{len(text) * CELL_WIDTH:g}" '
                       f'xml:space="preserve"{style}>{escape(text)}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("lines", nargs="+", metavar="LINE")
    parser.add_argument("--size", default="88x30")
    options = parser.parse_args()
    columns, rows = map(int, options.size.split("x"))
    with open(options.out, "w", encoding="utf8") as file:
        file.write(draw(record(options.lines, columns, rows), columns))


if __name__ == "__main__":
    main()
