#!/usr/bin/env python3
"""Writes the manual page of the program, made from what its --help prints.
man_page.py BINARY > nanovllm.1"""
import re
import subprocess
import sys


def run(*args):
    return subprocess.run(args, check=True, capture_output=True, text=True).stdout


def roff(text):
    """Text in which nothing has a meaning for roff. A line must not begin with its control characters."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    return re.sub(r"^\.", r"\\&.", text, flags=re.MULTILINE)


def sections(help_text):
    """The description, the usage, {title of a group: [(name, description), ...]}, the footer's lines, and the exit status."""
    help_text, status = help_text.split("Exit status: ")
    head, groups, footer = [], {}, []
    group = None
    for line in help_text.splitlines():
        title = re.fullmatch(r"(Arguments|Commands|.*[Oo]ptions):", line)
        if footer or line == "Examples:":
            footer.append(line)
        elif title:
            group = groups.setdefault(title[1], [])
        elif group is None:
            head.append(line)
        elif line.startswith(" " * 26):
            group[-1][1].append(line.strip())
        elif line.strip():
            name, *description = re.split(r"  +", line.strip(), maxsplit=1)
            group.append((name, description))
    description, usage = "\n".join(head).split("Usage: ")
    return description.strip(), usage.strip(), groups, footer, " ".join(status.split())


def entries(group):
    for name, description in group:
        if name != "-h, --help":  # every command has it
            yield f".TP\n.B {roff(name)}\n{roff(' '.join(description))}"


def body(footer):
    """Paragraphs are filled, indented lines are kept."""
    verbatim = False
    for line in footer:
        if line.startswith(" ") != verbatim:
            verbatim = not verbatim
            yield ".nf" if verbatim else ".fi"
        yield roff(line) if line else ".PP"
    if verbatim:
        yield ".fi"


def page(binary):
    version = run(binary, "--version").strip()
    description, usage, groups, footer, status = sections(run(binary, "--help"))
    yield f'.TH NANOVLLM 1 "" "{version}" "User Commands"'
    yield f".SH NAME\nnanovllm \\- {roff(description[0].lower() + description[1:].rstrip('.'))}"
    yield f".SH SYNOPSIS\n.B {roff(usage)}"
    yield ".SH OPTIONS"
    yield from entries(groups.pop("Options"))
    yield ".TP\n.B \\-h, \\-\\-help\nPrint the help of the program or, after a command, of the command"
    yield ".PP"
    yield from body(footer)
    yield ".SH COMMANDS"
    engine_options = None  # which several commands have, so they are described once
    todo = [[name] for name, _ in groups["Commands"]]
    while todo:
        words = todo.pop(0)
        about, usage, own, notes, own_status = sections(run(binary, *words, "--help"))
        yield f".SS {roff(usage)}\n{roff(about)}."
        todo = [words + [name] for name, _ in own.pop("Commands", [])] + todo
        for title, group in own.items():
            text = "\n".join(entries(group))
            if not text:
                continue
            if title == "Engine options" and text == (engine_options or text):
                engine_options = text
                yield ".PP\nEngine options: see\n.B ENGINE OPTIONS\nbelow."
            else:
                yield f".PP\n{title}:\n{text}"
        yield ".PP"
        yield from body(notes)
        if own_status != status:
            yield f".PP\nExit status: {roff(own_status)}"
    yield f".SH ENGINE OPTIONS\n{engine_options}"
    yield f".SH EXIT STATUS\n{roff(status)}"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print("\n".join(page(sys.argv[1])))
