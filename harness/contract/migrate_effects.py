"""Edits that make one bound with cases of version 1's `at_least` and `at_least_on`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from harness.contract.portable_scalars import portable
from harness.contract.strict_yaml import Key, parse
from harness.contract.text_edits import Edit, Source

_NUMBER = re.compile(r"[-+.0-9a-zA-Z]+")
Path = tuple[Key, ...]


def effect_edits(source: Source) -> Iterator[Edit]:
    """For each training effect with `at_least_on`. Raises ContractError where it is written in a way that no edit of
    the text turns into cases without losing a comment.
    """
    for number, claim in enumerate(source.document.value["claims"]):
        for path, judgement in [(("claims", number), claim), *_parts(claim, ("claims", number))]:
            effect = _mapping(_mapping(judgement.get("guards")).get("training_effect"))
            if "at_least_on" in effect:
                yield from _Effect(source, (*path, "guards", "training_effect"), effect).edits()


def _parts(claim: dict[str, Any], path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    for number, part in enumerate(claim.get("parts", [])):
        yield (*path, "parts", number), part


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


class _Effect:
    """One training effect: in flow style all stays in its braces, in block style the cases have a line each."""

    def __init__(self, source: Source, path: Path, effect: dict[str, Any]) -> None:
        self.source, self.path, self.effect = source, path, effect
        self.bound = source.value_at(*path, "at_least")
        self.key, self.cases = (place(*path, "at_least_on") for place in (source.key_at, source.value_at))
        self.in_flow = source.text[self.cases] == "{"

    def edits(self) -> Iterator[Edit]:
        text, end = self.source.text, self._end_of_cases()
        names: dict[str, Any] = self.effect["at_least_on"]
        if text[self.source.value_at(*self.path)] == "{":
            cases = ", ".join(self._case(name) for name in names)
            bound = self._number(self.bound, self.effect["at_least"])
            new = f"{{otherwise: {bound}, cases: [{cases}]}}" if names else bound
            yield Edit(self.bound, self._end_of_number(self.bound), new)
            yield self._removed_from_flow(end)
        elif names:
            yield from self._in_block(end)
        else:
            yield self._removed_line(end)

    def _in_block(self, end: int) -> Iterator[Edit]:
        source = self.source
        key = source.key_at(*self.path, "at_least")
        if source.start_of_line(key) != source.start_of_line(self.bound):
            self._refuse("`at_least` on two lines")
        indent = " " * (key - source.start_of_line(key))
        rest = source.text[self._end_of_number(self.bound) : source.end_of_line(self.bound)]
        number = self._number(self.bound, self.effect["at_least"])
        lines = [f"\n{indent}  otherwise: {number}{rest}", *(f"\n{indent}  {line}" for line in self._case_lines(end))]
        yield Edit(key + len("at_least:"), source.end_of_line(self.bound), "".join(lines))
        yield self._removed_line(end)

    def _case_lines(self, end: int) -> Iterator[str]:
        source, names = self.source, self.effect["at_least_on"]
        if self.in_flow:
            yield "cases:" + source.text[end : source.end_of_line(end)]
            yield from (f"  - {self._case(name)}" for name in names)
            return
        yield "cases:" + source.text[self.key + len("at_least_on:") : source.end_of_line(self.key)]
        ends = {source.start_of_line(self._value_of(name)): name for name in names}
        keys = {source.start_of_line(source.key_at(*self.path, "at_least_on", name)) for name in names}
        if keys != set(ends):
            self._refuse("a workload and its number on two lines")
        start = source.end_of_line(self.key) + 1
        for line in source.text[start:end].splitlines(keepends=True):
            name = ends.get(start)
            tail = "" if name is None else source.text[self._end_of_number(self._value_of(name)) :].splitlines()[0]
            yield f"  {line.strip()}" if name is None else f"  - {self._case(name)}{tail}"
            start += len(line)

    def _case(self, name: str) -> str:
        value = self._number(self._value_of(name), self.effect["at_least_on"][name])
        plain = parse(f"- {name}\n")
        word = name if plain.value == [name] and not plain.unportable else f'"{name}"'
        return f"{{workload: {word}, value: {value}}}"

    def _value_of(self, name: str) -> int:
        return self.source.value_at(*self.path, "at_least_on", name)

    def _number(self, start: int, value: float) -> str:
        text = self.source.text[start : self._end_of_number(start)]
        return portable(text, value) or text

    def _end_of_number(self, start: int) -> int:
        found = _NUMBER.match(self.source.text, start)
        return found.end() if found else start

    def _end_of_cases(self) -> int:
        """Behind the brace that closes them, or at the end of their last line."""
        if not self.in_flow:
            return self.source.end_of_line(max(self._value_of(name) for name in self.effect["at_least_on"]))
        end = self.source.text.index("}", self.cases) + 1
        if "#" in self.source.text[self.key : end]:
            self._refuse("a comment within `at_least_on`")
        return end

    def _removed_from_flow(self, end: int) -> Edit:
        text = self.source.text
        before = re.search(r",\s*$", text[: self.key])
        if before is not None:
            return Edit(before.start(), end, "")
        after = re.compile(r"\s*,\s*").match(text, end)
        return Edit(self.key, after.end() if after else end, "")

    def _removed_line(self, end: int) -> Edit:
        """With its line break. A comment behind the cases went with them."""
        source = self.source
        last = source.text.find("\n", source.end_of_line(end - 1))
        return Edit(source.start_of_line(self.key), len(source.text) if last < 0 else last + 1, "")

    def _refuse(self, got: str) -> None:
        document = self.source.document
        rule = "`at_least_on` can be rewritten as cases where no comment is lost"
        raise document.error((*self.path, "at_least_on"), rule, got=got, remedy="move it, and migrate again")
