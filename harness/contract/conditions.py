"""Define the conditions on which a bound may depend: workload, GPU, compute capability, the candidate's data type."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

OTHERWISE = "otherwise"
# Data types that a condition may name, by torch's names. Any other name is an error. Otherwise a condition with a
# misspelled name would never be met, and nobody would notice.
Dtype = Literal[
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn_x2",
]


@dataclass(frozen=True)
class Situation:
    """The facts about a unit on which bounds can depend. None means that a fact is unknown or does not exist.

    gpu: the device's name. capability: the device's compute capability, such as `9.0`. dtype: the data type in which
    the candidate computes, as its system reports it.
    """

    workload: str
    gpu: str | None = None
    capability: str | None = None
    dtype: str | None = None


@dataclass(frozen=True)
class Conditions:
    """Conditions that must all be met. A field that is None is no condition."""

    workload: str | None = None
    gpu: str | None = None
    capability: str | None = None
    capability_at_least: str | None = None
    dtype: str | None = None

    def hold(self, situation: Situation) -> bool:
        """Return True if every condition is met. A condition on an unknown fact is not met."""
        return (
            self.workload in (None, situation.workload)
            and (self.gpu is None or is_gpu(situation.gpu, self.gpu))
            and self.capability in (None, situation.capability)
            and (self.capability_at_least is None or reaches(situation.capability, self.capability_at_least))
            and self.dtype in (None, situation.dtype)
        )

    def __str__(self) -> str:
        asked = [(each.name, getattr(self, each.name)) for each in fields(self)]
        return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in asked if value is not None)


@dataclass(frozen=True)
class Bound:
    """A number that depends on the situation (workload, GPU, data type). The number is that of the first case whose
    conditions are all met. If no case applies, the number is `otherwise`."""

    otherwise: float
    cases: Sequence[tuple[Conditions, float]]

    def decided(self, situation: Situation) -> tuple[float, str]:
        """Return the number that applies in a situation, and the conditions that selected it, as text."""
        for conditions, value in self.cases:
            if conditions.hold(situation):
                return value, str(conditions)
        return self.otherwise, OTHERWISE

    @property
    def of_workload_alone(self) -> bool:
        """Return True if the number depends on nothing but the workload."""
        return all(conditions == Conditions(workload=conditions.workload) for conditions, _ in self.cases)

    @property
    def asks_dtype(self) -> bool:
        return any(conditions.dtype is not None for conditions, _ in self.cases)

    def __str__(self) -> str:
        return "; ".join(
            [f"{value:g} on {conditions}" for conditions, value in self.cases] + [f"else {self.otherwise:g}"]
        )


def is_gpu(found: str | None, wanted: str) -> bool:
    """Return True if the device's name contains the words `wanted`, in upper or lower case. For example, `NVIDIA H100
    80GB HBM3` is an `H100`."""
    words = r"\s+".join(re.escape(word) for word in wanted.split())
    return found is not None and re.search(rf"(?<![A-Za-z0-9]){words}(?![A-Za-z0-9])", found, re.IGNORECASE) is not None


def reaches(found: str | None, wanted: str) -> bool:
    """Return True if the compute capability `found` is at least `wanted`. Capabilities are compared as pairs of
    numbers: `10.0` is above `9.0`."""
    return found is not None and _ordered(found) >= _ordered(wanted)


def capability_of(architecture: str | None) -> str | None:
    """Return the compute capability of a GPU architecture (`9.0` for `sm_90`), or None if it is unknown."""
    digits = re.fullmatch(r"sm_(\d+)(\d)[af]?", architecture or "")
    return f"{digits[1]}.{digits[2]}" if digits else None


def _ordered(capability: str) -> tuple[int, ...]:
    return tuple(int(number) for number in capability.split("."))
