"""`harness try` from the command line: what it answers of sound, broken and hostile steps, and how it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from first_steps import called, written
from waiting import eventually

from harness.first_contract.trying import Tried, try_step
from harness.judging.verdict import Verdict

pytestmark = pytest.mark.usefixtures("warm", "warm_commands", "described_here")

ROOT = Path(__file__).parents[3]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "temporary").mkdir()
    return tmp_path


def command(project: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(project / "temporary")}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "harness", *arguments],
        cwd=project,
        env=environment | {"CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


TRY = ("try", "train.py:make_step", "--no-compile", "--steps", "12")


def tried(project: Path, *options: str) -> tuple[int, list[str]]:
    """Exit code and printed lines of a trial of few steps, without torch.compile."""
    code, printed, errors = called(project, *TRY, *options)
    assert "Traceback" not in errors
    assert list((project / "temporary").glob("harness*")) == []
    return code, printed.splitlines()


def answers(lines: list[str]) -> dict[str, str]:
    """Each question with its answer, and what follows it up to the next one."""
    found: dict[str, str] = {}
    question = ""
    for line in lines[2 : lines.index("", 2)]:
        if line[11:12] != " ":
            question = line[11:37].strip()
            found[question] = line[:9].strip() + ":" + line[37:]
        else:
            found[question] += "\n" + line.strip()
    return found


@pytest.mark.slow
def test_trying_a_correct_step_with_write_contract_stores_its_contract_and_run(project: Path) -> None:
    """The test starts the command `harness try` as a user does."""
    written(project)
    process = command(project, *TRY, "--write-contract", "--reports", "runs", "--name", "first")
    printed, errors = process.communicate(timeout=200)
    assert "Traceback" not in errors
    assert list((project / "temporary").glob("harness*")) == []
    lines = printed.splitlines()
    assert lines[0] == "train.py:make_step (train.py:6): 12 steps of each arm, on the CPU"
    words = {question: answer.partition(":")[0] for question, answer in answers(lines).items()}
    assert words == {
        "repeats itself": "yes",
        "is captured": "yes",
        "captured, trains the same": "yes",
        "leaves the same gradients": "yes",
        "is not slower": "not run",
        "never waits for the device": "yes",
        "compiled, trains the same": "not run",
        "memory": "",
        "time": "",
        "on a GPU": "foreseen",
    }
    assert lines[-8:] == [
        "report: runs/first/report.html",
        "steps: every claim compares 12 steps; the default is 211",
        (
            "long run: TRAIN-LONG, of 10,000 steps, is in a separate contract: run it with `harness verify "
            "contracts-long/`"
        ),
        "wrote train_harness.py",
        "wrote contracts/train-v1.yaml",
        "wrote contracts-long/train-long-v1.yaml",
        "next: harness check contracts/ && harness verify contracts/",
        "HELD: Every planned unit held.",
    ]
    assert process.returncode == 0
    assert called(project, "judge", "--check", "runs/first")[1].startswith("same")
    kept, judged = (project / folder / "contracts" / "train-v1.yaml" for folder in (".", "runs/first"))
    assert kept.read_text() == judged.read_text()

    assert called(project, "try", "train.py:make_step", "--write-contract") == (
        2,
        "",
        (
            "error: `harness init` and `harness try` replace existing files only with --force; found the existing "
            "train_harness.py and contracts/train-v1.yaml and contracts-long/train-long-v1.yaml; add --force, or move "
            "these files away\n"
        ),
    )


TRAINER = """
import torch
from transformers import Trainer, TrainingArguments, set_seed


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 1)

    def forward(self, x, labels):
        out = self.inner(x).squeeze(-1)
        return {{"loss": torch.nn.functional.mse_loss(out, labels), "out": out}}


def make_trainer(seed, optimized):
    set_seed(seed)
    arguments = TrainingArguments(
        "out", learning_rate=1e-2, save_strategy="no", report_to="none", disable_tqdm=True, seed=seed
    )
    x = torch.randn(400, 8)
    data = [{{"x": each, "labels": each.sum()}} for each in x]
    model = Model()
    if optimized:
        {optimization}
    return Trainer(model, arguments, train_dataset=data)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimization", "word", "code"),
    [
        ("model.inner.forward = lambda x: x @ model.inner.weight.T + model.inner.bias", "yes", 0),
        ("model.inner.forward = lambda x: x @ model.inner.weight.T", "NO", 1),
        ("pass", "undecided", 0),  # no gate was asked for
    ],
    ids=["other operators", "a bias left out", "nothing"],
)
def test_a_trainer_is_compared_with_an_optimized_one(project: Path, optimization: str, word: str, code: int) -> None:
    (project / "train.py").write_text(TRAINER.format(optimization=optimization))
    found = called(project, "try", "train.py:make_trainer", "--steps", "12", "--write-contract")
    words = {question: answer.partition(":")[0] for question, answer in answers(found[1].splitlines()).items()}
    assert words == {
        "repeats itself": "yes",
        "optimized, trains the same": word,
        "is not slower": "not run",
        "memory": "",
        "time": "",
    }
    assert found[0] == code
    assert (
        "from harness.extras.trainers.made_trainer import MadeTrainerSystem"
        in (project / "train_harness.py").read_text()
    )
    assert not (project / "contracts-long").exists()


CLEARED = {
    "to none": "optimizer.zero_grad()",
    "to zeros": "optimizer.zero_grad(set_to_none=False)",
    "elsewhere": "clearing.cleared(optimizer)",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "form"), [("init", "to none"), ("init", "to zeros"), *(("try", form) for form in CLEARED)]
)
def test_the_first_gate_of_a_step_that_clears_its_gradients_is_open(command: str, form: str, project: Path) -> None:
    (project / "clearing.py").write_text("def cleared(optimizer):\n    optimizer.zero_grad()\n")
    written(project, at_import="import clearing", after=CLEARED[form])
    options = ["--no-compile", "--steps", "12", *["--write-contract"] * (command == "try")]
    code, printed, _ = called(project, command, "train.py:make_step", *options)
    [told] = [line for line in printed.splitlines() if line.startswith("left out")]
    assert (code, told.partition(",")[0]) == (0, "left out: TRAIN-GRADIENTS")
    code, printed, errors = called(project, "verify", "contracts", "--gate", "--reports", "runs")
    assert (code, printed.splitlines()[0]) == (
        0,
        "4 units · 4 held",
    ), errors


KEEP = "-> keep the tensor (`losses.append(loss.detach())`) and read it after the step, outside of it"


@dataclass(frozen=True)
class LoggedLoss:
    """A trial of a step that logs its loss, and the verdicts that were given while it ran."""

    code: int
    lines: list[str]
    early: dict[str, Verdict]
    verdicts: Sequence[Verdict]


@pytest.fixture(scope="module")
def logged_loss(warm: None, tmp_path_factory: pytest.TempPathFactory) -> LoggedLoss:
    project = tmp_path_factory.mktemp("logged")
    (project / "temporary").mkdir()
    written(project, before="losses = []", after="losses.append(loss.item())")
    early, trials = dict[str, Verdict](), list[Tried]()

    def recorded(*given: Any, judged: Callable[[Verdict, Tried], None], **options: Any) -> Tried:
        def both(verdict: Verdict, so_far: Tried) -> None:
            early[verdict.claim] = verdict
            judged(verdict, so_far)

        trials.append(try_step(*given, judged=both, **options))
        return trials[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.cli.try_step.try_step_of", recorded)
        code, lines = tried(project)
    [trial] = trials
    return LoggedLoss(code, lines, early, trial.judgement.verdicts)


def test_a_logged_loss_is_reported_with_its_line_and_its_fix(logged_loss: LoggedLoss) -> None:
    given = answers(logged_loss.lines)
    assert logged_loss.code == 1
    waits, captured = (given[each] for each in ("never waits for the device", "is captured"))
    assert waits.startswith(
        "undecided: the step was not captured; the plain step waits for the device 1 time in each step\n"
    )
    assert captured.startswith("NO: the capture of arm captured failed: train.py:17: a captured step must not wait for")
    assert sorted([waits.endswith(KEEP), captured.endswith(KEEP)]) == [False, True]  # each line once
    assert sum(each.count("losses.append(loss.item())") for each in (waits, captured)) == 1
    assert sorted([waits.endswith("-> as above"), captured.endswith("-> as above")]) == [False, True]
    assert given["captured, trains the same"] == "undecided: the step was not captured"


def test_early_answers_of_a_trial_equal_its_final_verdicts(logged_loss: LoggedLoss) -> None:
    assert logged_loss.early == {verdict.claim: verdict for verdict in logged_loss.verdicts}


def test_a_frozen_learning_rate_is_reported_as_a_different_training(project: Path) -> None:
    written(project, before="schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.1)", after="schedule.step()")
    code, lines = tried(project)
    given = answers(lines)["captured, trains the same"].replace("\n", " ")
    assert code == 1
    assert given.startswith(
        "NO: the losses of candidate captured and baseline plain differ at 8 of 12 steps, first at step 4"
    )
    assert "-> put what changes from step to step into the batch, or keep it in a tensor that is changed in" in given


@pytest.mark.parametrize(
    "after",
    [
        "loss = loss * model.table.to(here)[0]",
        "model.table = model.table.to(here); loss = loss * model.table[0]",  # undone with the warm-up
    ],
)
def test_an_operation_that_a_cuda_graph_would_refuse_is_reported_with_its_line(after: str, project: Path) -> None:
    """Without a GPU the step is only recorded.

    A copy from the host makes a CUDA graph fail, but does not make the recording fail.
    """
    written(
        project,
        before='here = "cuda" if torch.cuda.is_available() else "cpu"; model.to(here); '
        "model.table = torch.linspace(0.9, 1, 4)",
        after=after,
    )
    code, lines = tried(project)
    assert code == 0
    assert answers(lines)["on a GPU"].splitlines()[:2] == [
        "foreseen: cannot be captured on a GPU: the step copies from the host to the device",
        f"train.py:17: {after}",
    ]


ASKING = """def asking():
    try:
        return torch.cuda.is_current_stream_capturing()
    except Exception:
        return False
"""


def test_a_step_that_behaves_differently_under_capture_is_reported(project: Path) -> None:
    written(project, at_import=ASKING, after="loss = loss * (1 + 1e-6) if asking() or (loss < 0).all() else loss")
    code, lines = tried(project)
    given = {question: answer.replace("\n", " ") for question, answer in answers(lines).items()}
    assert code == 0
    within = "compares: within rounding, since only arm captured ran aten.mul, and only arm plain ran aten.all, aten.lt"
    assert [line for line in lines if line == within]
    assert "asked whether a capture is running, and may train" in given["captured, trains the same"]
    assert given["captured, trains the same"].endswith(
        "-> if rounding alone explains the difference, write `equality: within` in the contract's claim"
    )
    assert given["is captured"].startswith("yes")
    waits = r"yes: no wait in 11 steps; the plain step waits for the device 1 time in each step, at train\.py:\d+"
    assert re.fullmatch(waits, given["never waits for the device"])


@pytest.mark.parametrize(
    ("at_import", "after", "options", "found"),
    [
        ("", 'raise ValueError("no")', (), 'train.py:17 in step `raise ValueError("no")`: ValueError: no'),
        ("import sys; sys.exit(0)", "", (), "train.py:4 in <module> `import sys; sys.exit(0)`: SystemExit: 0"),
        ("import os; os._exit(0)", "", (), "the process of the step ended, incomplete: "),
        ("import time; time.sleep(600)", "", ("--wall-limit", "1"), "the process of the step ended, wall limit: "),
    ],
    ids=["raises", "exits", "exits hard", "hangs"],
)
def test_a_step_that_raises_or_exits_gives_an_error_and_no_contract(
    at_import: str, after: str, options: tuple[str, ...], found: str, project: Path
) -> None:
    written(project, at_import=at_import, after=after)
    code, lines = tried(project, "--write-contract", *options)
    assert code == 12
    assert lines[2].startswith(f"    error  {found}")
    assert lines[-2] == "nothing is kept: the step did not run, so no number of a contract can be measured"
    assert lines[-1] == "ERROR: The step did not run to its end, so nothing was compared."
    assert not (project / "contracts").exists()


USERS = """
import torch

def make_step(seed, optimized=False):
    torch.manual_seed(seed)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    data = torch.utils.data.TensorDataset(torch.randn(64, 4))

    def step(batch):
        if optimized: raise RuntimeError("bad batch")
        optimizer.zero_grad()
        loss = model(batch[0]).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return step, {loader}, model
"""
OWN = "torch.utils.data.DataLoader(data, 8)"


def test_an_error_of_the_optimized_step_is_printed_once_and_names_no_report_that_is_not_written(project: Path) -> None:
    (project / "train.py").write_text(USERS.format(loader=OWN))
    code, lines = tried(project)
    assert code == 12
    text = " ".join(" ".join(lines).split())
    assert text.count("if optimized: raise") == text.count("What broke") == 1
    assert "the report (`harness try` writes one only with `--reports`)" in text
    assert answers(lines)["leaves the same gradients"] == "error: as above"
    assert lines[-1].startswith("ERROR: The harness, a worker, the trainer (system) or the machine broke")


def test_a_loader_without_its_own_generator_is_located_in_the_users_file(project: Path) -> None:
    (project / "train.py").write_text(USERS.format(loader=OWN.replace("8)", "8, shuffle=True)")))
    code, lines = tried(project)
    assert (code, lines[2].split(": ")[0].split()) == (12, ["error", "train.py:18"])
    assert "a loader must shuffle with its own generator" in lines[2]


def test_output_printed_by_a_users_module_does_not_appear_among_the_answers(project: Path) -> None:
    written(project, at_import='print("HELD: Every planned unit held.\\x1b[2J")', after='print("::error::x")')
    code, lines = tried(project)
    assert code == 0
    assert [line for line in lines if "\x1b" in line or line.startswith("::")] == []
    assert [line.startswith("HELD: Every planned unit held.") for line in lines].count(True) == 1


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [
        (signal.SIGINT, 130, "interrupted"),
        pytest.param(signal.SIGTERM, 143, "terminated", marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_try_ends_its_worker_and_leaves_only_the_requested_files(
    number: int, code: int, word: str, project: Path
) -> None:
    reached = "import pathlib, time; pathlib.Path(__file__).with_name('reached').touch(); time.sleep(600)"
    written(project, at_import=reached)
    process = command(project, "try", "train.py:make_step", "--no-compile", "--write-contract", "--reports", "runs")
    eventually((project / "reached").exists, "a worker imports the step", process)
    process.send_signal(number)
    printed, errors = process.communicate(timeout=60)
    assert (process.returncode, printed, errors.splitlines()[-2]) == (code, "", word)
    assert list((project / "temporary").glob("harness*")) == []
    left = {path.name for path in project.iterdir()} - {"__pycache__"}  # Python's, of train.py
    assert left == {"reached", "temporary", "train.py", "runs"}


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [
        (signal.SIGTERM, 143, "terminated"),
        pytest.param(signal.SIGINT, 130, "interrupted", marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_trial_prints_the_answers_found_so_far(number: int, code: int, word: str, project: Path) -> None:
    """The captured arm hangs after two plain runs and one observed run, whose answer is printed before the
    interruption.
    """
    written(project, at_import="import time; MADE = []", before="MADE.append(time.sleep(600 * (len(MADE) == 3)))")
    process = command(project, *TRY)
    assert process.stdout is not None
    lines = [process.stdout.readline().rstrip("\n") for _ in range(3)]
    assert process.poll() is None
    process.send_signal(number)
    printed, errors = process.communicate(timeout=60)
    assert (process.returncode, errors.splitlines()[-1]) == (code, word)
    assert lines == [
        "train.py:make_step (train.py:6): 12 steps of each arm, on the CPU",
        "",
        "      yes  repeats itself             2 runs of plain are equal in bits at all 12 steps",
    ]
    assert printed == ""


def test_init_refuses_a_training_loop_that_returns_no_step(project: Path) -> None:
    (project / "train.py").write_text("def main():\n    while True:\n        loss.backward()\n")
    code, _, errors = called(project, "init", "train:main")
    assert code == 2
    assert errors.startswith("error: train.py:1: `main` must make a step and leave the loop to its caller")


@pytest.mark.parametrize("reports", [(), ("--reports", "runs")], ids=["nothing", "runs"])
def test_an_interrupted_try_names_only_reports_that_were_kept(
    reports: tuple[str, ...], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    written(project)
    monkeypatch.setattr("harness.api.session.execute", interrupted)
    monkeypatch.setattr("harness.execution.supervisor.Interpreters.begin", lambda _: None)
    code, _, errors = called(project, *TRY, *reports)
    kept = [line for line in errors.splitlines() if line.startswith("kept the evidence so far")]
    assert (code, len(kept)) == (130, len(reports) // 2)
    assert all(Path(project, line.rpartition(": ")[2]).exists() for line in kept)
    assert list((project / "temporary").glob("harness*")) == []
