#!/usr/bin/env python3
"""Replays a trace of a service at several speeds, and draws the latencies over the speed.
serve_rates.py --trace FILE [--model models/tiny-tales] [--speeds 0.5,1,2] [--num-prompts 100] [--binary FILE]
serve_rates.py --draw

Both write docs/images/serving_rates.svg. The first form measures: it starts the server, runs `nanovllm bench serve --trace`
with each speed, and writes bench/results/cpu_serving_rates.json. The second draws what is in this file."""
import argparse
import json
import math
import os
import sys

from measuring import call, write
from plot import ROOT, STYLE, text
from serve_load import Server

RESULTS = os.path.join(ROOT, "bench/results/cpu_serving_rates.json")
OUT = os.path.join(ROOT, "docs/images/serving_rates.svg")
KEYS = ["request_throughput", "output_throughput", "completed", "failed", "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms",
        "p99_tpot_ms"]
PANELS = [("Time to first token", "ttft_ms"), ("Time for each further token", "tpot_ms")]
WIDTH, HEIGHT, PANEL_WIDTH, LEFT, TOP, BOTTOM = 760, 300, 300, 56, 56, 250
LINES = """
.grid { stroke: #d1d9e0; stroke-width: 1 } .p50 { stroke: #1f6feb; fill: #1f6feb } .p99 { stroke: #9aa4af; fill: #9aa4af }
polyline { fill: none !important; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
  .grid { stroke: #3d444d } .p50 { stroke: #4493f8; fill: #4493f8 } .p99 { stroke: #6e7681; fill: #6e7681 }
}
"""


def measure(args):
    server = Server(args.binary, args.model, ["--disable-access-log"])
    with open(os.path.join(args.model, "config.json"), encoding="utf8") as file:
        vocab_size = json.load(file)["vocab_size"]
    rows = []
    try:
        for speed in args.speeds.split(","):
            output = call([args.binary, "bench", "serve", "--base-url", f"http://127.0.0.1:{server.port}",
                           "--trace", args.trace, "--speed", speed, "--num-prompts", str(args.num_prompts),
                           "--vocab-size", str(vocab_size), "--json"])
            figures = json.loads(output)
            rows.append({"speed": float(speed), **{key: round(figures[key], 3) for key in KEYS}})
            print(rows[-1], flush=True)
            if figures["failed"]:
                sys.exit(f"{figures['failed']} requests failed")
    finally:
        server.process.terminate()
        server.process.wait(60)
    write({"model": os.path.basename(os.path.normpath(args.model)), "trace": os.path.basename(args.trace),
           "num_prompts": args.num_prompts, "rates": rows}, RESULTS)


def panel(left, title, key, rows):
    """Both axes are logarithmic; the grid has a line for each power of ten."""
    speeds = [row["speed"] for row in rows]
    values = [row[f"{kind}_{key}"] for row in rows for kind in ("median", "p99")]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    first, last = math.log(speeds[0]), math.log(speeds[-1])

    def x(speed):
        return left + PANEL_WIDTH * (math.log(speed) - first) / (last - first)

    def y(value):
        return BOTTOM - (BOTTOM - TOP) * (math.log10(value) - low) / (high - low)

    parts = [text(left, TOP - 28, title, "title"), text(left, TOP - 12, "milliseconds", "small")]
    for power in range(low, high + 1):
        level = y(10.0**power)
        parts += [f'<line x1="{left}" y1="{level:.1f}" x2="{left + PANEL_WIDTH}" y2="{level:.1f}" class="grid"/>',
                  text(left - 6, level + 4, f"{10.0**power:,g}", "small", "end")]
    for speed in speeds:
        parts.append(text(x(speed), BOTTOM + 16, f"{speed:g}", "small", "middle"))
    rate = rows[0]["request_throughput"] / rows[0]["speed"]
    parts.append(text(left + PANEL_WIDTH / 2, BOTTOM + 34, f"speed of the trace; 1 is {rate:.1f} requests a second", "small",
                      "middle"))
    for css, kind, name, above in (("p99", "p99", "99th percentile", 9), ("p50", "median", "median", -17)):
        points = [(x(row["speed"]), y(row[f"{kind}_{key}"])) for row in rows]
        parts.append(f'<polyline class="{css}" points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in points)}"/>')
        parts += [f'<circle class="{css}" cx="{a:.1f}" cy="{b:.1f}" r="3"/>' for a, b in points]
        parts.append(text(points[-1][0], points[-1][1] - above, name, "small", "end"))
    return parts


def draw():
    with open(RESULTS, encoding="utf8") as file:
        rows = json.load(file)["rates"]
    parts = [part for i, (title, key) in enumerate(PANELS) for part in panel(LEFT + i * (PANEL_WIDTH + 68), title, key, rows)]
    with open(OUT, "w", encoding="utf8") as file:
        file.write("\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
            f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
            "<title>Latencies of the server over the speed of a trace</title>", f"<style>{STYLE}{LINES}</style>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" class="page"/>', *parts, "</svg>"]) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", action="store_true")
    parser.add_argument("--trace")
    parser.add_argument("--model", default=os.path.join(ROOT, "models/tiny-tales"))
    parser.add_argument("--speeds", default="0.5,1,2,3,4,6,8")
    parser.add_argument("--num-prompts", type=int, default=100)
    parser.add_argument("--binary", default=os.path.join(ROOT, "build/release/nanovllm"))
    args = parser.parse_args()
    if args.draw == bool(args.trace):
        parser.error("give --trace or --draw")
    if args.trace:
        measure(args)
    draw()


if __name__ == "__main__":
    main()
