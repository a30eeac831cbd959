"""Compute the errors of two arms against a third arm's numbers, and the ratio of the two."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from harness.evidence.run_records import StepErrors, TensorErrors
from harness.judging.series import ROUNDING, Losses


@dataclass(frozen=True)
class Errors:
    """What the candidate and the peer err by, in one unit; `name` says in what.

    floor: what the format's own rounding makes. A peer that errs less is not a measure for a step in that format.
    """

    name: str
    candidate: float
    peer: float
    floor: float = 0.0

    @property
    def ratio(self) -> float:
        """Return the ratio of errors. Over a peer without error or floor it is infinite, or 0 for no error."""
        measure = max(self.peer, self.floor)
        if measure == 0:
            return 0.0 if self.candidate == 0 else math.inf
        return self.candidate / measure


def gradient_errors(records: Iterable[StepErrors], floor: float = 0.0) -> list[Errors]:
    """Return, for each trained tensor, the root mean square, over seeds and steps, of the difference from the
    reference's gradient relative to that gradient, both by their L2 norms. A gradient of zero in all arms is left out.
    """
    relative: dict[str, list[tuple[float, float]]] = {}
    for record in records:
        for tensor in record.tensors:
            if not is_zero(tensor):
                pair = _relative(tensor.candidate_error, tensor), _relative(tensor.peer_error, tensor)
                relative.setdefault(tensor.name, []).append(pair)
    return [
        Errors(
            name,
            _root_mean_square([ours for ours, _ in pairs]),
            _root_mean_square([theirs for _, theirs in pairs]),
            floor,
        )
        for name, pairs in relative.items()
    ]


def is_zero(tensor: TensorErrors) -> bool:
    """Return True for a gradient that is zero in all arms, as LoRA's first gradient of A is, while B is zero."""
    return tensor.reference_norm == tensor.candidate_error == tensor.peer_error == 0


def _relative(error: float, tensor: TensorErrors) -> float:
    if tensor.reference_norm > 0:
        return error / tensor.reference_norm
    return math.inf if error > 0 else 0.0


def _root_mean_square(values: Sequence[float]) -> float:
    return math.sqrt(math.fsum(value * value for value in values) / len(values))


def loss_errors(name: str, series: Iterable[Sequence[Losses]]) -> Errors:
    """Return the mean absolute differences from the reference's losses over all steps of several runs.

    series: of each run the losses [steps] of candidate, peer and reference. Raises ValueError for no step at all.
    """
    differences = [(np.abs(ours - exact), np.abs(theirs - exact), np.abs(exact)) for ours, theirs, exact in series]
    candidate, peer, size = (np.concatenate(arm) for arm in zip(*differences, strict=True))
    if not len(candidate):
        raise ValueError("the errors of no loss have no mean")
    return Errors(name, float(candidate.mean()), float(peer.mean()), ROUNDING * float(size.mean()))


def median_ratio(errors: Sequence[Errors]) -> float:
    """Return the median ratio over tensors; NaN for none."""
    return float(np.median([each.ratio for each in errors])) if errors else math.nan
