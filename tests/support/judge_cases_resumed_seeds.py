"""Cases of not_worse whose candidate is resumed with each seed: passing evidence with one thing changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from evidence_builders import STEPS, cuda_graph, verdict_of
from judge_cases import Case
from judge_cases_between_steps import BATCHES, SAVE_AT, loaded, saved
from judge_cases_seeds import NOISE, NOT_WORSE, SEEDS, batches, controls, executions, of_seed

from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.judging.verdict import Verdict

RESUMED = NOT_WORSE | {"save_at": SAVE_AT}
Changes = Mapping[int, Mapping[str, Any]]
NO_STEPS: Changes = {seed: {"losses": np.zeros(0), "batches": []} for seed in SEEDS}


def halves(
    name: str = "ungraphed",
    first: Changes | None = None,
    second: Changes | None = None,
    worse: float = 0.0,
    **both: Any,
) -> list[ArmEvidence]:
    """Return both halves of each seed. first, second: changes of a half by seed. both: changes of all halves."""
    found = []
    for seed in SEEDS:
        losses = of_seed(seed) + (NOISE[seed] + worse) * (np.arange(STEPS) > 0)
        of_both = {"facts": {"seed": seed}, **both}
        read = batches(seed)
        found += [
            saved(
                name,
                **{"losses": losses[:SAVE_AT], "batches": read[:SAVE_AT], **of_both, **(first or {}).get(seed, {})},
            ),
            loaded(
                name,
                **{"losses": losses[SAVE_AT:], "batches": read[SAVE_AT:], **of_both, **(second or {}).get(seed, {})},
            ),
        ]
    return found


def resumed(candidate: list[ArmEvidence] | None = None, **claim: Any) -> Verdict:
    """Return the verdict if these halves of the candidate replace the passing ones."""
    mine = candidate or halves()
    arms = {"same_system": executions("same_system"), mine[0].start.arm: mine, "untrained": controls()}
    claimed = RESUMED | {"candidate": mine[0].start.arm} | claim
    return verdict_of(claimed, RunEvidence("run", "resumed_seeds", arms))


def captured(**second: Any) -> Verdict:
    """Return the verdict on a captured candidate."""
    of_half = {seed: {"capture": cuda_graph(replays=STEPS - SAVE_AT), **second} for seed in SEEDS}
    before = {seed: {"capture": cuda_graph(replays=SAVE_AT)} for seed in SEEDS}
    return resumed(halves("graphed", before, of_half), mechanism="cuda_graph")


def not_restored() -> list[ArmEvidence]:
    lost = {"after": {"optimizer": {"p0.exp_avg": "fresh"}}}
    return halves(second={4: lost})


RESUMED_SEED_CASES = [
    Case("resumed, no worse", "held", resumed),
    Case("resumed, captured", "held", captured),
    Case("resumed, and something not restored", "held", lambda: resumed(not_restored())),
    Case("resumed, worse by far", "worse", lambda: resumed(halves(worse=0.5))),
    Case("resumed, one half missing", "evidence_missing", lambda: resumed(halves()[:-1])),
    Case(
        "resumed, no record of a load",
        "evidence_missing",
        lambda: resumed([*halves()[:-1], replace(halves()[-1], loaded=None)]),
    ),
    Case(
        "resumed, saved at another step",
        "evidence_inconsistent",
        lambda: resumed(halves(first={1: {"record": {"steps": 3}}})),
    ),
    Case("resumed, no steps", "vacuous_steps", lambda: resumed(halves(first=NO_STEPS, second=NO_STEPS))),
    Case(
        "resumed, with another seed",
        "evidence_inconsistent",
        lambda: resumed(halves(second={2: {"facts": {"seed": 7}}})),
    ),
    Case(
        "resumed, after other steps",
        "evidence_inconsistent",
        lambda: resumed(halves(second={2: {"record": {"steps_before": 1}}})),
    ),
    Case(
        "resumed, in one process",
        "vacuous_one_process",
        lambda: resumed(halves(second={3: {"record": {"process": 11}}})),
    ),
    Case(
        "resumed, nothing saved", "vacuous_nothing_saved", lambda: resumed(halves(first={3: {"record": {"bytes": 0}}}))
    ),
    Case(
        "resumed, nothing loaded",
        "nothing_loaded",
        lambda: resumed(halves(second={3: {"record": {"trainable_after": "start"}}})),
    ),
    Case(
        "resumed, on other batches",
        "unequal_batches",
        lambda: resumed(halves(second={4: {"batches": BATCHES[: STEPS - SAVE_AT]}})),
    ),
    Case(
        "resumed, a non-finite state was saved",
        "non_finite_end",
        lambda: resumed(halves(first={1: {"end_state": {"buffers": {"mean": "b2!"}}}})),
    ),
]
