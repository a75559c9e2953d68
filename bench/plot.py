#!/usr/bin/env python3
"""Draws docs/images/performance.svg, the plot of README.md, from h200.json and peers_h200.json in bench/results.
plot.py [--check]

With --check it writes nothing, and fails if the file is not what it would draw. It needs only the standard library."""
import json
import os
import sys
from xml.sax.saxutils import escape

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
OUT = os.path.join(ROOT, "docs/images/performance.svg")
SHAPES = ["Qwen3-0.6B", "Qwen3-8B"]
# (title, what is better, the key of our results and of the peers')
METRICS = [
    ("Throughput of 256 requests", "output tokens/s, higher is better", "bench_256_tok_s", "bench_256_tok_s"),
    ("Latency, one request", "ms per output token, lower is better", "decode_bs1_ms", "decode_bs1_ms"),
    ("Start of the process to first token", "seconds, lower is better", "process_start_to_first_token_s",
     "process_start_to_first_token_warm_compile_cache_s"),
]
WIDTH, PANEL_WIDTH, PANEL_HEIGHT, LEFT, TOP = 940, 302, 132, 18, 30
BAR_HEIGHT, BAR_STEP, LABEL_WIDTH, BAR_WIDTH = 16, 23, 72, 150
# One look for light pages and one for dark pages; the background belongs to the picture.
STYLE = """
svg { font-family: -apple-system, "Segoe UI", "Noto Sans", Helvetica, Arial, sans-serif; font-size: 12px }
.page { fill: #ffffff } text { fill: #1f2328 } .small { fill: #59636e; font-size: 11px } .title { font-weight: 600 }
.shape { font-weight: 600; font-size: 14px }
.here { fill: #1f6feb } .vllm { fill: #9aa4af } .nano { fill: #c8cfd6 }
@media (prefers-color-scheme: dark) {
  .page { fill: #0d1117 } text { fill: #e6edf3 } .small { fill: #9198a1 }
  .here { fill: #4493f8 } .vllm { fill: #6e7681 } .nano { fill: #454c54 }
}
"""


def text(x, y, content, css="", anchor="start"):
    return f'<text x="{x:g}" y="{y:g}" class="{css}" text-anchor="{anchor}">{escape(content)}</text>'


def number(value):
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def panel(x, y, metric, values):
    """values: (name, CSS class, value) for each engine."""
    title, unit, *_ = metric
    parts = [text(x, y, title, "title"), text(x, y + 16, unit, "small")]
    for i, (name, css, value) in enumerate(values):
        top = y + 28 + i * BAR_STEP
        length = max(2, BAR_WIDTH * value / max(v for *_, v in values))
        weight = "title" if css == "here" else ""
        parts += [
            text(x + LABEL_WIDTH - 6, top + 12.5, name, weight, "end"),
            f'<rect x="{x + LABEL_WIDTH}" y="{top}" width="{length:.1f}" height="{BAR_HEIGHT}" rx="2" class="{css}"/>',
            text(x + LABEL_WIDTH + length + 5, top + 12.5, number(value), weight),
        ]
    return parts


def draw():
    def load(name):
        with open(os.path.join(ROOT, "bench/results", name), encoding="utf8") as file:
            return json.load(file)

    here, peers = load("h200.json"), load("peers_h200.json")
    parts, height = [], TOP
    for shape in SHAPES:
        parts.append(text(LEFT, height - 4, f"{shape}, bfloat16, one H200", "shape"))
        for column, metric in enumerate(METRICS):
            *_, key, peer_key = metric
            nano, vllm = (peers[name][shape + " tp1"] for name in ("nano_vllm", "vllm"))
            values = [
                ("this", "here", here["shapes"][shape][key]),
                ("vLLM", "vllm", vllm.get(peer_key, vllm[key])),
                ("nano-vLLM", "nano", nano.get(peer_key, nano[key])),
            ]
            parts += panel(LEFT + column * PANEL_WIDTH, height + 20, metric, values)
        height += PANEL_HEIGHT + 24
    parts.append(text(LEFT, height - 14, "Random weights in the shapes of the published models. vLLM 0.26 with "
                      "FlashAttention 3, started with a warm compile cache; nano-vLLM with FlashAttention 2.", "small"))
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
             f'viewBox="0 0 {WIDTH} {height}" role="img">',
             "<title>Throughput, latency and start beside vLLM and nano-vLLM</title>", f"<style>{STYLE}</style>",
             f'<rect width="{WIDTH}" height="{height}" rx="8" class="page"/>', *parts, "</svg>"]
    return "\n".join(lines) + "\n"


def main():
    if sys.argv[1:] == ["--check"]:
        with open(OUT, encoding="utf8") as file:
            sys.exit(None if file.read() == draw() else f"{OUT} is not what bench/plot.py draws; run it")
    if sys.argv[1:]:
        sys.exit(__doc__)
    with open(OUT, "w", encoding="utf8") as file:
        file.write(draw())


if __name__ == "__main__":
    main()
