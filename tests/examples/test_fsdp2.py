"""The example of FSDP2: its claims in two processes, under faults, and a capture refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from planning import NO_GPU

from harness.contract.load import load_contract
from harness.contract.schema import Contract
from harness.evidence.read_run import read_run
from harness.execution.supervisor import execute
from harness.judging.registry import judge_unit
from harness.judging.verdict import Verdict
from harness.planning.plan import plan
from harness.system.resolve import resolve
from harness.system.wrappers import HARNESS_FAULTS

pytestmark = pytest.mark.usefixtures("warm")

EXAMPLE = Path(__file__).parents[2] / "examples" / "ranks" / "fsdp2"
STEPS = 8
CAPTURED = """
  - id: FSDP-CAPTURED
    title: The step is captured
    kind: capture
    candidate: captured
    captures: 1
    judged_on: [tiny]
    why: It is asked for where it cannot be had.
    if_fails: As it does.
    falsified_by: [decoy_graph]
"""


class Loaded:
    def __init__(self, contract: Contract) -> None:
        self.contract = contract


def judged(
    folder: Path, *, fault: str | None = None, claims: tuple[str, ...] = (), also: str = ""
) -> dict[str, Verdict]:
    """Verdicts of a short run of two ranks, by claim."""
    text = (EXAMPLE / "contract.yaml").read_text() + also
    text = re.sub(r"\n +training_effect: .*", "", re.sub(r"(steps|distinct_batches): 20", rf"\1: {STEPS}", text))
    text = text.replace("\nclaims:", "  captured: {capture: step, ranks: 2}\n\nclaims:") if also else text
    text = re.sub(r"\n  untrained: .*", "", text)
    (folder / "contract.yaml").write_text(text)
    contract = load_contract(folder / "contract.yaml").contract
    planned = plan(
        [Loaded(contract)],
        claims=claims,
        workloads=["tiny"],
        fault=fault,
        machine=NO_GPU,
        describe=lambda name: resolve(name).describe(),
        harness_faults=HARNESS_FAULTS,
    )
    [run] = planned.runs
    execute(run, folder / "run")
    evidence = read_run(folder / "run")[1]
    known = {claim.id: claim for claim in contract.claims}
    units = [unit for unit in planned.units if unit.obstacle is None]
    return {unit.claim: judge_unit(contract, known[unit.claim], "tiny", [evidence]) for unit in units}


def test_the_adapter_has_at_most_30_lines() -> None:
    assert len((EXAMPLE / "adapter.py").read_text().splitlines()) <= 30


@pytest.mark.slow
def test_fsdp2_ranks_train_like_one_process_and_an_uncapturable_step_is_reported(tmp_path: Path) -> None:
    verdicts = judged(tmp_path, also=CAPTURED)
    refused = verdicts.pop("FSDP-CAPTURED")
    assert refused.reason == "not_captured"
    assert "found 28 tensors divided among ranks (DTensor)" in refused.message
    assert {claim: (verdict.reason, verdict.message) for claim, verdict in verdicts.items()} == {
        claim: ("held", verdict.message) for claim, verdict in verdicts.items()
    }
    assert set(verdicts) == {"FSDP-ONE-RANK", "FSDP-HALVES", "FSDP-REPLICATED", "FSDP-COMPILED"}
    figures = {name: figure.value for name, figure in verdicts["FSDP-HALVES"].figures.items()}
    assert (figures["largest_share"], figures["parameters_in_parts"]) == (0.5, 28)
    assert figures["host_collectives_per_step"] in (9, 10)  # the harness's own gathering of 28 tensors is none of them
    apart = verdicts["FSDP-ONE-RANK"].figures["end_max_abs_difference"].value
    assert isinstance(apart, float)
    assert 0 < apart < 1e-5  # another order of sums: equal bits would be one computation, made twice
    firsts = {arm: executions[0].end for arm, executions in read_run(tmp_path / "run")[1].arms.items()}
    assert {arm for arm, end in firsts.items() if end and not end.loss_terms} == {"captured"}


@pytest.mark.parametrize(
    ("fault", "claim", "reason"),
    [
        ("skipped_reduction", "FSDP-ONE-RANK", "exceeds_tolerance"),
        ("whole_in_every_rank", "FSDP-HALVES", "share_exceeded"),
    ],
)
def test_a_fault_of_one_rank_or_of_its_shard_is_reported(tmp_path: Path, fault: str, claim: str, reason: str) -> None:
    verdict = judged(tmp_path, fault=fault, claims=(claim,))[claim]
    assert verdict.reason == reason, verdict.message
    if reason == "exceeds_tolerance":
        assert verdict.figures["first_exceeding_step"].value in (5, 6)
