"""What is said of a trial on a GPU: how much faster, how much memory, and what would mend it; from made evidence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from evidence_builders import arm, memory
from report_views import verdict, view_with

import harness
from harness.api import session
from harness.contract.load import load_contracts
from harness.devices.cuda_driver import Gpu
from harness.devices.environment import Machine
from harness.evidence.run_evidence import RunEvidence
from harness.first_contract.advice import advice, places_in, places_in_stack
from harness.first_contract.answers import Answers
from harness.first_contract.draft import Arms, Draft, arms_here, keep
from harness.first_contract.step_source import find_step_source
from harness.first_contract.trying import Tried
from harness.judging.verdict import Figure, Status
from harness.run_directory.costs import Costs, PhaseSeconds, kind_of

GIB = 2**30


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("def make_step():\n    return step, batch, model\n")
    return tmp_path


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(True, "", (Gpu("NVIDIA H200", "GPU-1", "sm_90", 140.0),), 64.0)
    monkeypatch.setattr("harness.devices.environment.machine", lambda: machine)


def tried(*verdicts: Any) -> Tried:
    facts = {"device": "cuda:0", "layers": 2}
    arms = {
        "plain": [arm("plain", facts=facts, memory=[memory([2 * GIB, 3 * GIB])])],
        "captured": [arm("captured", memory=[memory([GIB, 3 * GIB // 2])])],
        "waiting": [arm("waiting", memory=[memory([9 * GIB])])],
    }
    run = RunEvidence("train-v1+small+paired", "paired", arms)
    view = replace(view_with(*verdicts), evidence={run.run_id: run})
    draft = Draft(find_step_source("train.py:make_step"), 40, Arms(compiled=False, timed=True, memory=True))
    return Tried(draft, session.Judgement(view), None)


def test_trial_answers_on_a_gpu_include_speed_and_memory(project: Path, gpu: None) -> None:
    faster = verdict("TRAIN-FASTER", message="m", figures={"mean_ratio": Figure(value=1.374, unit="x")})
    slower = verdict(
        "TRAIN-COMPILED-FASTER", status=Status.FAIL, reason="too_slow", message="n",
        figures={"mean_ratio": Figure(value=0.9, unit="x")},
    )  # fmt: skip
    assert Answers().rest(tried(faster, slower)) == [
        "train.py:make_step (train.py:1): 40 steps of each arm, on NVIDIA H200",
        "",
        "      yes  is not slower              1.37 times as fast as the plain step: m",
        "  not run  compiled, trains the same  --no-compile",
        "       NO  compiled, is not slower    0.90 times as fast as the plain step: n",
        (
            "             -> for each arm, compare the time that the device works in a step with the time of the whole "
            "step"
        ),
        "           memory                     plain 3.000 GiB, captured 1.500 GiB allocated after a step",
    ]


def test_a_trial_without_timing_reports_the_speed_question_as_not_run(project: Path, gpu: None) -> None:
    asked = replace(tried().draft, arms=arms_here(compiled=False, speed=False))
    assert not asked.arms.timed
    assert arms_here(compiled=False).timed
    lines = Answers().rest(replace(tried(verdict("TRAIN-SAME")), draft=asked))
    assert "  not run  is not slower              --no-speed" in lines


@pytest.mark.parametrize(("has_gpu", "device"), [(True, "cuda"), (False, None)])
def test_a_contract_drafted_on_a_gpu_requires_a_gpu(
    has_gpu: bool, device: str | None, project: Path, request: pytest.FixtureRequest
) -> None:
    """Otherwise the gate could later open on a runner whose GPU is missing."""
    if has_gpu:
        request.getfixturevalue("gpu")
    source = find_step_source("train.py:make_step")
    keep(Draft(source, 43, arms_here(compiled=False, speed=False), long=600), project, force=False)
    [loaded] = load_contracts([project / "contracts"])
    assert {workload.needs.device for workload in loaded.contract.workloads.values()} == {device}
    assert ("unless you add `needs: {device: cuda}`" in loaded.text) == (not has_gpu)


def test_an_early_answer_is_repeated_at_the_end_only_if_it_changed(project: Path, gpu: None) -> None:
    same, repeats = verdict("TRAIN-SAME", message="m"), verdict("TRAIN-REPEATS", message="r")
    lines = Answers()
    assert lines.early(same, tried(same))[2:] == ["      yes  captured, trains the same  m"]
    assert lines.early(repeats, tried(repeats)) == ["      yes  repeats itself             r"]
    other = verdict("TRAIN-SAME", status=Status.FAIL, reason="no_advice", message="n")
    assert lines.rest(tried(other, repeats))[:1] == ["       NO  captured, trains the same  n"]


def test_arms_that_start_unequal_are_answered_with_their_losses(project: Path, gpu: None) -> None:
    figures = {"max_abs_difference": Figure(value=0.119, unit="loss"), "steps_differing": Figure(value=20)}
    start = verdict(
        "TRAIN-SAME", status=Status.FAIL, reason="unequal_start", message="m", figures=figures,
        denominators={"steps": 20},
    )  # fmt: skip
    answer = Answers().rest(tried(start))[2]
    assert answer.endswith("m; their losses differ at 20 of 20 steps, by at most 0.119 loss")
    within = start.model_copy(update={"figures": {"max_abs_difference": figures["max_abs_difference"]}})
    assert Answers().rest(tried(within))[2].endswith("m; their losses differ, by at most 0.119 loss")


def test_a_trial_says_where_its_time_went(project: Path, gpu: None) -> None:
    spent = {"plain.0: steps": 2.0, "plain.1: steps": 1.5, "compiled.0: open": 0.25, "start": 3.0, "end": 0.04}
    phases = [PhaseSeconds(phase=phase, kind=kind_of(phase), seconds=seconds) for phase, seconds in spent.items()]
    costs = Costs(wall_seconds=4.2, by_run={"train-v1+small+paired": phases})
    seen = tried(verdict("TRAIN-SAME", message="m"))
    timed = replace(seen, judgement=replace(seen.judgement, view=replace(seen.judgement.view, costs=costs)))
    told = " ".join(line.strip() for line in Answers().rest(timed)).partition(" time ")[2].strip()
    assert told.startswith("4 s by the clock: plain 3.5 s, interpreter start and imports 3.0 s, compiled 0.2 s")
    assert "digests" not in told


def test_gradients_that_differ_are_answered_after_the_losses_and_repeat_no_finding(project: Path, gpu: None) -> None:
    failed: Any = {"status": Status.FAIL, "reason": "differs"}
    losses = verdict("TRAIN-SAME", message="m", **failed)
    gradients, syncs = verdict("TRAIN-GRADIENTS", message="g", **failed), verdict("TRAIN-SYNCS", message="s")
    lines = Answers()
    assert lines.early(gradients, tried(gradients))[2:] == []
    assert lines.early(syncs, tried(syncs)) == ["      yes  never waits for the device s"]
    first, *below, second, again = lines.early(losses, tried(losses))
    assert first == "       NO  captured, trains the same  m"
    assert below[0].strip().startswith("-> look at the first step that differs")
    assert (second, again.strip()) == ("       NO  leaves the same gradients  g", "-> as above")
    assert all("NO" not in line for line in lines.rest(tried(losses, gradients)))
    alone = Answers()
    assert alone.early(gradients, tried(gradients))[2:] == []
    assert alone.rest(tried(gradients))[0] == "       NO  leaves the same gradients  g"


WAITING = {
    "losses.append(loss.item())": "keep the tensor",
    "total += float(loss)": "keep the tensor",
    'print(f"loss {loss}")': "keep the tensor",
    "optimizer.step()": "torch's optimizers read their own step count",
    "if loss > best:": "a Python `if` on a tensor",
    "rate = high if loss < best else low": "a Python `if` on a tensor",
    "kept = values[values > 0]": "the shape of this result depends on values",
    "logits = logits[mask]": "the shape of this result depends on values",
    "policy = Categorical(logits=scores)": "torch's distributions check their arguments",
    "chosen = torch.multinomial(chances, 1)": "`multinomial` checks the probabilities",
}


@pytest.mark.parametrize("code", WAITING)
def test_a_source_line_that_waits_for_the_device_is_quoted_with_its_fix(code: str, project: Path) -> None:
    (project / "step.py").write_text(f"\n    {code}\n")
    quoted, mend = advice("sync_count", [("step.py", 2), ("step.py", 2), ("torch/optim.py", 2)], [project])
    assert quoted == f"step.py:2: {code}"
    assert mend.startswith(f"-> {WAITING[code]}")
    assert list(advice("held", [("step.py", 2)], [project])) == [quoted]


def test_an_optimizer_without_a_fused_form_gets_no_advice_to_use_it(project: Path) -> None:
    (project / "step.py").write_text("optimizer.step()\n")
    message = "arm captured never replayed a capture: aten::item at step.py:1; Own always reads values on the host"
    _, mend = advice("candidate_not_captured", [("step.py", 1)], [project], "", message)
    assert mend.startswith("-> this optimizer reads a value on the host")


OF_A_START = "candidate optimized and baseline plain start from different state: "
ASKED = {
    ("exceeds_tolerance", "COMPILED", ""): "the compiled step trains differently",
    ("exceeds_tolerance", "WITHIN", ""): "start at the named step and tensor",
    ("exceeds_tolerance", "", ""): "start at the named step and tensor",
    ("end_differs", "SAME", ""): "look at how the named tensor is updated in both arms",
    ("end_differs", "WITHIN", ""): "the optimized step makes a different number of updates",
    ("end_differs", "REPEATS", ""): "the plain step ends with different values each time",
    ("differs", "SAME", ""): "look at the first step that differs",
    ("differs", "REPEATS", ""): "the plain step trains differently each time",
    (
        "unequal_start",
        "WITHIN",
        "start from different trainable parameters: their values differ",
    ): "set the seed inside the function",
    (
        "unequal_start",
        "WITHIN",
        "train parameters with different names: only a has b",
    ): "`parameters` must use the same names",
    ("unequal_start", "WITHIN", f"{OF_A_START}optimizer group0.lr"): "the optimizers of the arms have different",
    ("unequal_start", "WITHIN", f"{OF_A_START}optimizer group0.fused_kernel"): "a setting of the optimizer differs",
    ("unequal_start", "WITHIN", f"{OF_A_START}optimizer opt.group12.mode, optimizer group1.mode"): "a setting of the",
    ("unequal_start", "WITHIN", f"{OF_A_START}tensors average.0 (only in baseline plain)"): "one arm keeps state",
    ("unequal_start", "WITHIN", f"{OF_A_START}buffers 1.running_mean"): "set the seed inside the function",
}


@pytest.mark.parametrize(("known", "text"), ASKED.items())
def test_advice_depends_on_the_compared_arm_and_on_the_difference(known: tuple[str, str, str], text: str) -> None:
    reason, question, message = known
    [asked] = advice(reason, [], [], question, message)
    assert asked.startswith(f"-> {text}")


def test_reported_places_are_only_those_of_the_users_project(project: Path) -> None:
    assert places_in("at train.py:2 aten (1), in src/a-b.py:3") == [("train.py", 2), ("src/a-b.py", 3)]
    stack = f'File "/lib/threading.py", line 1 in x\nFile "{project}/train.py", line 2 in y\nFile "train.py", line 1'
    assert places_in_stack(stack, [project]) == [("train.py", 2), ("train.py", 1)]
    assert list(advice("held", [(f"{project}/train.py", 1)], [project])) == []


def test_lines_of_the_harness_and_of_libraries_are_not_reported_as_users_lines(project: Path) -> None:
    checkout = Path(harness.__file__).parents[1]
    frames = 'File "harness/api/session.py", line 1 in x\nFile "train.py", line 1 in y'
    assert places_in_stack(frames, [checkout, project]) == [("train.py", 1)]
    installed = ".venv/lib/python3/site-packages"
    (project / installed).mkdir(parents=True)
    (project / installed / "library.py").write_text("x = 1\n")
    inside = f'File "{project}/{installed}/library.py", line 1 in x'
    assert places_in_stack(inside, [project]) == []
    assert places_in_stack(inside, [project / installed]) == [("library.py", 1)]  # the step lies there itself
