"""The text of a YAML file with the places of its keys and values, for edits that leave everything else as it is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from harness.contract.strict_yaml import Document, Key, Position


@dataclass(frozen=True)
class Edit:
    """A span of the text (character indices, from 0) with what it becomes."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Source:
    """A document that was read, to be edited; indices are those of characters of its text."""

    document: Document

    @property
    def text(self) -> str:
        return self.document.text

    def key_at(self, *path: Key) -> int:
        """Where the key at a path begins."""
        return self._index(self.document.keys[path])

    def value_at(self, *path: Key) -> int:
        """Where the value at a path begins."""
        return self._index(self.document.values[path])

    def end_of_line(self, index: int) -> int:
        """Where the line of a character ends, before its line break."""
        end = self.text.find("\n", index)
        end = len(self.text) if end < 0 else end
        return end - 1 if end > index and self.text[end - 1] == "\r" else end

    def start_of_line(self, index: int) -> int:
        return self.text.rfind("\n", 0, index) + 1

    def change(self, edit: Edit) -> str:
        """`line:column: old -> new` of an edit, each in one line."""
        line = self.text.count("\n", 0, edit.start) + 1
        column = edit.start - self.start_of_line(edit.start) + 1
        old, new = (" ".join(text.split()) for text in (self.text[edit.start : edit.end], edit.text))
        return f"{line}:{column}: `{old}` -> `{new}`" if new else f"{line}:{column}: `{old}` removed"

    def _index(self, position: Position) -> int:
        line, column = position
        return self._starts[line - 1] + column - 1

    @cached_property
    def _starts(self) -> list[int]:
        starts = [0]
        for line in self.text.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        return starts
