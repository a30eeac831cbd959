"""The data of a peer run: written, read, and joined if several calls of the benchmark measured parts of the run.
Importable without torch."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from benchmarks.peer_plan import COSTS, FLOORS, Place, Shape, arms_at

NOT_ASKED_FOR = "not asked for"
OUT_OF_TIME = "not started: out of time"

# At step 0, a bf16 arm differs from the fp32 reference only by rounding. The rounding error of logits up to 4 is at
# most 2^-7. Hidden states are rounded about 200 times in 28 layers, each time with a relative error of 2^-9. Therefore
# the logit of a target differs by about 0.02, and the mean over at least 500 targets differs by less than a tenth of
# that. A tolerance of 0.01 allows for errors of the same sign. An fp32 arm on a CPU differs only by the order of its
# sums.
LOSS_TOLERANCE = {"torch.bfloat16": 0.01, "torch.float32": 1e-4}
# Rounding to e4m3 has errors 16 times as large as rounding to bfloat16, and the weights are rounded, too. Therefore the
# logit of a target differs by about 0.2. The errors of targets with the same byte are partly equal. Therefore the error
# of the mean over n targets is larger than 0.2 / sqrt(n), which is 0.0044 for 2048 targets. Over 16 seeds, the mean
# over 2048 targets differed by 0.0164 (standard deviation), and by -0.0030 +- 0.0041 on average, so there is no bias
# (16 seeds of FP8-NOT-WORSE-002 in runs that were removed to save space). Three standard deviations are allowed. With
# such a wide bound, a product that does not run in FP8 would not be noticed, so `benchmarks.arms.ours` counts FP8
# products.
FP8_TARGET = 0.2
FP8_TEXT = 0.0158  # part of the error that is equal for all targets: the root of 0.0164^2 - 0.2^2 / 2048


class OtherRunError(Exception):
    """The run in the folder cannot be joined with the figures of this call. The message names the differences."""


def place_name(arm: str, shape: Shape) -> str:
    """Return the name of an arm at a shape, as reports and messages show it."""
    return f"{arm} at {shape}"


@dataclass(frozen=True)
class Measured:
    """Measurements of one arm at one shape. Memory peaks are torch's and include the first step. They are None on a
    CPU."""

    arm: str
    batch_size: int
    seq_len: int
    milliseconds: tuple[float, ...]
    block_ms: tuple[float, ...]  # for each round: mean milliseconds of a step in the round's block
    block_steps: int  # number of steps of one block
    sitting: str  # name of the group of arms that were timed in turns; groups were timed minutes apart
    loss_step_0: float | None
    batch_digest: str
    startup_s: float
    peak_gib: float | None
    peak_reserved_gib: float | None
    facts: dict[str, Any]

    @property
    def shape(self) -> Shape:
        return Shape(self.batch_size, self.seq_len)

    @property
    def median_ms(self) -> float:
        return float(np.median(self.milliseconds))

    def percentile_ms(self, percent: float) -> float:
        return float(np.percentile(self.milliseconds, percent))


@dataclass(frozen=True)
class PeerRun:
    """A whole run, from one or several calls. ``batch_size`` is the batch size at which peers are compared.

    ``reference``: losses by shape, variant of the weights and targets (see `peer_checkpoint.reference_losses`).
    ``floors``: the figures of `benchmarks.floor` by shape, for the step and both floors.
    """

    model: str
    batch_size: int
    measured: tuple[Measured, ...]
    absent: dict[str, str]
    reference: dict[str, dict[str, dict[str, float]]]
    environment: dict[str, Any]
    call_seconds: tuple[float, ...]
    floors: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Return True if every arm was measured at every shape."""
        return not self.absent

    @property
    def same_mathematics(self) -> bool:
        """Return True if all arms have equal batches and every loss is within its tolerance."""
        one_batch = all(
            len({arm.batch_digest for arm in self.measured if arm.shape == shape}) == 1
            for shape in {arm.shape for arm in self.measured}
        )
        return one_batch and all(abs(error) <= tolerance for _, error, tolerance in self.loss_errors())

    def find(self, arm: str, shape: Shape) -> Measured | None:
        return next((m for m in self.measured if m.arm == arm and m.shape == shape), None)

    def expected_loss(self, arm: Measured) -> float:
        """Return the reference loss for this arm's quantization of weights and for the targets that it counts."""
        counting = "all" if arm.facts["loss_positions"] == "all" else "shifted"
        return self.reference[str(arm.shape)][arm.facts["weights"]][counting]

    def tolerance(self, arm: Measured) -> float:
        """Return the largest allowed difference between an arm's loss and its reference."""
        if "products" in arm.facts:
            return 3 * math.hypot(FP8_TEXT, FP8_TARGET / math.sqrt(arm.shape.tokens))
        return LOSS_TOLERANCE[arm.facts["dtype"]]

    def loss_errors(self) -> list[tuple[Measured, float, float]]:
        """Return (arm, loss - reference, tolerance) for every arm with a loss. If the loss is NaN, the error is
        infinite."""
        errors = []
        for arm in self.measured:
            if arm.loss_step_0 is not None:
                error = arm.loss_step_0 - self.expected_loss(arm)
                errors.append((arm, error if np.isfinite(error) else float("inf"), self.tolerance(arm)))
        return errors

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of peers.json."""
        return [
            {
                "arm": arm.arm,
                "batch_size": arm.batch_size,
                "seq_len": arm.seq_len,
                "median_ms": arm.median_ms,
                "p10_ms": arm.percentile_ms(10),
                "p90_ms": arm.percentile_ms(90),
                "single_steps": len(arm.milliseconds),
                "tokens_per_s": arm.shape.tokens / arm.median_ms * 1e3,
                "peak_gib": arm.peak_gib,
                "loss_step_0": arm.loss_step_0,
            }
            for arm in self.measured
        ]

    def details(self) -> dict[str, Any]:
        """Return all data of the run, for details.json."""
        return {**asdict(self), "complete": self.complete, "same_mathematics": self.same_mathematics}

    @classmethod
    def of_details(cls, details: Mapping[str, Any]) -> Self:
        """Restore a run from the data that its `details` returned."""
        measured = (
            Measured(**{**arm, "milliseconds": tuple(arm["milliseconds"]), "block_ms": tuple(arm["block_ms"])})
            for arm in details["measured"]
        )
        kept = {each.name: details[each.name] for each in fields(cls)}
        return cls(**{**kept, "measured": tuple(measured), "call_seconds": tuple(details["call_seconds"])})

    def lacks(self, place: Place) -> bool:
        """Return True if no measurement exists for ``place``: an arm or `FLOORS`, and a shape."""
        arm, shape = place
        return str(shape) not in self.floors if arm == FLOORS else self.find(arm, shape) is None


def places_of(shapes: list[Shape], batch_size: int) -> list[Place]:
    """Return all pairs of arm and shape that a run measures for these shapes. The floors of each shape come last."""
    return [(arm, shape) for shape in sorted(shapes) for arm in (*arms_at(shape, batch_size), FLOORS)]


def read_run(folder: Path) -> PeerRun | None:
    """Return the run in a folder, or None if there is none. Raises OtherRunError for data of another version."""
    path = folder / "details.json"
    if not path.exists():
        return None
    try:
        return PeerRun.of_details(json.loads(path.read_text()))
    except (KeyError, TypeError, ValueError) as error:
        raise OtherRunError(
            f"{path} was written by another version of this benchmark ({error}); give another folder"
        ) from error


def check_joinable(before: PeerRun, model: str, batch_size: int, environment: Mapping[str, Any]) -> None:
    """Raise OtherRunError unless the run has this model, batch size, machine, packages and sources."""
    here = {"model": model, "batch_size": batch_size, **environment}
    there = {"model": before.model, "batch_size": before.batch_size, **before.environment}
    differences = [
        f"{name} was {there.get(name)!r} but is now {here.get(name)!r}"
        for name in sorted({*here, *there})
        if there.get(name) != here.get(name)
    ]
    if differences:
        raise OtherRunError(
            f"the run in this folder cannot be resumed, because it differs from this run: {'; '.join(differences)}"
        )


def joined(before: PeerRun | None, now: PeerRun) -> PeerRun:
    """Return one run with the measurements of both calls. An arm without measurements gets the reason of its last
    attempt."""
    if before is None:
        return now
    check_joinable(before, now.model, now.batch_size, now.environment)
    tried = {name: why for name, why in now.absent.items() if why != NOT_ASKED_FOR or name not in before.absent}
    run = replace(
        now,
        measured=ordered((*before.measured, *now.measured)),
        reference={**before.reference, **now.reference},
        floors={**before.floors, **now.floors},
        call_seconds=(*before.call_seconds, *now.call_seconds),
    )
    there = {place_name(arm.arm, arm.shape) for arm in run.measured} | {f"{FLOORS} at {name}" for name in run.floors}
    absent = {name: why for name, why in {**before.absent, **tried}.items() if name not in there}
    return replace(run, absent=absent)


def ordered(measured: Iterable[Measured]) -> tuple[Measured, ...]:
    """Return the measurements, sorted by shape and then in the order of the arms in `COSTS`."""
    return tuple(sorted(measured, key=lambda arm: (arm.seq_len, arm.batch_size, list(COSTS).index(arm.arm))))
