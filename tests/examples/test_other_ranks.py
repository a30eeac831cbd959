"""Trainers whose ranks divide more than the batch: held as they are, and each bug is named by a claim."""

from __future__ import annotations

from pathlib import Path

import pytest
from planning import NO_GPU

from harness.contract.load import load_contract
from harness.contract.schema import Contract
from harness.evidence.read_run import read_run
from harness.execution.supervisor import execute
from harness.judging.registry import judge_unit
from harness.planning.plan import plan
from harness.system.resolve import resolve

pytestmark = [pytest.mark.usefixtures("warm"), pytest.mark.slow]

EXAMPLES = Path(__file__).parents[2] / "examples" / "ranks" / "others"


class Loaded:
    def __init__(self, contract: Contract) -> None:
        self.contract = contract


def judged(name: str, folder: Path) -> dict[str, tuple[str, str]]:
    """Reason and message of each claim on two processes of this machine's processor."""
    contract = load_contract(EXAMPLES / f"{name}.yaml").contract
    planned = plan(
        [Loaded(contract)], workloads=["cpu"], machine=NO_GPU, describe=lambda system: resolve(system).describe()
    )
    [run] = planned.runs
    execute(run, folder / "run")
    evidence = read_run(folder / "run")[1]
    known = {claim.id: claim for claim in contract.claims}
    verdicts = [judge_unit(contract, known[unit.claim], "cpu", [evidence]) for unit in planned.units]
    return {each.claim: (each.reason, each.message) for each in verdicts}


@pytest.mark.parametrize(
    ("name", "bug", "claim", "reason", "names"),
    [
        ("tensor", "own_norm", "TENSOR-REPLICAS", "ranks_differ", "rank 1"),
        ("experts", "first_rank_only", "EXPERTS-ONE-RANK", "exceeds_tolerance", "end with different values (1.load"),
    ],
)
def test_a_trainer_of_several_ranks_passes_and_fails_once_its_bug_is_enabled(
    name: str, bug: str, claim: str, reason: str, names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = judged(name, tmp_path / "right")
    assert {each[0] for each in right.values()} == {"held"}, right
    monkeypatch.setenv("RANKS_BUG", bug)
    wrong = judged(name, tmp_path / "wrong")[claim]
    assert wrong[0] == reason
    assert names in wrong[1]
