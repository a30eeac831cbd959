"""Matplotlib's SVG written small: a flat list of shapes, one class a style, relative coordinates of a tenth of a point.

A report holds dozens of images and must stay small enough to mail, and most of what matplotlib writes is nesting,
names that nothing refers to, and digits that no screen shows.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

_LETTERS = "Verdana,DejaVu Sans,sans-serif"  # of the widths that the layout was made for, where there is one
_LONG = 100  # characters of a path that are worth a name
_INHERITED = ("class", "clip-path")


@dataclass
class _Names:
    """Short names, given out in order of first use."""

    prefix: str
    given: dict[str, str] = field(default_factory=dict)

    def of(self, what: str) -> str:
        return self.given.setdefault(what, f"{self.prefix}{len(self.given)}")


@dataclass(frozen=True)
class _Leaf:
    """Something drawn: a tag, its attributes, its text."""

    tag: str
    attributes: dict[str, str]
    text: str = ""

    @property
    def look(self) -> tuple[str | None, ...]:
        return tuple(self.attributes.get(name) for name in _INHERITED)


def compact(svg: str) -> tuple[str, str]:
    """An image of matplotlib as (the same image without its style rules, the rules as CSS), in single quotes.

    The metadata goes: it holds the date, and equal runs must give equal bytes.
    """
    root = ET.fromstring(svg)  # noqa: S314 - matplotlib's own output
    classes, ids = _Names("k"), _Names("i")
    leaves = list(_leaves(root, {}, classes, ids))
    courses, shapes = _once(_joined([leaf for leaf in leaves if leaf.tag != "text"], classes), ids)
    texts = [leaf for leaf in leaves if leaf.tag == "text"]  # last: a line never runs over a letter
    head = " ".join(f"{name}='{root.attrib[name]}'" for name in ("width", "height", "viewBox"))
    defs = "".join([*_definitions(root, classes, ids), *courses])
    body = "".join(_grouped(shapes)) + "".join(_grouped(texts))
    image = f"<svg {head} xmlns='http://www.w3.org/2000/svg'><defs>{defs}</defs>{body}</svg>"
    rules = "".join(f".{name}{{{rule}}}" for rule, name in classes.given.items())
    return image, f"*{{stroke-linejoin:round}}text{{font-family:{_LETTERS}}}{rules}"


def _leaves(node: ET.Element, inherited: Mapping[str, str], classes: _Names, ids: _Names) -> Iterator[_Leaf]:
    """What is drawn, in order, each with all its attributes: groups only pass theirs on."""
    for child in node:
        tag, attributes = _tag(child), {**inherited, **_attributes(child, classes, ids)}
        if tag == "g":
            yield from _leaves(child, attributes, classes, ids)
        elif tag not in {"defs", "metadata"}:
            yield _Leaf(tag, attributes, child.text or "" if tag == "text" else "")


def _tag(node: ET.Element) -> str:
    return node.tag.rpartition("}")[2]


def _attributes(node: ET.Element, classes: _Names, ids: _Names) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in node.attrib.items():
        match key.rpartition("}")[2]:
            case "style" if value:
                found["class"] = classes.of(_rule(value))
            case "clip-path":
                found["clip-path"] = f"url(#{ids.of(value[5:-1])})"
            case "href":
                found["href"] = f"#{ids.of(value[1:])}"
            case "d":
                found["d"] = _path(value)
            case "transform" if "rotate(-0" not in value:
                found["transform"] = _rounded(value)
            case "x" | "y" | "width" | "height" as name:
                found[name] = _rounded(value)
            case _:
                pass  # ids of groups: nothing refers to them
    return found


def _rule(style: str) -> str:
    """A style as CSS without spaces; the family of letters is the same for all."""
    said = [part.strip().replace(": ", ":").replace(", ", ",") for part in style.split(";")]
    return ";".join(part for part in said if part and not part.startswith("font-family"))


def _definitions(root: ET.Element, classes: _Names, ids: _Names) -> Iterator[str]:
    """The marks and clipping rectangles that something drawn refers to."""
    for defs in root.iter("{http://www.w3.org/2000/svg}defs"):
        for node in defs:
            name = node.get("id", "")
            if name not in ids.given:
                continue
            inner = "".join(_written(_Leaf(_tag(part), _attributes(part, classes, ids))) for part in node)
            node.attrib.pop("style", None)  # a mark takes its colours from where it is used
            start = _start(_tag(node), {"id": ids.of(name), **_attributes(node, classes, ids)})
            yield f"{start}>{inner}</{_tag(node)}>" if inner else f"{start}/>"


def _joined(shapes: list[_Leaf], classes: _Names) -> list[_Leaf]:
    """Lines of one look that follow each other as one path."""
    lines = {name for rule, name in classes.given.items() if "fill:none" in rule}
    joined: list[_Leaf] = []
    for leaf in shapes:
        last = joined[-1] if joined else None
        like = last is not None and leaf.tag == last.tag == "path" and leaf.look == last.look
        if like and last is not None and leaf.attributes.get("class") in lines:
            path = last.attributes["d"] + leaf.attributes["d"]
            joined[-1] = _Leaf("path", {**last.attributes, "d": path})
        else:
            joined.append(leaf)
    return joined


def _once(shapes: list[_Leaf], ids: _Names) -> tuple[list[str], list[_Leaf]]:
    """Arms that train alike give one curve in several looks: its path is defined once and drawn by reference."""
    times = Counter(leaf.attributes.get("d", "") for leaf in shapes)
    often = {path: ids.of(path) for path, count in times.items() if count > 1 and len(path) > _LONG}
    drawn = [
        _Leaf("use", {**{key: leaf.attributes[key] for key in leaf.attributes if key != "d"}, "href": f"#{name}"})
        if (name := often.get(leaf.attributes.get("d", "")))
        else leaf
        for leaf in shapes
    ]
    return [f"<path id='{name}' d='{path}'/>" for path, name in often.items()], drawn


def _grouped(leaves: list[_Leaf]) -> Iterator[str]:
    """Neighbours of one look say it once, in a group."""
    for look, run in itertools.groupby(leaves, key=lambda leaf: leaf.look):
        members = list(run)
        if len(members) == 1:
            yield _written(members[0])
            continue
        shared = {name: value for name, value in zip(_INHERITED, look, strict=True) if value is not None}
        bare = [
            _Leaf(leaf.tag, {key: value for key, value in leaf.attributes.items() if key not in shared}, leaf.text)
            for leaf in members
        ]
        yield f"{_start('g', shared)}>{''.join(map(_written, bare))}</g>"


def _written(leaf: _Leaf) -> str:
    start = _start(leaf.tag, leaf.attributes)
    return f"{start}>{escape(leaf.text)}</{leaf.tag}>" if leaf.text else f"{start}/>"


def _start(tag: str, attributes: Mapping[str, str]) -> str:
    return " ".join([f"<{tag}", *(f"{key}='{value}'" for key, value in attributes.items())])


def _rounded(text: str) -> str:
    return re.sub(r"-?\d+\.\d+", lambda found: _tenths(round(10 * float(found[0]))), text)


def _tenths(value: int) -> str:
    """A number of tenths as SVG's shortest decimal: `.3`, `-1.2`, `4`."""
    return f"{value / 10:.1f}".removesuffix(".0").replace("-0.", "-.").removeprefix("0") or "0"


def _path(text: str) -> str:
    """A path of straight lines in steps from point to point; one with curves is only rounded."""
    tokens = text.split()
    if set(re.findall(r"[A-Za-z]", text)) - set("MLz"):
        return re.sub(r" ?([A-Za-z]) ?", r"\1", _rounded(" ".join(tokens)))
    written: list[str] = []
    points: list[tuple[int, int]] = []
    place = 0
    while place < len(tokens):
        command = tokens[place]
        if command in "Mz" and points:
            written.append(_steps(points))
            points = []
        if command == "z":
            written.append("z")
            place += 1
            continue
        points.append((round(10 * float(tokens[place + 1])), round(10 * float(tokens[place + 2]))))
        place += 3
    return "".join([*written, _steps(points) if points else ""])


def _steps(points: list[tuple[int, int]]) -> str:
    """`M` to the first point, then steps; points on the straight way between their neighbours are left out."""
    steps: list[tuple[int, int]] = []
    for (x, y), (next_x, next_y) in itertools.pairwise(points):
        right, down = next_x - x, next_y - y
        if steps and right * steps[-1][1] == down * steps[-1][0] and right * steps[-1][0] + down * steps[-1][1] >= 0:
            steps[-1] = (steps[-1][0] + right, steps[-1][1] + down)
        else:
            steps.append((right, down))
    pairs = (f"{_tenths(right)} {_tenths(down)}".replace(" -", "-") for right, down in steps)
    start = f"M{_tenths(points[0][0])} {_tenths(points[0][1])}"
    return start + (f"l{' '.join(pairs).replace(' -', '-')}" if steps else "")
