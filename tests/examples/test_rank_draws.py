"""Which random numbers two ranks share is recorded, and judged as a contract says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from planning import NO_GPU
from ranked_draws import DepthApart, Draws, NothingDrawn, SharedMasks, UnseededMasks
from run_builders import make_contract

from harness.evidence.read_run import read_run
from harness.execution.supervisor import execute
from harness.judging.registry import judge_unit
from harness.judging.verdict import Verdict
from harness.planning.plan import plan
from harness.system.resolve import resolve
from harness.system.wrappers import HARNESS_FAULTS

pytestmark = pytest.mark.usefixtures("warm")

STEPS = 10
DEMAND = {"torch.cpu": "separate", "depth": "shared"}


class Loaded:
    def __init__(self, contract: Any) -> None:
        self.contract = contract


def judged(folder: Path, system: type[Draws], generators: Any = None, fault: str | None = None) -> Verdict:
    """Return the verdict of `ranks_agree` about two ranks of the system, with what the claim says of generators."""
    claim = {"id": "AGREE", "kind": "ranks_agree", "candidate": "ranks", "steps": STEPS, "generators": generators}
    claim |= {"falsified_by": [fault]} if fault else {}
    size = {"model": "classifier", "batch_size": 16, "seq_len": 1, "steps": STEPS, "needs": {"device": "cpu"}}
    contract = make_contract(
        claim, arms={"ranks": {"ranks": 2}}, workloads={"w": size}, system=f"ranked_draws:{system.__name__}"
    )
    planned = plan(
        [Loaded(contract)],
        fault=fault,
        machine=NO_GPU,
        describe=lambda name: resolve(name).describe(),
        harness_faults=HARNESS_FAULTS,
    )
    [run] = planned.runs
    execute(run, folder / "run")
    return judge_unit(contract, contract.claims[0], "w", [read_run(folder / "run")[1]])


@pytest.mark.parametrize(
    ("system", "generators", "reason", "drawn"),
    [
        (Draws, DEMAND, "held", "depth: shared; torch.cpu: separate"),
        (UnseededMasks, DEMAND, "held", "depth: shared; torch.cpu: separate"),
        (SharedMasks, None, "held", "depth: shared; torch.cpu: shared"),
        (SharedMasks, DEMAND, "ranks_draw_alike", "depth: shared; torch.cpu: shared"),
        (DepthApart, DEMAND, "ranks_draw_apart", "depth: separate; torch.cpu: separate"),
        (NothingDrawn, "separate", "rank_draws_unseen", None),
    ],
    ids=["as they should", "unseeded masks", "nothing demanded", "shared masks", "depth apart", "nothing drawn"],
)
def test_random_numbers_that_ranks_share_are_reported(
    tmp_path: Path, system: type[Draws], generators: Any, reason: str, drawn: str | None
) -> None:
    verdict = judged(tmp_path, system, generators)
    assert verdict.reason == reason, verdict.message
    assert (verdict.figures["random_numbers"].value if drawn else None) == drawn
    if generators is None:
        assert verdict.message.endswith("; the ranks draw the same random numbers from depth, torch.cpu")


@pytest.mark.parametrize(("fault", "word"), [("seeded_alike", "separate"), ("seeded_apart", "shared")])
def test_a_planted_fault_of_random_seeds_across_ranks_is_reported(tmp_path: Path, fault: str, word: str) -> None:
    verdict = judged(tmp_path, Draws, {"torch.cpu": word} if word == "separate" else {"numpy": word}, fault)
    expected = HARNESS_FAULTS[fault].breaks["ranks_agree"]
    assert verdict.reason == expected.reason, verdict.message
    assert {name: verdict.figures[name].value for name in expected.figures} == dict(expected.figures)
