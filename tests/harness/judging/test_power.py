"""The chance that a timing is decided, by the noise of one that was recorded, and the warning of a small one."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from evidence_builders import timed_run

from harness.kinds.speed.model import ThroughputRatio
from harness.kinds.speed.speed_figures import LastTiming, Recorded
from harness.lint import lint_power

DEMANDED = 1.1
QUIET = [1.0, 1.002, 0.998, 1.001, 0.999, 1.003, 0.997, 1.0]
NOISY = [1.0, 1.3, 0.8, 1.2, 0.9, 1.25, 0.7, 1.0]  # the baseline of a process, times its usual step


def part(**changes: Any) -> ThroughputRatio:
    asked = {"processes": 8, "blocks": 4, "block_steps": 2, "at_least": DEMANDED, "trajectory": "T"}
    arms = {"kind": "throughput_ratio", "candidate": "graphed", "baseline": "ungraphed"}
    return ThroughputRatio.model_validate(arms | asked | changes)


def recorded(noise: Sequence[float], ratio: float = 1.5) -> Recorded:
    runs = [timed_run(n, [0.01] * 4, [0.01 * ratio * factor] * 4) for n, factor in enumerate(noise)]
    found = Recorded.of(part(), runs)
    assert found is not None
    return found


@pytest.mark.parametrize(("true_ratio", "power"), [(1.0, 1.0), (DEMANDED, 0.0), (1.15 * DEMANDED, 1.0)])
def test_on_a_machine_without_noise_every_ratio_except_the_demanded_ratio_is_decided(
    true_ratio: float, power: float
) -> None:
    assert recorded(QUIET).power(part(), true_ratio) == power


@pytest.mark.parametrize("ratio", [0.5, 1.0, 3.0])
def test_power_depends_on_the_true_ratio_and_not_on_the_recorded_ratio(ratio: float) -> None:
    assert recorded(NOISY, ratio).power(part(), 1.5) == pytest.approx(recorded(NOISY).power(part(), 1.5), abs=0.01)


def test_noise_reduces_power_and_more_processes_restore_it() -> None:
    found = recorded(NOISY)
    few, many = found.power(part(), 1.5), found.power(part(processes=32), 1.5)
    assert few < 0.5 < many


def test_equal_evidence_gives_an_equal_power() -> None:
    assert recorded(NOISY).power(part(), 1.5) == recorded(NOISY).power(part(), 1.5)


def test_power_is_unknown_for_longer_blocks_or_too_few_recorded_processes_of_the_same_arms() -> None:
    runs = [timed_run(n, [0.01] * 4, [0.01] * 4) for n in range(8)]
    assert Recorded.of(part(block_steps=20), runs) is None
    assert Recorded.of(part(), runs[:6]) is None
    assert Recorded.of(part(), [timed_run(6, timing={"candidate": "other"}), *runs[:6]]) is None
    assert Recorded.of(part(), [timed_run(6, timing={"candidate": "other"}), *runs[:7]]) is not None


@pytest.mark.parametrize(("noise", "warned"), [(QUIET, False), (NOISY, True)])
def test_check_warns_of_a_claim_that_a_new_timing_would_probably_leave_undecided(
    noise: Sequence[float], warned: bool
) -> None:
    loaded: Any = SimpleNamespace(
        contract=SimpleNamespace(id="c", claims=[SimpleNamespace(id="S-1")]), where=lambda *_: "c.yaml:9:5"
    )
    here, elsewhere = (LastTiming(name, "S-1", "small", "one-run", part(), recorded(noise)) for name in ("c", "d"))
    found = [str(one) for one in lint_power(loaded, [here, elsewhere])]
    chance = recorded(noise).power(part(), 1.15 * DEMANDED)
    message = (
        "c.yaml:9:5: warning: with the noise of one-run on small, even a true ratio of 1.26 would be decided "
        f"only with a probability of {100 * chance:.0f} %: use more processes, or a quieter machine"
    )
    assert found == [message] * warned
