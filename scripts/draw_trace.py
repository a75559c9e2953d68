#!/usr/bin/env python3
"""Draws a trace that `nanovllm ... --trace FILE` wrote as an SVG: a column for each step, a row for each request.
draw_trace.py TRACE OUT.svg [--steps FIRST-LAST]

docs/learn.md explains the pictures. It needs only the standard library."""
import argparse
import json
from xml.sax.saxutils import escape

LEFT, COLUMN, ROW, LINE, GAP, MARGIN = 128, 62, 40, 22, 12, 14  # pixels
# One look for light pages and one for dark pages; the background belongs to the picture.
STYLE = """
svg { font-family: -apple-system, "Segoe UI", "Noto Sans", Helvetica, Arial, sans-serif; font-size: 13px }
.page { fill: #ffffff } text { fill: #1f2328 } .small { font-size: 11px } .label { fill: #59636e }
.grid { stroke: #d1d9e0 } .prefill { fill: #a5d0ff } .decode { fill: #a9e5b0 } .queue { fill: #e9edf1 }
.preempted { fill: #ffc1b5 } .bar { fill: #c8cfd6 }
@media (prefers-color-scheme: dark) {
  .page { fill: #0d1117 } text { fill: #e6edf3 } .label { fill: #9198a1 } .grid { stroke: #30363d }
  .prefill { fill: #1c4d8c } .decode { fill: #1a5c2d } .queue { fill: #262c36 } .preempted { fill: #8e2a26 }
  .bar { fill: #454c54 }
}
"""
LEGEND = [("queue", "waits in the queue"), ("prefill", "prefill"), ("decode", "decode"),
          ("preempted", "preempted")]


def read(path):
    """The events of a trace, in the order of their times. The end of the file may be missing."""
    with open(path, encoding="utf8") as file:
        lines = (line.rstrip().rstrip(",") for line in file)
        events = [json.loads(line) for line in lines if line.startswith("{")]
    return sorted(events, key=lambda event: event["ts"])


class Trace:
    """A column is a call of LLMEngine::step(). It may submit no step: then it only waits for the one before."""

    def __init__(self, events, first, last):
        names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
        turns = [e for e in events if e["name"] == "engine step"]
        self.turns = [e for e in turns if first <= e["args"].get("step", e["args"].get("output_of_step", 0)) <= last]
        self.milliseconds = {e["args"]["step"]: e["dur"] / 1000 for e in events
                             if e["name"] == "step" and names[e["tid"]] == "device"}
        counts = [(e["ts"], e["args"]["value"]) for e in events if e["name"] == "free blocks"]
        self.free_blocks = [[value for at, value in counts if at < turn["ts"] + turn["dur"] + 0.001][-1] for turn in self.turns]
        self.requests = {}  # label: its cell in each column
        for event in events:
            if event["name"] == "queue":
                label = names[event["tid"]].removeprefix("request ")
                cells = self.cells(label, event["ts"], turns)
                self.requests[label] = [cell for turn, cell in zip(turns, cells) if turn in self.turns]

    @staticmethod
    def cells(label, arrival, turns):
        """(CSS class, tokens, cached tokens) or None for each column."""
        cells, idle = [], "queue"
        for turn in turns:
            chunk = next((row for row in turn["args"]["prefills"] if row["request"] == label), None)
            if chunk:
                cells.append(("prefill", chunk["tokens"], chunk["cached"]))
            elif label in turn["args"]["decodes"]:
                cells.append(("decode", 1, 0))
            else:
                cells.append((idle, 0, 0) if turn["ts"] >= arrival else None)
                continue
            idle = "preempted"  # in a later step without it
        while cells and cells[-1] and not cells[-1][1]:
            cells.pop()  # it ended with its last token
        return cells + [None] * (len(turns) - len(cells))


def text(x, y, content, css="", anchor="middle"):
    return f'<text x="{x:g}" y="{y:g}" class="{css}" text-anchor="{anchor}">{escape(str(content))}</text>'


def draw(trace, title):
    parts, x = [], LEFT - 100
    for css, meaning in LEGEND:
        parts += [f'<rect x="{x}" y="{MARGIN}" width="14" height="14" rx="2" class="{css}"/>',
                  text(x + 20, MARGIN + 12, meaning, "small label", "start")]
        x += 36 + 6 * len(meaning)
    columns = [LEFT + i * COLUMN for i in range(len(trace.turns))]
    width = max(LEFT + COLUMN * len(columns), x) + MARGIN
    y = MARGIN + 40
    parts.append(text(LEFT - 10, y, "step", "label", "end"))
    parts += [text(x + COLUMN / 2, y, turn["args"].get("step", "–"), "label") for x, turn in zip(columns, trace.turns)]
    y += GAP
    for label, cells in trace.requests.items():
        parts.append(text(LEFT - 10, y + ROW / 2 + 3, f"request {label}", "", "end"))
        for x, cell in zip(columns, cells):
            if cell is None:
                continue
            css, tokens, cached = cell
            parts.append(f'<rect x="{x + 1}" y="{y}" width="{COLUMN - 2}" height="{ROW - 4}" rx="3" class="{css}"/>')
            if tokens:
                parts.append(text(x + COLUMN / 2, y + (15 if cached else ROW / 2 + 3), tokens))
            if cached:
                parts.append(text(x + COLUMN / 2, y + 29, f"{cached} cached", "small"))
        y += ROW
    y += GAP
    parts.append(f'<path d="M{MARGIN} {y - GAP / 2:g}H{width - MARGIN}" class="grid"/>')
    args = [turn["args"] for turn in trace.turns]
    rows = [("tokens computed", [a["prefill_tokens"] + a["decode_tokens"] or "" for a in args])]
    rows += [(f"blocks {what}", [a[f"blocks_{what}"] or "" for a in args]) for what in ("taken", "shared", "freed")]
    rows.append(("free blocks", trace.free_blocks))
    for name, values in rows:
        parts.append(text(LEFT - 10, y + 15, name, "label", "end"))
        parts += [text(x + COLUMN / 2, y + 15, value) for x, value in zip(columns, values)]
        y += LINE
    # The times differ from run to run; what is drawn of them has the class "time".
    times = [trace.milliseconds.get(a.get("step"), 0) for a in args]
    parts.append(text(LEFT - 10, y + 15, "device, ms", "label", "end"))
    for x, time in zip(columns, times):
        if not time:
            continue
        length = (COLUMN - 6) * time / max(times)
        parts += [f'<rect x="{x + 3}" y="{y + 2}" width="{length:.1f}" height="{LINE - 5}" rx="2" class="time bar"/>',
                  text(x + COLUMN / 2, y + 15, f"{time:.1f}", "time small")]
    height = y + LINE + MARGIN
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>",
        f'<rect width="{width}" height="{height}" rx="8" class="page"/>', *parts, "</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("out")
    parser.add_argument("--steps", default="1-24", help="the columns; 1-24")
    options = parser.parse_args()
    first, _, last = options.steps.partition("-")
    trace = Trace(read(options.trace), int(first), int(last or first))
    if not trace.turns:
        parser.error(f"{options.trace} has no steps {options.steps}")
    with open(options.out, "w", encoding="utf8") as file:
        file.write(draw(trace, f"The steps {options.steps} of a trace"))


if __name__ == "__main__":
    main()
