"""Publish the results ("points") of a simulation as compressed JSON and as tables. Check them by a new simulation."""

from __future__ import annotations

import argparse
import json
import lzma
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.judging.verdict import Status, Verdict
from harness.numbers import dump_json

FOLDER = Path(__file__).parents[2] / "reports" / "statistics"
JUDGED_TWICE = 5  # number of experiments at each point that the judge also decides, from evidence
ANSWER = {Status.PASS: 1, Status.FAIL: -1, Status.INCONCLUSIVE: 0}


def require_the_judges_answers(decided: NDArray[np.int8], verdicts: Iterable[Verdict]) -> None:
    """Raise RuntimeError if the judge's `verdicts` on the first experiments differ from the decisions `decided`."""
    for index, (answer, verdict) in enumerate(zip(decided[:JUDGED_TWICE], verdicts, strict=False)):
        if ANSWER.get(verdict.status) != int(answer):
            raise RuntimeError(
                f"experiment {index}: the simulation decided {answer}, but the judge says {verdict.message}"
            )


@dataclass(frozen=True)
class Report:
    """A simulation and its published files. points: a function of the number of experiments and the seed, which returns
    the points. wanted: a function that returns a point's requirement, and True if the point meets it. introduction: a
    text that may contain `{experiments}` and `{seed}`. cells: a function that returns a table row for a point and its
    requirement. sections: titles of tables by points' sections; empty: one table. chosen: further JSON content."""

    name: str
    points: Callable[[int, int], list[Any]]
    wanted: Callable[[Any], tuple[str, bool] | None]
    title: str
    introduction: str
    head: Sequence[str]
    cells: Callable[[Any, str], list[str]]
    sections: Mapping[str, str] = field(default_factory=dict)
    chosen: Mapping[str, object] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        return FOLDER / f"{self.name}.json.xz"

    def published(self) -> dict[str, Any]:
        """Return the content of the published file: the points and their requirements."""
        read: dict[str, Any] = json.loads(lzma.decompress(self.file.read_bytes()))
        return read

    def publish(self) -> None:
        """Run the simulation with the number of experiments and the seed of the command line, and write both files."""
        parser = argparse.ArgumentParser(description=f"Simulate the points of {self.name}.md.")
        parser.add_argument("--experiments", type=int, default=20_000)
        parser.add_argument("--seed", type=int, default=0)
        arguments = parser.parse_args()
        found = self.points(arguments.experiments, arguments.seed)
        self.file.write_bytes(lzma.compress(dump_json(self.whole(found, arguments.seed)).encode()))
        text = self.as_markdown(found, arguments.seed)
        self.file.with_name(f"{self.name}.md").write_text(text)
        print(text)

    def whole(self, found: Sequence[Any], seed: int) -> dict[str, Any]:
        bars = [self.wanted(point) or (None, None) for point in found]
        rows = [asdict(point) | {"wanted": text, "met": met} for point, (text, met) in zip(found, bars, strict=True)]
        return {"seed": seed, **self.chosen, "points": rows}

    def as_markdown(self, found: Sequence[Any], seed: int) -> str:
        bars = {id(point): bar for point in found if (bar := self.wanted(point)) is not None}
        missed = sum(not met for _, met in bars.values())
        introduction = self.introduction.format(experiments=found[0].experiments, seed=seed)
        parts = [f"# {self.title}", introduction, f"Wanted of {len(bars)} rows; missed by {missed}."]
        for section, title in (self.sections or {"": ""}).items():
            here = [point for point in found if not section or point.section == section]
            texts = [
                f"{bar[0]}: {'met' if bar[1] else 'MISSED'}" if (bar := bars.get(id(each))) else "" for each in here
            ]
            rows = [self.cells(point, text) for point, text in zip(here, texts, strict=True)]
            lines = [f"| {' | '.join(line)} |" for line in (self.head, ["---"] * len(self.head), *rows)]
            parts += [f"## {title}", "\n".join(lines)] if section else ["\n".join(lines)]
        return "\n\n".join(parts) + "\n"

    def check(self) -> tuple[str, bool]:
        """Return a summary, and True if the judges reproduce the published points and all requirements are met."""
        published = self.published()
        found = self.points(published["points"][0]["experiments"], published["seed"])
        again = json.loads(dump_json(self.whole(found, published["seed"])))
        differing = [new for new, old in zip(again["points"], published["points"], strict=True) if new != old]
        missed = [point for point in again["points"] if point["met"] is False]
        for what, points in ((f"differs from {self.file.name}", differing), ("what is wanted is missed", missed)):
            print("".join(f"{what}: {json.dumps(point)}\n" for point in points), end="")
        wanted = sum(point["met"] is not None for point in again["points"])
        figures = (
            f"{len(found)} points of {found[0].experiments} comparisons, {len(differing)} differ from the published; "
            f"{len(missed)} of {wanted} miss what is wanted of them"
        )
        return figures, not (differing or missed or again.keys() != published.keys())
