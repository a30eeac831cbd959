"""Define descriptions of systems and of faults that can be planted. This module imports neither torch nor pydantic.

Adapters import these classes from `harness.system.protocol`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Scalar = bool | int | float | str


@dataclass(frozen=True)
class Expectation:
    """The verdict that a planted fault must cause for a claim: status, reason code, and figures to check.

    or_reasons: other accepted reason codes with the same status. With one of these codes, figures are not checked.
    """

    status: Literal["FAIL", "INCONCLUSIVE", "ERROR"]
    reason: str
    figures: Mapping[str, Scalar] = field(default_factory=dict)
    or_reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class FaultDescription:
    """A fault that can be planted: a small change of a system or of evidence, made only when a drill requests it."""

    name: str
    summary: str
    plant: Literal["candidate", "baseline", "both"]
    breaks: Mapping[str, Expectation]  # id or kind of a claim -> the verdict that is expected with the fault
    needs: Literal["any", "cuda"] = "any"


@dataclass(frozen=True)
class SystemDescription:
    """The facts that a system states about itself, without importing torch."""

    name: str
    summary: str
    models: Sequence[str]  # model names that a workload may use; empty: any name
    # name of a setting -> its possible values, or the type if any value of this type is possible
    arm_options: Mapping[str, Sequence[Scalar] | type]
    workload_options: Mapping[str, Sequence[Scalar] | type]
    capabilities: frozenset[str]
    captures: frozenset[str] = frozenset({"none"})  # values of an arm's `capture` that the system supports
    faults: Mapping[str, FaultDescription] = field(default_factory=dict)
