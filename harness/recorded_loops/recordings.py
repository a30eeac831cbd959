"""Read what `harness.record` wrote: a folder with a folder for each rank. This needs no torch.

A rank's folder (`rank.0`, `rank.1`, …) holds `recording.json` (the header), `loop.0.csv` (the series, as evidence has
them) and `records.jsonl`: the states that were seen, and how the loop ended. Without an end it was interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from harness.errors import EvidenceError, UsageError
from harness.evidence import layout
from harness.evidence.arm_records import Sketch, State
from harness.evidence.base import Record
from harness.evidence.environment_records import Environment
from harness.evidence.files import Damaged, first_error, read_bytes, read_model
from harness.evidence.read_run import read_series
from harness.evidence.run_evidence import Series
from harness.numbers import Count

HEADER = "recording.json"
LOOP = "loop"  # what the series is named after
RATE = "optimizer."  # begins the names of learning rates among the series


class RecordingHeader(Record):
    """What one rank wrote when its recording began."""

    format_version: Literal[1] = 1
    started_at: str
    rank: Count
    world_size: Count
    environment: Environment


class LoopState(Record):
    """The state of what was trained, as one rank holds it, behind so many steps."""

    steps: Count
    state: State
    sketches: dict[str, Sketch]  # by `category name`, of floating-point tensors


class Line(Record):
    """One line of `records.jsonl`: a state, or how the loop ended."""

    seen: LoopState | None = None
    error: str | None = None  # of an end: what interrupted the loop; "" where it was closed
    by_exit: bool = False  # the end of the process closed it, with whatever exit code


@dataclass(frozen=True)
class RankRecording:
    """What one rank recorded.

    states: by the number of steps before each. interrupted: how the loop ended early; "" if it was closed.
    by_exit: the end of the process closed it, so that an early end is not known.
    """

    header: RecordingHeader
    series: Series
    states: Mapping[int, LoopState]
    interrupted: str
    by_exit: bool = False

    @property
    def steps(self) -> int:
        """Return the number of recorded steps."""
        return len(self.series.loss)

    @property
    def quantities(self) -> dict[str, NDArray[np.float64]]:
        """Return every recorded series [steps] by its name, the loss first."""
        return {"loss": self.series.loss, **self.series.metrics}


@dataclass(frozen=True)
class Recording:
    """One recorded run: its ranks by number, and the name that sentences give it."""

    name: str
    ranks: Mapping[int, RankRecording]

    @property
    def world_size(self) -> int:
        """Return the number of processes that trained together, recorded or not."""
        return next(iter(self.ranks.values())).header.world_size


def read_recording(folder: Path) -> Recording:
    """Return a recording. Raises UsageError for a folder that is none, EvidenceError for a damaged one."""
    places = [each for each in folder.glob(f"{layout.RANK}*") if (each / HEADER).is_file()]
    if not places:
        rule, remedy = "a recording is a folder that `harness.record` wrote", "name the folder that was recorded into"
        got = "no such folder" if not folder.is_dir() else f"no {layout.rank_name(0)}/{HEADER} in it"
        raise UsageError(rule, where=str(folder), got=got, remedy=remedy)
    try:
        ranks = sorted((_read_rank(place) for place in places), key=lambda each: each.header.rank)
    except Damaged as damage:
        raise EvidenceError("a recording is whole", where=str(folder), got=str(damage)) from damage
    if len({each.header.world_size for each in ranks}) > 1:
        raise EvidenceError("a recording is of one run", where=str(folder), got="ranks of runs of several sizes")
    return Recording(str(folder), {each.header.rank: each for each in ranks})


def _read_rank(place: Path) -> RankRecording:
    header = read_model(place / HEADER, RecordingHeader)
    lines = read_bytes(place / layout.RECORDS).split(b"\n")[:-1]  # a line that a death cut off is left out
    try:
        written = [Line.model_validate_json(each) for each in lines]
    except ValidationError as error:
        raise Damaged(f"{layout.RECORDS}: {first_error(error)}") from error
    states = {each.seen.steps: each.seen for each in written if each.seen is not None}
    error_at_end = written[-1].error if written else None
    interrupted = "it was not closed" if error_at_end is None else error_at_end
    by_exit = bool(written) and written[-1].by_exit
    return RankRecording(header, read_series(place / layout.series_name(LOOP, 0)), states, interrupted, by_exit)
