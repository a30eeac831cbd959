"""The example of several ranks: its adapter's size, its claims as they stand, and under a fault."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from planning import NO_GPU
from ranked_averages import Averages, StaleAverages, StaleStatistic

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

EXAMPLE = Path(__file__).parents[2] / "examples" / "ranks" / "ddp_loop"
STEPS = 12


class Loaded:
    def __init__(self, contract: Contract) -> None:
        self.contract = contract


def judged(
    folder: Path, fault: str | None = None, claims: tuple[str, ...] = (), *, system: str | None = None
) -> dict[str, Verdict]:
    """Verdicts of a short run of two ranks, by claim; of another system under the same claims."""
    text = (EXAMPLE / "contract.yaml").read_text()
    text = re.sub(r"(?m)^system: .*", f"system: {system}", text) if system is not None else text
    text = re.sub(r"\n +training_effect: .*", "", re.sub(r"(steps|distinct_batches): 40", rf"\1: {STEPS}", text))
    (folder / "contract.yaml").write_text(text)
    contract = load_contract(folder / "contract.yaml").contract
    planned = plan(
        [Loaded(contract)],
        claims=claims,
        workloads=["small"],
        fault=fault,
        machine=NO_GPU,
        describe=lambda name: resolve(name).describe(),
        harness_faults=HARNESS_FAULTS,
    )
    [run] = planned.runs
    execute(run, folder / "run")
    evidence = read_run(folder / "run")[1]
    known = {claim.id: claim for claim in contract.claims}
    return {unit.claim: judge_unit(contract, known[unit.claim], "small", [evidence]) for unit in planned.units}


def test_the_adapter_has_at_most_30_lines() -> None:
    assert len((EXAMPLE / "adapter.py").read_text().splitlines()) <= 30


def test_two_ddp_ranks_hold_equal_models_and_train_like_one_process(tmp_path: Path) -> None:
    verdicts = judged(tmp_path)
    assert {claim: (verdict.reason, verdict.message) for claim, verdict in verdicts.items()} == {
        claim: ("held", verdict.message) for claim, verdict in verdicts.items()
    }
    figures = {name: figure.value for name, figure in verdicts["DDP-REPLICAS"].figures.items()}
    assert (figures["collectives"], figures["host_collectives_per_step"]) == ("gloo:all_reduce", 1)
    assert verdicts["DDP-REPLICAS"].denominators["ranks"] == 2
    ends = verdicts["DDP-ONE-RANK"].figures["end_max_abs_difference"].value
    assert isinstance(ends, float)
    assert 0 < ends < 1e-5  # another order of sums: equal bits would be one computation, made twice


@pytest.mark.parametrize(
    ("fault", "claim", "reason"),
    [("skipped_reduction", "DDP-REPLICAS", "ranks_differ"), ("stale_rank", "DDP-ONE-RANK", "unequal_batches")],
)
def test_a_planted_rank_fault_is_reported_with_its_rank(tmp_path: Path, fault: str, claim: str, reason: str) -> None:
    verdict = judged(tmp_path, fault, (claim,))[claim]
    assert verdict.reason == reason, verdict.message
    assert verdict.figures["rank"].value == 1
    expected = HARNESS_FAULTS[fault].breaks[{"DDP-REPLICAS": "ranks_agree", "DDP-ONE-RANK": "ranks_match"}[claim]]
    assert {name: verdict.figures[name].value for name in expected.figures} == dict(expected.figures)


@pytest.mark.parametrize("system", [Averages, StaleAverages, StaleStatistic], ids=lambda system: system.__name__)
def test_an_average_that_no_rank_loss_reads_must_end_as_in_one_process(tmp_path: Path, system: type[Averages]) -> None:
    named = f"ranked_averages:{system.__name__}"
    verdict = judged(tmp_path, claims=("DDP-ONE-RANK",), system=named)["DDP-ONE-RANK"]
    assert verdict.reason == ("held" if system.told is None else "ends_apart"), verdict.message
    if system.told is not None:
        assert verdict.figures["end_distance_tensor"].value == system.told
