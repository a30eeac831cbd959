"""How long runs that are under way will take: from what runs took, here or before, and by nothing else."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean

from harness.evidence.plan_records import Run
from harness.kinds import probe_named


@dataclass
class TimeToGo:
    """Of one session. recorded: seconds that runs like these took before, by id; those of a run's own kind that have
    ended here stand for one that was never recorded.
    """

    runs: Sequence[Run]
    recorded: Mapping[str, float] = field(default_factory=dict)
    under_way: dict[str, float] = field(default_factory=dict)  # seconds so far
    ended: dict[str, float] = field(default_factory=dict)  # seconds in all

    def moves(self, run: str, seconds: float, *, over: bool) -> None:
        """A run came so far."""
        self.under_way.pop(run, None)
        (self.ended if over else self.under_way)[run] = seconds

    def seconds(self, elapsed: float) -> float | None:
        """Seconds from now, `elapsed` after the first run began; None while there is nothing to tell it from.

        Runs go side by side: what is left is divided by how many seconds of runs there were in a second so far. Timings
        take turns: they begin together, and together they take the sum of what each takes.
        """
        expected = self._expected()
        left = [run for run in self.runs if run.id not in self.ended]
        if elapsed <= 0 or any(run.id not in expected for run in left):
            return None
        so_far = self.ended | self.under_way
        spent = sum(so_far.get(run.id, 0.0) for run in self.runs if not _timed(run))
        work = sum(max(0.0, expected[run.id] - so_far.get(run.id, 0.0)) for run in left if not _timed(run))
        timed = [run.id for run in self.runs if _timed(run) and run.id in expected]
        waited = max((so_far.get(name, 0.0) for name in timed), default=0.0)
        return work / max(1.0, spent / elapsed) + max(0.0, sum(expected[name] for name in timed) - waited)

    def _expected(self) -> dict[str, float]:
        here: defaultdict[str, list[float]] = defaultdict(list)
        for run in self.runs:
            if run.id in self.ended and not _timed(run):  # a timing's own time is not that of its turns
                here[run.probe].append(self.ended[run.id])
        like_it = {run.id: mean(here[run.probe]) for run in self.runs if here[run.probe]}
        return like_it | {run.id: self.recorded[run.id] for run in self.runs if run.id in self.recorded}


def _timed(run: Run) -> bool:
    return probe_named(run.probe).timed


def in_words(seconds: float) -> str:
    """`about 40 s to go`, `about 3 min to go`, `about 1 h 20 min to go`: rounded up, for it is an estimate."""
    if seconds < 55:
        return f"about {max(5, -int(-seconds // 5) * 5)} s to go"
    minutes = -int(-seconds // 60)
    if minutes < 60:
        return f"about {minutes} min to go"
    return f"about {minutes // 60} h {minutes % 60} min to go"
