"""Averages and copies of weights count wherever they hang, and logs do not: small trainers, executed and judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import loose_systems
import pytest
from claims_in_process import ARMS, CLAIM, judged, verdict_on

OPTIMIZED: dict[str, dict[str, Any]] = {**ARMS, "captured": {"capture": "none", "drops": True}}
UNCHANGED: dict[str, dict[str, Any]] = {**ARMS, "captured": {"capture": "none"}}


def name_of(system: type[loose_systems.Makes]) -> str:
    return f"loose_systems:{system.__name__}"


@pytest.mark.parametrize(
    ("system", "reason", "said"),
    [
        (loose_systems.AveragesLater, "end_differs", "average 0.bias (only in one execution)"),
        (loose_systems.AveragesAnew, "end_differs", "average"),
        (loose_systems.TakesSnapshots, "end_differs", "snapshots.1.0"),
        (loose_systems.ListsItsLosses, "held", "only baseline plain keeps 11 logs: built.more.losses (11)"),
        (loose_systems.MeansItsLosses, "held", "only baseline plain keeps 1 log: built.more.mean"),
        (loose_systems.SumsItsLosses, "held", "equal in bits at all 12 steps"),
    ],
)
def test_a_loose_tensor_that_a_capture_does_not_repeat_gives_its_reason(
    system: type[loose_systems.Makes], reason: str, said: str, tmp_path: Path
) -> None:
    """A loose tensor belongs to no module and to no optimizer, such as a running average."""
    verdict = verdict_on(name_of(system), tmp_path)
    assert verdict.reason == reason, verdict.message
    assert said in verdict.message


@pytest.mark.parametrize(
    ("system", "reason"),
    [
        (loose_systems.AveragesLater, "end_differs"),
        (loose_systems.TakesSnapshots, "end_differs"),
        (loose_systems.ListsItsLosses, "held"),
        (loose_systems.SumsItsLosses, "end_differs"),
    ],
)
def test_a_loose_tensor_that_an_optimized_arm_omits_gives_its_reason(
    system: type[loose_systems.Makes], reason: str, tmp_path: Path
) -> None:
    """A loose tensor belongs to no module and to no optimizer, such as a running average."""
    assert judged(name_of(system), tmp_path, CLAIM, arms=OPTIMIZED).reason == reason


@pytest.mark.parametrize(
    "system",
    [
        loose_systems.AveragesLater,
        loose_systems.AveragesAnew,
        loose_systems.TakesSnapshots,
        loose_systems.ListsItsLosses,
        loose_systems.MeansItsLosses,
        loose_systems.LooksBack,
    ],
)
def test_an_unchanged_arm_passes_with_all_its_loose_tensors(system: type[loose_systems.Makes], tmp_path: Path) -> None:
    """A loose tensor belongs to no module and to no optimizer, such as a running average."""
    verdict = judged(name_of(system), tmp_path, CLAIM, arms=UNCHANGED)
    assert verdict.reason == "held", verdict.message
    assert "nobody reads" not in verdict.message
