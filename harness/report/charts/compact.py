"""Rewrite matplotlib's SVG so that it is small, with a flat list of shapes, classes for styles, and relative paths.

A report has dozens of images and must stay small enough for a mail. Most of matplotlib's output can be left out: nested
groups, ids that nothing refers to, and digits that no screen can show.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

ID = "\ue000"  # prefix of every id in an image; the page replaces it by a prefix that is unique on the page
ALONG = "along"  # id of texts that label a place on the horizontal axis, such as tick labels
_SVG = "{http://www.w3.org/2000/svg}"
# prefix of a group's id -> name of the attribute that contains the rest of the id
_NAMES = {"series:": "data-s", "mark:": "data-n"}
_INHERITED = ("class", "clip-path", *_NAMES.values(), "data-t")
# Image units in one point. One CSS pixel has two image units, so whole numbers are exact enough.
UNITS = 8 / 3
_LONG = 100  # a repeated path is defined only once if it has at least this number of characters


@dataclass
class _Looks:
    """Styles by class name. The name of a class is computed from its style, so equal styles share a class on the whole
    page."""

    rules: dict[str, str] = field(default_factory=dict)

    def of(self, style: str) -> str:
        said = [part.strip().replace(": ", ":").replace(", ", ",") for part in style.split(";")]
        # leave out the font family, because the page sets it
        rule = ";".join(_scaled(part) for part in said if part and not part.startswith("font-family"))
        name = f"s{hashlib.sha256(rule.encode()).hexdigest()[:5]}"
        self.rules[name] = rule
        return name


def _scaled(rule: str) -> str:
    """Return a style declaration with its lengths converted to units of the image."""
    name, _, value = rule.partition(":")
    if name not in {"stroke-width", "stroke-dasharray", "stroke-dashoffset", "font-size"}:
        return rule
    return f"{name}:{re.sub(r'[0-9.]+', lambda found: f'{float(found[0]) * UNITS:.3g}', value)}"


@dataclass
class _Ids:
    """Short ids for the elements of an image, numbered in the order of their first use."""

    given: dict[str, str] = field(default_factory=dict)

    def of(self, what: str) -> str:
        return self.given.setdefault(what, f"{ID}{len(self.given)}")


@dataclass(frozen=True)
class _Leaf:
    """A shape that is drawn: tag, attributes and text. joins: True if `_joined` may merge it with its neighbors."""

    tag: str
    attributes: dict[str, str]
    text: str = ""
    joins: bool = False

    @property
    def look(self) -> tuple[str | None, ...]:
        return tuple(self.attributes.get(name) for name in _INHERITED)


@dataclass(frozen=True)
class Scale:
    """The position of a pair of axes in an image: the left and the upper edge of the axes, in points.

    attributes: data with which the page's script converts positions to values.
    """

    left: float
    top: float
    attributes: Mapping[str, str]


def compact(svg: str, scales: Sequence[Scale] = ()) -> tuple[str, str, dict[str, str]]:
    """Return three things for a matplotlib image: its view box, the content of its `svg` element, and styles by class.

    Attributes are in single quotes, and ids begin with `ID`. Metadata is removed, because it contains the date, and
    equal runs must give equal bytes. Data for the script of the page is kept: names of series (`data-s`) and of other
    marks (`data-n`), tick labels of the horizontal axis (`data-t`), and the scale of each pair of axes (in attributes
    of the clipping rectangle).
    """
    root = ET.fromstring(svg)  # noqa: S314 - matplotlib's own output
    looks, ids = _Looks(), _Ids()
    marks = {node.get("id", ""): node.get("d", "") for node in root.iter(f"{_SVG}path") if node.get("id")}
    leaves = [_placed(leaf, marks, looks) for leaf in _leaves(root, {}, looks, ids)]
    courses, shapes = _once(_joined([leaf for leaf in leaves if leaf.tag != "text"]), ids)
    texts = [leaf for leaf in leaves if leaf.tag == "text"]  # draw the texts last, so that no line covers a text
    body = "".join(_grouped(shapes)) + "".join(_grouped(texts))
    used = {name: rule for name, rule in looks.rules.items() if name in body}
    box = " ".join(str(_units(value)) for value in root.attrib["viewBox"].split())
    return box, f"<defs>{''.join([*_clips(root, ids, scales), *courses])}</defs>{body}", used


def _leaves(node: ET.Element, inherited: Mapping[str, str], looks: _Looks, ids: _Ids) -> Iterator[_Leaf]:
    """Yield each shape that is drawn, in order, with its attributes and the attributes of the groups around it."""
    for child in node:
        tag, attributes = child.tag.removeprefix(_SVG), {**inherited, **_attributes(child, looks, ids)}
        if tag == "g":
            yield from _leaves(child, attributes, looks, ids)
        elif tag not in {"defs", "metadata"}:
            line = "fill: none" in child.get("style", "")
            if tag != "text":
                attributes.pop("data-t", None)
            yield _Leaf(tag, attributes, child.text or "" if tag == "text" else "", joins=line)


def _attributes(node: ET.Element, looks: _Looks, ids: _Ids) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in node.attrib.items():
        match key.rpartition("}")[2]:
            case "style" if value:
                found["class"] = looks.of(value)
            case "clip-path":
                found["clip-path"] = f"url(#{ids.of(value[5:-1])})"
            case "href":
                found["href"] = value[1:]
            case "d":
                found["d"] = _path(value)
            case "transform" if turned := re.fullmatch(r"rotate\((-90) (\S+) (\S+)\)", value):
                found["transform"] = f"rotate(-90 {_units(turned[2])} {_units(turned[3])})"
            case "x" | "y" | "width" | "height" as name:
                found[name] = str(_units(value))
            case "id":
                found.update(_named(value))
            case _:
                pass
    return found


def _named(group: str) -> dict[str, str]:
    """Return the attributes that every shape in a group gets because of the group's id in matplotlib's SVG."""
    if group.startswith(("xtick", ALONG)):
        return {"data-t": ""}
    return {name: _quoted(group.removeprefix(begins)) for begins, name in _NAMES.items() if group.startswith(begins)}


def _quoted(text: str) -> str:
    """Return the text escaped for an attribute in single quotes."""
    return escape(text, {"'": "&#39;"})


def _placed(leaf: _Leaf, marks: Mapping[str, str], looks: _Looks) -> _Leaf:
    """Return a path for a marker that matplotlib draws by reference (`use`), and any other shape unchanged. A round
    marker becomes a dot with a round stroke."""
    if leaf.tag != "use":
        return leaf
    mark, rule = marks[leaf.attributes["href"]], looks.rules[leaf.attributes.get("class", "")]
    x, y = int(leaf.attributes["x"]), int(leaf.attributes["y"])
    rest = {key: value for key, value in leaf.attributes.items() if key not in {"href", "x", "y"}}
    if "C" in mark:
        colour, radius = re.search(r"fill:([^;]+)", rule), abs(float(mark.split()[2]))
        stroke = colour[1] if colour else "none"
        rest["class"] = looks.of(f"fill:none;stroke:{stroke};stroke-width:{2 * radius + 1:.2g};stroke-linecap:round")
        return _Leaf("path", {**rest, "d": f"M{x} {y}h0"}, joins=True)
    at = (x / UNITS, y / UNITS)
    moved = re.sub(r"(-?[\d.]+) (-?[\d.]+)", lambda found: f"{float(found[1]) + at[0]} {float(found[2]) + at[1]}", mark)
    return _Leaf("path", {**rest, "d": _path(moved)}, joins=True)


def _clips(root: ET.Element, ids: _Ids, scales: Sequence[Scale]) -> Iterator[str]:
    """Yield the clipping rectangles that shapes refer to. Each rectangle gets the attributes of the scale of its
    axes."""
    for clip in root.iter(f"{_SVG}clipPath"):
        name = clip.get("id", "")
        if name in ids.given:
            inner = "".join(
                _written(_Leaf("rect", {**_attributes(part, _Looks(), ids), **_scale_of(part, scales)}))
                for part in clip
            )
            yield f"<clipPath id='{ids.of(name)}'>{inner}</clipPath>"


def _scale_of(rectangle: ET.Element, scales: Sequence[Scale]) -> Mapping[str, str]:
    left, top = float(rectangle.get("x", "0")), float(rectangle.get("y", "0"))
    nearest = min(scales, key=lambda scale: abs(scale.left - left) + abs(scale.top - top), default=None)
    return {name: _quoted(text) for name, text in nearest.attributes.items()} if nearest is not None else {}


def _joined(shapes: list[_Leaf]) -> list[_Leaf]:
    """Return the shapes, with consecutive lines and markers of the same style joined into one path."""
    joined: list[_Leaf] = []
    for leaf in shapes:
        last = joined[-1] if joined else None
        if last is not None and leaf.tag == last.tag == "path" and leaf.joins and last.joins and leaf.look == last.look:
            joined[-1] = replace(last, attributes={**last.attributes, "d": last.attributes["d"] + leaf.attributes["d"]})
        else:
            joined.append(leaf)
    return joined


def _once(shapes: list[_Leaf], ids: _Ids) -> tuple[list[str], list[_Leaf]]:
    """Return one definition for each path that occurs several times, and the shapes, which refer to these definitions.
    This saves space if arms train equally, because the arms' curves are then equal."""
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
    """Yield the shapes as markup. Consecutive shapes of the same style are put into one group with this style."""
    for look, run in itertools.groupby(leaves, key=lambda leaf: leaf.look):
        members = list(run)
        if len(members) == 1:
            yield _written(members[0])
            continue
        shared = {name: value for name, value in zip(_INHERITED, look, strict=True) if value is not None}
        bare = [
            replace(leaf, attributes={key: value for key, value in leaf.attributes.items() if key not in shared})
            for leaf in members
        ]
        yield f"{_start('g', shared)}>{''.join(map(_written, bare))}</g>"


def _written(leaf: _Leaf) -> str:
    start = _start(leaf.tag, leaf.attributes)
    return f"{start}>{escape(leaf.text)}</{leaf.tag}>" if leaf.text else f"{start}/>"


def _start(tag: str, attributes: Mapping[str, str]) -> str:
    return " ".join([f"<{tag}", *(f"{key}='{value}'" for key, value in attributes.items())])


def _units(points: str | float) -> int:
    """Return a length or coordinate in points as whole units of the image."""
    return round(float(points) * UNITS)


def _path(text: str) -> str:
    """Return a path of straight lines in short form: absolute starts, then relative steps from point to point."""
    written: list[str] = []
    points: list[tuple[int, int]] = []
    for command, x, y in re.findall(r"([MLz])(?:\s*(-?[\d.]+)\s+(-?[\d.]+))?", text):
        if command in "Mz" and points:
            written.append(_steps(points))
            points = []
        if command == "z":
            written.append("z")
        else:
            points.append((_units(x), _units(y)))
    return "".join([*written, _steps(points) if points else ""])


def _steps(points: list[tuple[int, int]]) -> str:
    """Return `M` to the first point, and then relative steps.

    Points on the line between their neighbors are left out.
    """
    steps: list[tuple[int, int]] = []
    for (x, y), (next_x, next_y) in itertools.pairwise(points):
        right, down = next_x - x, next_y - y
        if steps and right * steps[-1][1] == down * steps[-1][0] and right * steps[-1][0] + down * steps[-1][1] >= 0:
            steps[-1] = (steps[-1][0] + right, steps[-1][1] + down)
        else:
            steps.append((right, down))
    start = f"M{points[0][0]} {points[0][1]}".replace(" -", "-")
    return start + (f"l{' '.join(f'{right} {down}' for right, down in steps)}".replace(" -", "-") if steps else "")
