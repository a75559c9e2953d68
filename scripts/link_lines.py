#!/usr/bin/env python3
"""Sets the line numbers of the links in docs/from-nano-vllm.md: [`Scheduler::schedule`](file#L42) leads to the line that
defines the name. Run it after changes of the code; a test checks the numbers.
link_lines.py [--check]"""
import os
import re
import sys

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "docs", "from-nano-vllm.md")
LINK = re.compile(r"\[`([^`\]]+)`\]\(([^)#\s]+\.(?:h|cpp|cuh?|py))(?:#L\d+)?\)")


def line_of(name, path):
    """The number of the line that most likely defines the name: the first one of the first pattern that matches; 0: none."""
    with open(path, encoding="utf8") as file:
        lines = file.read().splitlines()
    last = re.escape(re.findall(r"\w+", name)[-1])
    qualified = re.escape(re.sub(r"\(.*", "", name))
    code = r"^(?!\s*(?://|#|\*|return\b))[^/]*?"  # not in a comment, and no call after return
    for pattern in (
        rf"^\s*(?:template.*)?(?:class|struct|enum class|enum)\b[^;]*\b{last}\b[^;]*$",
        rf"^\s*(?:def|class) {last}\b",
        rf'\.def\w*\("{last}"',
        rf"^[\w:<>,&*\s\[\]]*\b{qualified}\(",
        rf"^[\w:<>,&*\s\[\]~]+[\s&*](?:\w+::)*{last}\(",
        rf"{code}\b{last}\b",
        rf"\b{last}\b",
    ):
        for number, line in enumerate(lines, 1):
            if re.search(pattern, line):
                return number
    return 0


def main():
    with open(PAGE, encoding="utf8") as file:
        text = file.read()

    def with_line(match):
        number = line_of(match[1], os.path.join(os.path.dirname(PAGE), match[2]))
        return f"[`{match[1]}`]({match[2]}{f'#L{number}' if number else ''})"

    new = LINK.sub(with_line, text)
    if new == text:
        return
    if "--check" in sys.argv[1:]:
        sys.exit("the line numbers in docs/from-nano-vllm.md are old; run scripts/link_lines.py")
    with open(PAGE, "w", encoding="utf8") as file:
        file.write(new)


main()
