"""Measure how far a step lies from a reference's, reduced to the largest error of each quantity.

Loss, norms and gradients: the L2 norm of the difference over that of the reference. Moments and parameters of an
update: element by element, the difference over what the same update makes of the terms' absolute values. It bounds
what rounding can do (Higham, Accuracy and Stability of Numerical Algorithms, section 3.3: running error analysis).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from harness.evidence.arm_records import StepReading
from harness.execution.watchers.reductions import real
from harness.system.protocol import OptimizerState

Quantity = Literal["loss", "norms", "gradients", "exp_avg", "exp_avg_sq", "parameters"]


@dataclass(frozen=True)
class Evaluated:
    """What forward, backward and clip gave: copies, in the arm's own precision."""

    loss: Tensor  # []
    norms: Mapping[str, Tensor]  # [] each, before the clip, by the group's name
    gradients: Mapping[str, Tensor]  # after the clip, by the parameter's name


def evaluated_errors(candidate: Evaluated, reference: Evaluated, yardstick: Evaluated) -> list[StepReading]:
    """Return errors of loss, norms and gradients, the candidate's and the yardstick's, against the reference.

    They are over every name that candidate or reference has. What one of the two leaves out has an infinite error.
    """
    ours, theirs, exact = _quantities(candidate), _quantities(yardstick), _quantities(reference)
    readings = []
    for quantity, tensors in exact.items():
        names = _either(ours[quantity], tensors)
        tensor, error = _worst({name: _relative(ours[quantity].get(name), tensors.get(name)) for name in names})
        _, noise = _worst({name: _relative(theirs[quantity].get(name), each) for name, each in tensors.items()})
        readings.append(StepReading(quantity=quantity, tensors=len(names), error=error, tensor=tensor, yardstick=noise))
    return readings


def _quantities(seen: Evaluated) -> dict[Quantity, Mapping[str, Tensor]]:
    return {"loss": {"loss": seen.loss}, "norms": seen.norms, "gradients": seen.gradients}


def updated_errors(after: OptimizerState, expected: OptimizerState, magnitude: OptimizerState) -> list[StepReading]:
    """Return errors of both moments and of the parameters after one update, in units of `magnitude` (`magnitudes`)."""
    readings = []
    for quantity in ("exp_avg", "exp_avg_sq", "parameters"):
        ours, exact, scale = (getattr(state, quantity) for state in (after, expected, magnitude))
        names = _either(ours, exact)
        tensor, error = _worst({name: _elementwise(ours.get(name), exact.get(name), scale.get(name)) for name in names})
        readings.append(StepReading(quantity=quantity, tensors=len(names), error=error, tensor=tensor))
    return readings


def magnitudes(before: OptimizerState, gradients: Mapping[str, Tensor]) -> tuple[OptimizerState, Mapping[str, Tensor]]:
    """Return a state and gradients whose update adds up absolute values; as it subtracts, parameters are negative."""
    state = OptimizerState(
        parameters={name: -tensor.abs() for name, tensor in before.parameters.items()},
        exp_avg={name: tensor.abs() for name, tensor in before.exp_avg.items()},
        exp_avg_sq=before.exp_avg_sq,
    )
    return state, {name: tensor.abs() for name, tensor in gradients.items()}


def _either(ours: Mapping[str, Tensor], exact: Mapping[str, Tensor]) -> list[str]:
    """Return the names that either has, the reference's first."""
    return list(dict.fromkeys([*exact, *ours]))


def _worst(errors: Mapping[str, float]) -> tuple[str, float]:
    """Return the tensor of the largest error, and the error. NaN counts as the largest. Of no errors: "" and 0.0."""
    if not errors:
        return "", 0.0
    tensor = max(errors, key=lambda name: (math.isnan(errors[name]), errors[name]))
    return tensor, errors[tensor]


def _relative(ours: Tensor | None, exact: Tensor | None) -> float:
    """Return |ours - exact| / |exact| in the L2 norm; infinite if one is missing, or `exact` alone is 0."""
    if ours is None or exact is None or ours.shape != exact.shape:
        return math.inf
    ours, exact = real(ours).double(), real(exact).double()
    apart, scale = float((ours - exact).norm()), float(exact.norm())
    return 0.0 if apart == 0 else math.inf if scale == 0 else apart / scale


def _elementwise(ours: Tensor | None, exact: Tensor | None, scale: Tensor | None) -> float:
    """Return the largest |ours - exact| / (|scale| + smallest normal number), below which roundings are absolute."""
    if ours is None or exact is None or scale is None or ours.shape != exact.shape:
        return math.inf
    smallest = torch.finfo(ours.dtype).tiny
    ours, exact, scale = (real(each).double() for each in (ours, exact, scale))
    if not ours.numel():
        return 0.0
    return float(((ours - exact).abs() / (scale.abs() + smallest)).max())
