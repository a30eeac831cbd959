"""Publish what a simulation found: its points as compressed JSON, and its tables as a page."""

from __future__ import annotations

import argparse
import lzma
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.numbers import dump_json

FOLDER = Path(__file__).parents[2] / "reports" / "statistics"


def publish(
    name: str,
    points: Callable[[int, int], list[Any]],
    wanted: Callable[[Any], tuple[str, bool] | None],
    as_markdown: Callable[..., str],
    chosen: Mapping[str, object],
) -> None:
    """Simulate with the number of experiments and the seed of the command line, and write both files."""
    parser = argparse.ArgumentParser(description=f"Simulate the points of {name}.md.")
    parser.add_argument("--experiments", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    found = points(arguments.experiments, arguments.seed)
    bars = [wanted(point) or (None, None) for point in found]
    rows = [asdict(point) | {"wanted": text, "met": met} for point, (text, met) in zip(found, bars, strict=True)]
    arguments.output.mkdir(parents=True, exist_ok=True)
    whole = dump_json({"seed": arguments.seed, **chosen, "points": rows})
    (arguments.output / f"{name}.json.xz").write_bytes(lzma.compress(whole.encode()))
    text = as_markdown(found, arguments.seed)
    (arguments.output / f"{name}.md").write_text(text)
    print(text)
