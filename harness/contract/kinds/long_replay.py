"""The kind of judgement about a captured step that is replayed for a long time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from harness.contract.base import Count, Demand, Judged, Name, NonNegative, Positive, Problem

SLICE = 4  # the first and the last of so many equal parts of the run are compared
FEWEST_BLOCKS = 8  # in a part: fewer have no interval of 99 % around their median


class LongReplay(Judged):
    """Many captured steps train in bits like plain ones, and neither memory nor the time of a step grows.

    Steps are made in blocks of `every`. Of a block is kept one row, and digests of the losses and batches of all its
    steps, so that every step is compared. Each arm has a process to itself.
    """

    kind: Literal["long_replay"]
    """Judges what only a long run shows: late differences, leaks, steps that become slower."""
    candidate: Name
    """The captured arm."""
    baseline: Name
    """The plain arm."""
    steps: Count
    """Steps that must have been compared."""
    every: Annotated[int, Field(ge=1, le=1000)] = 100
    """Steps in a block, of which one row is kept, and which are timed together."""
    after: Annotated[int, Field(ge=1)] = 1
    """First blocks that are left out of memory and time as warm-up."""
    distinct_batches: Count | None = None
    """Different batches, by digest, that must have been seen over the whole run; a long one may repeat them."""
    memory_growth_at_most_mib: NonNegative | None = None
    """Most by which allocated or reserved memory may exceed, after any later block, what it was after the warm-up, and
    in the second half of the later blocks what it was in the first, where the typical `after` blocks in a row had their
    largest; in MiB. Left out, memory is not judged."""
    slowdown_at_most: Positive | None = None
    """Largest relative growth of a step's time from the first quarter of the blocks to the last, by their medians; left
    out, time is not judged."""

    plain_path: ClassVar[str | None] = "baseline"
    broken_by: ClassVar = {
        "steps": Demand(("vacuous_steps",)),
        "distinct_batches": Demand(("vacuous_batches_repeat",)),
        "memory_growth_at_most_mib": Demand(("memory_grows",)),
        "slowdown_at_most": Demand(("slows_down",)),
    }
    asks_nothing: ClassVar = {"distinct_batches": 1}
    no_demand: ClassVar = {
        "candidate": "names an arm",
        "baseline": "names an arm",
        "every": "how many steps share a row; every step is compared",
        "after": "blocks that are left out; the loader refuses a claim that none follow",
    }

    def can_bite(self, path: str) -> bool:
        # no growth at all is a demand
        return super().can_bite(path) or (path == "memory_growth_at_most_mib" and self.value_at(path) == 0.0)

    def captures_candidate(self) -> bool:
        return True

    def asks_the_device(self) -> bool:
        return self.memory_growth_at_most_mib is not None

    def step_counts(self) -> dict[str, int | None]:
        return {"steps": self.steps, "distinct_batches": self.distinct_batches}

    def beyond(self, steps: int) -> Iterator[tuple[tuple[str | int, ...], str]]:
        yield from super().beyond(steps)
        blocks = steps // self.every
        if self.memory_growth_at_most_mib is not None and blocks <= self.after:
            yield ("after",), f"a block of {self.every} steps follows the first {self.after} (`after`)"

    def undecidable(self) -> Iterator[Problem]:
        needed = SLICE * FEWEST_BLOCKS
        blocks = self.steps // self.every - self.after
        if self.slowdown_at_most is not None and blocks < needed:
            yield Problem(
                ("every",),
                f"{blocks} blocks of {self.every} steps after the first {self.after} cannot show whether steps become "
                f"slower: at least {needed} are compared",
            )

    def process_count(self) -> int:
        return len(self.arms())

    def arms_of(self, process: int) -> list[str]:
        return [[self.baseline, self.candidate][process]]
