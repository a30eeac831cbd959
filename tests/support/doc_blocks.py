"""Read code blocks of documentation pages, with the comment above each that says how it is tested.

A comment on the line above a block has one of these forms; `sh` and `console` blocks without a comment are run:

    <!-- not run here: REASON -->    its commands are parsed, but not run
    <!-- DIR: PATH -->               run, with the word DIR replaced by PATH
    <!-- file: NAME -->              the reader saves the block as this file
    <!-- change to: NAME -->         the reader changes the file as the `diff` block says
    <!-- written: NAME -->           an earlier command has written this text
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import write_site

ROOT = Path(__file__).parents[2]
PAGES = write_site.sources(ROOT)
# pages that a reader follows from their first block on, up to a heading or to their end
FOLLOWED = {
    "README.md": "## From here",
    "docs/plugging-in-a-trainer.md": "## Which functions are understood",
    "docs/recording-a-loop.md": None,
    "docs/tutorial.md": None,
}
SHELLS = ("sh", "console")
BLOCK = re.compile(
    r"(?:^<!-- (?P<note>[^\n]*) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class Block:
    """A block of a page; `line` is its first line."""

    page: str
    line: int
    language: str
    text: str
    note: str

    def noted(self, form: str) -> str | None:
        """Return the comment's text after the words of this form; None for a different form or no comment."""
        return self.note.removeprefix(form).strip() if self.note.startswith(form) else None


def blocks(page: str) -> list[Block]:
    """Return all blocks of a page, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, found.start()) + 1, found["language"], found["text"], found["note"] or "")
        for found in BLOCK.finditer(text)
    ]


def followed(page: str) -> list[Block]:
    """Return the blocks of a page whose steps a reader follows in order; none for other pages."""
    text, end = (ROOT / page).read_text(encoding="utf-8"), FOLLOWED.get(page, "")
    last = text[: len(text) if end is None else text.index(end)].count("\n")
    return [block for block in blocks(page) if block.line <= last]


class Command(NamedTuple):
    """A shell line, and the output that the page shows for it."""

    line: str
    shown: list[str]


def commands(block: Block) -> list[Command]:
    """Return the commands of a block: each line of `sh`, or each line of `console` that starts with `$`."""
    if block.language == "sh":
        return [Command(line, []) for line in block.text.splitlines() if line.strip()]
    found: list[Command] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:], []))
        else:
            found[-1].shown.append(line)
    return found


def shows(printed: list[str], shown: list[str]) -> bool:
    """Return True if the lines match the page, where `…` stands for any lines, or within a line for any text."""
    if not shown:
        return not printed
    if shown[0].strip() == "…":
        return any(shows(printed[start:], shown[1:]) for start in range(len(printed) + 1))
    pattern = re.sub(r"([\[\]?*])", r"[\1]", shown[0]).replace("…", "*")
    return bool(printed) and fnmatchcase(printed[0].rstrip(), pattern.rstrip()) and shows(printed[1:], shown[1:])


def programs(line: str) -> Iterator[list[str]]:
    """Yield the arguments of each program that a shell line starts, without variables, redirections and comments."""
    words = shlex.shlex(line, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    started: list[str] = []
    for word in [*words, ";"]:
        if not set(word) <= set("();<>|&"):
            started.append(word)
            continue
        while started and re.match(r"[A-Z_]+=", started[0]):
            del started[0]
        if started:
            yield started
        started = ["file"] if set(word) <= set("<>") else []
