"""What several faults make a judge say: claim id or kind -> status, reason code and figures.

`first_differing_step` counts from 0 and is the first step whose loss can tell: a wrong update of step k shows in the
loss of step k + 1.
"""

from __future__ import annotations

from harness.system.protocol import Expectation


def trajectory(reason: str, step: int) -> dict[str, Expectation]:
    """What a trajectory claim must say: the reason, and the first step whose loss differs."""
    return {"trajectory_match": Expectation("FAIL", reason, {"first_differing_step": step})}


def transformers_twin(**figures: int) -> dict[str, Expectation]:
    """What the comparison with transformers must say: its bounds are of rounding, and figures name their part."""
    named = {name.replace("__", "."): value for name, value in figures.items()}
    return {"REF-STEP-001": Expectation("FAIL", "exceeds_tolerance", named)}
