"""What run directories cost, alone and as parts of a gate; and what the commands say of it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bundle_builders import LOADED, RUN_ID, header, write_evidence
from run_builders import make_contract
from times_builders import run_named

from harness.api import session
from harness.api.first_difference import foreseen_seconds
from harness.cli.printing import print_costs
from harness.evidence.base import ProbeName
from harness.evidence.environment_records import Environment, GpuFacts
from harness.evidence.read_run import ProcessTimes
from harness.execution.supervisor import write_process_times
from harness.run_directory.bundle import Bundle, Header, Resumption, read_bundle
from harness.run_directory.costs import Costs, Kind, PhaseSeconds, costs_of
from harness.run_directory.verdict_file import verdict_text
from harness.run_directory.writer import BundleWriter

LOADED_CONTRACTS: list[Any] = [LOADED]
PHASES = [("start", 0.0), ("graphed.0: steps", 0.25), ("untrained.0: steps", 0.5)]  # the end is at 1 s


def bundle(path: Path, *, began: float | None, described: Header | None = None) -> Bundle:
    """A run directory of one run; `began`: when its recorder began by the machine's clock, None: not recorded."""
    writer = BundleWriter(path, described or header(), [LOADED])
    write_evidence(writer)
    evidence = writer.evidence_directory(RUN_ID)
    lines = [
        {"record": "phase", "name": name, "seconds": at, "began": None if began is None else began + at}
        for name, at in PHASES
    ]
    records = evidence / "records.jsonl"
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    records.write_text(text + records.read_text())
    if began is not None:
        write_process_times(evidence, ProcessTimes(started=began - 2.0, ended=began + 1.5, gpu="GPU-1"))
    return read_bundle(writer.finish())


def test_costs_of_a_run_directory_with_clock_times_are_listed_by_phase(tmp_path: Path) -> None:
    seen = costs_of(bundle(tmp_path / "a", began=100.0), [LOADED.contract])
    assert (seen.clocked, seen.wall_seconds, seen.gpu_seconds) == (True, 3.5, 3.5)
    assert seen.by_run == {
        RUN_ID: [
            PhaseSeconds(phase="start of the interpreter", kind=Kind.IMPORTS, seconds=2.0),
            PhaseSeconds(phase="start", kind=Kind.IMPORTS, seconds=0.25),
            PhaseSeconds(phase="graphed.0: steps", kind=Kind.JUDGED_TRAINING, seconds=0.25),
            PhaseSeconds(phase="untrained.0: steps", kind=Kind.JUDGED_TRAINING, seconds=0.5),
            PhaseSeconds(phase="end of the process", kind=Kind.END, seconds=0.5),
        ]
    }


def test_time_spent_locating_a_first_difference_is_counted(tmp_path: Path) -> None:
    made = bundle(tmp_path / "a", began=100.0)
    folder = made.root / "where" / "T+0" / "0"
    shutil.copytree(made.root / "evidence" / RUN_ID, folder)
    run = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**run, "settings": {"spent_s": 4.0}}))
    lines = (folder / "records.jsonl").read_text().replace("untrained.0: steps", "untrained.0: locate")
    (folder / "records.jsonl").write_text(lines)
    seen = costs_of(made, [LOADED.contract])
    assert seen.by_kind[Kind.LOCATING] == 4.5
    assert seen.by_run["where/T+0/0"][0] == PhaseSeconds(phase="earlier executions", kind=Kind.LOCATING, seconds=4.0)
    assert seen.wall_seconds == 7.5


def test_the_duration_of_locating_is_estimated_from_recorded_runs(tmp_path: Path) -> None:
    made = bundle(tmp_path / "a", began=100.0)
    run = run_named("where").model_copy(update={"settings": {"last": 0}})
    steps = run.workload.steps
    run = run.model_copy(update={"arms": {"graphed with evaluate": next(iter(run.arms.values()))}})
    [unit, *_] = made.header.units
    # 2.25 s until the first arm begins, 0.25 s of steps of the arm itself
    assert foreseen_seconds(made, unit, run) == pytest.approx(3 * 2.25 + 5 * 0.25 / steps)
    assert foreseen_seconds(bundle(tmp_path / "b", began=None), unit, run.model_copy(update={"arms": {}})) is None


@pytest.mark.parametrize(("gpu", "gpu_seconds"), [(GpuFacts(uuid="GPU-1"), 1.0), (GpuFacts(problem="none"), 0.0)])
def test_an_older_run_is_charged_for_the_gpu_of_its_machine(tmp_path: Path, gpu: GpuFacts, gpu_seconds: float) -> None:
    described = header().model_copy(update={"environment": Environment(gpu=gpu)})
    seen = costs_of(bundle(tmp_path / "a", began=None, described=described), [LOADED.contract])
    assert (seen.clocked, seen.wall_seconds, seen.gpu_seconds) == (False, 1.0, gpu_seconds)


def test_costs_of_control_arms_follow_the_contracts_that_judge_the_run(tmp_path: Path) -> None:
    effect = {"control": "untrained", "last": 1, "at_least": 0.1}
    claim: dict[str, Any] = {"id": "T", "kind": "trajectory_match", "candidate": "graphed", "baseline": "plain"}
    demanded = {"equality": "bitwise", "max_abs_difference": 0.1}
    contract = make_contract({**claim, **demanded, "guards": {"steps": 3, "training_effect": effect}})
    seen = costs_of(bundle(tmp_path / "a", began=None), [contract])
    assert seen.by_kind == {Kind.IMPORTS: 0.25, Kind.JUDGED_TRAINING: 0.25, Kind.UNTRAINED_CONTROL: 0.5}


def test_runs_without_evidence_or_outside_the_directory_cost_nothing(tmp_path: Path) -> None:
    whole = bundle(tmp_path / "a", began=100.0)
    (tmp_path / "outside").symlink_to(tmp_path / "a/evidence" / RUN_ID)
    runs = {**whole.header.runs, "left-nothing": "paired", "../../outside": "paired"}
    seen = costs_of(replace(whole, header=whole.header.model_copy(update={"runs": runs})), [LOADED.contract])
    assert list(seen.by_run) == [RUN_ID]


def test_costs_of_gate_parts_are_summed_in_json_and_absent_from_verdicts(tmp_path: Path) -> None:
    bundles = [bundle(tmp_path / name, began=100.0) for name in ("a", "b")]
    judgement = session.judge_bundles(bundles, LOADED_CONTRACTS, gate=True)
    printed = json.loads(session.judgement_json(judgement))["costs"]
    assert (printed["wall_seconds"], printed["gpu_seconds"]) == (7.0, 7.0)
    assert printed["by_kind"] == {"imports": 4.5, "judged_training": 1.5, "digests_and_end": 1.0}
    assert list(printed["by_run"]) == [f"a/{RUN_ID}", f"b/{RUN_ID}"]
    assert printed["by_run"][f"b/{RUN_ID}"][1] == {"phase": "start", "kind": "imports", "seconds": 0.25}
    assert "seconds" not in verdict_text(judgement.verdicts)


def test_an_interruption_costs_nothing_and_clocks_of_two_boots_are_not_mixed(tmp_path: Path) -> None:
    """Two runs take 3.5 s each, and the machine was restarted between them."""
    resumption = Resumption(at="2026-11-21T12:00:00+00:00", command=["harness"], executed=["later"], cut_off=[])
    runs: dict[str, ProbeName] = {RUN_ID: "paired", "later": "paired"}
    described = header().model_copy(update={"runs": runs, "resumed": [resumption]})
    whole = bundle(tmp_path / "a", began=100.0, described=described)
    again = bundle(tmp_path / "b", began=5000.0)
    shutil.copytree(again.path / "evidence" / RUN_ID, whole.path / "evidence" / "later")
    seen = costs_of(whole, [LOADED.contract])
    assert (seen.clocked, seen.wall_seconds, seen.gpu_seconds, list(seen.by_run)) == (True, 7.0, 7.0, [RUN_ID, "later"])


def test_costs_are_printed_in_one_line_and_only_with_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    judgement = session.judge_bundles([bundle(tmp_path / "a", began=100.0)], LOADED_CONTRACTS)
    print_costs(judgement)
    print_costs(session.Judgement(replace(judgement.view, costs=Costs())))
    assert capsys.readouterr().out == (
        "3.5 s by the clock, 3.5 s of GPU time, 1 run of 3.5 s: interpreter start and imports 2.2 s · "
        "judged training 0.8 s · digests and end 0.5 s\n"
    )
