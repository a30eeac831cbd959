"""Faults of a claim that a system cannot have decided, with them or without: not run, neither killed nor survivors."""

from __future__ import annotations

import pytest
import yaml

from harness.api.drill import DrillOptions, DrillResult, drill
from harness.cli import judge
from harness.drill.recheck import decidable
from harness.errors import ExitCode
from harness.run_directory.verdict_file import Control, Row, Triple

STEP = """\
import torch
from torch import nn

from harness.system.made_step import MadeStepSystem


def make_step(seed):
    torch.manual_seed(seed)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch):
        optimizer.zero_grad()
        loss = model(batch["x"]).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    def batch(index):
        return {"x": torch.randn(8, 4, generator=torch.Generator().manual_seed(index))}

    return step, batch, model


class System(MadeStepSystem):
    name = "without evaluate"

    def build(self, workload, arm):
        return make_step(workload.seed)
"""
CONTRACT = """\
schema: contract/v2
id: between-v1
title: A step without evaluate
system: lacks_evaluate:System
workloads:
  small: {model: linear, batch_size: 8, seq_len: 1, steps: 12, needs: {device: cpu}}
arms:
  plain: {capture: none}
claims:
  - id: EVALUATED
    title: Evaluations change nothing
    kind: evaluation
    candidate: plain
    every: 3
    evaluations: 4
    steps: 12
    judged_on: [small]
    why: an evaluation reads
    if_fails: look at what it draws
    falsified_by: [idle_evaluation, training_evaluation, no_steps]
"""


def row(seen: str, *, killed: bool = False) -> Row:
    found = Triple(status=seen, reason="any", figures={})
    expected = Triple(status="FAIL", reason="differs", figures={})
    return Row(
        contract="c",
        claim="C",
        workload="w",
        fault="f",
        expected=expected,
        seen=found,
        killed=killed,
        upstream_alone_passes=None,
        message="why",
    )


@pytest.mark.parametrize(
    ("without", "with_it", "left"),
    [
        ("NOT_RUN", "NOT_RUN", 1),
        ("PASS", "NOT_RUN", 0),  # the fault hides itself: it survived
        ("NOT_RUN", "PASS", 0),
        ("NOT_RUN", "ERROR", 0),
    ],
)
def test_a_fault_is_left_out_only_if_its_claim_is_undecided_without_a_fault(
    without: str, with_it: str, left: int
) -> None:
    control = Control(contract="c", claim="C", workload="w", status=without, reason="any", message="m")
    rows, not_run = decidable([row(with_it)], [control])
    assert (len(rows), [(item.claim, item.fault, item.reason, item.message) for item in not_run]) == (
        1 - left,
        [("C", "f", "any", "why")] * left,
    )


@pytest.fixture(scope="module")
def drilled(tmp_path_factory: pytest.TempPathFactory, warm: None) -> DrillResult:
    folder = tmp_path_factory.mktemp("drill")
    (folder / "lacks_evaluate.py").write_text(STEP)
    (folder / "contract.yaml").write_text(CONTRACT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        return drill([folder / "contract.yaml"], DrillOptions(reports=folder / "reports", name="drilled"))


def test_a_claim_without_its_required_capability_lets_no_fault_survive(drilled: DrillResult) -> None:
    record = drilled.record
    assert [(each.claim, each.status) for each in record.controls] == [("EVALUATED", "NOT_RUN")]
    assert (record.planned, record.rows, record.survivors) == (3, [], [])
    assert sorted((item.fault, item.reason) for item in record.not_run) == [
        (fault, "not_available") for fault in sorted(yaml.safe_load(CONTRACT)["claims"][0]["falsified_by"])
    ]
    assert drilled.exit_code is ExitCode.UNDECIDED


def test_a_drill_with_undecided_claims_is_judged_the_same_again(
    drilled: DrillResult, capsys: pytest.CaptureFixture[str]
) -> None:
    assert drilled.run_directory is not None
    assert judge.check_recorded([drilled.run_directory], as_json=False) == 0
    assert capsys.readouterr().out.startswith("same")
