"""Plan the arms of a peer run at each shape, and the groups of arms that are open at the same time ("sittings").

The memory of the GPU limits the number of arms in a sitting. A sitting takes the time until its slowest arm is ready,
so slow arms should be in the same sitting. The arms with which all other arms are compared are planned first. Next come
the arms that take the longest time to be ready. Arms that are ready quickly fill the remaining memory. Importable
without torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

# Memory that a process needs in addition to torch's reserved memory, for a CUDA context, kernels and workspaces.
CONTEXT_GIB = 0.8
MARGIN = 1.05  # factor on estimated memory; reserved memory is extrapolated to up to eight times as many tokens
DRIVER_GIB = 1.5  # part of the GPU's reported memory that the driver uses

OURS = ("graphed", "graphed_dense", "graphed_fp8", "ungraphed")
# The arms that are timed at further batch sizes. Peers are compared only at the batch size of the run.
AT_OTHER_BATCHES = (*OURS, "gemm_floor")
COMPARED = ("graphed", "graphed_fp8")  # arms that are compared with every other arm, and with the required bars
# The name that requests a timing of the captured step and its floors. It is used in place of an arm's name, and the
# timing has its own process.
FLOORS = "floors"


@dataclass(frozen=True)
class Shape:
    """A batch size and a sequence length. Shapes are sorted by sequence length, then by batch size."""

    batch_size: int
    seq_len: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the shape for a text such as `1x8192`. Raises ValueError for other texts."""
        found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
        if not found:
            raise ValueError(f"{text!r} is not a shape; write batch size x sequence length, such as 1x8192")
        return cls(int(found[1]), int(found[2]))

    @property
    def tokens(self) -> int:
        return self.batch_size * self.seq_len

    def __lt__(self, other: Shape) -> bool:
        return (self.seq_len, self.batch_size) < (other.seq_len, other.batch_size)

    def __str__(self) -> str:
        return f"{self.batch_size}x{self.seq_len}"


@dataclass(frozen=True)
class Cost:
    """The cost of an arm: seconds until it can be timed, and GiB that torch reserves with 512 and 2048 tokens."""

    ready_s: float
    gib_at_512: float
    gib_at_2048: float

    def gib(self, tokens: int) -> float:
        """Return the estimated memory of the process in GiB, assuming that the peak grows linearly with the tokens.

        At 8192 and 16384 tokens, the estimates differ from measured peaks by at most 13 %.
        """
        slope = (self.gib_at_2048 - self.gib_at_512) / (2048 - 512)
        reserved = self.gib_at_512 + slope * max(0, tokens - 512)
        return MARGIN * reserved + CONTEXT_GIB


# Costs from reports/2026-11-30-h200-peers, for qwen2-1.5b with batches of four. There, five to ten arms started at
# once.
COSTS: Mapping[str, Cost] = {
    "graphed": Cost(18, 2.54, 4.60),
    "graphed_dense": Cost(8, 4.35, 6.42),
    "graphed_fp8": Cost(17, 3.43, 5.84),
    "ungraphed": Cost(5, 2.28, 4.23),
    "hf_eager": Cost(20, 3.73, 10.13),
    "hf_cudnn": Cost(17, 3.73, 10.13),
    "hf_reduce_overhead": Cost(93, 2.79, 7.67),
    "hf_liger_compiled": Cost(42, 2.27, 5.03),
    "axolotl_compiled": Cost(31, 2.07, 4.53),
    "torchtune_compiled": Cost(30, 5.99, 8.98),
    "unsloth": Cost(53, 2.36, 4.49),
    "unsloth_all_linear": Cost(57, 2.64, 5.06),
    "gemm_floor": Cost(2, 3.31, 3.83),
}


def arms_at(shape: Shape, batch_size: int) -> tuple[str, ...]:
    """Return the arms that are timed at a shape, without `FLOORS`.

    These are all arms if the shape has the run's ``batch_size``, otherwise only `AT_OTHER_BATCHES`.
    """
    return tuple(COSTS) if shape.batch_size == batch_size else AT_OTHER_BATCHES


Place = tuple[str, Shape]  # an arm, and the shape at which it is timed


def sittings(places: Iterable[Place], memory_gib: float | None, at_once: int) -> list[list[Place]]:
    """Return groups of arms that are opened together, each with at most ``at_once`` arms.

    memory_gib: the memory into which the arms of a group must fit, or None for no limit. Each arm joins the first group
    with enough room. Arms that are needed for ratios and bars come first, because a run that ends early does not
    measure the last groups. Next come the arms that take longest to be ready. An arm that needs more memory than there
    is has its own group.
    """
    room = float("inf") if memory_gib is None else memory_gib - DRIVER_GIB
    found: list[list[Place]] = []
    # Among arms that take the same time, put larger shapes first, because it is harder to find room for them.
    for place in sorted(places, key=_rank):
        for sitting in found:
            if len(sitting) < at_once and _needed([*sitting, place]) <= room:
                sitting.append(place)
                break
        else:
            found.append([place])
    return found


def _rank(place: Place) -> tuple[bool, float, int]:
    arm, shape = place
    return arm not in COMPARED, -COSTS[arm].ready_s, -shape.tokens


def _needed(places: Sequence[Place]) -> float:
    return sum(COSTS[arm].gib(shape.tokens) for arm, shape in places)
