"""What `harness init` and `harness try` choose to compare, of steps that repeat themselves and of such that do not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from first_steps import called, written

from harness.contract.load import load_contract
from harness.contract.schema import Contract
from harness.first_contract.draft import compiler_missing

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm")]

DRAWN = """import os
import numpy

def noise(scale):
    numbers = numpy.random.default_rng(int.from_bytes(os.urandom(8), "little"))
    return 1 + scale * torch.from_numpy(numbers.standard_normal(1)).float()

def noisy(model, scale=1e-7):
    for parameter in model.parameters():
        parameter.grad *= noise(scale)

def captured():
    try:
        return torch.cuda.is_current_stream_capturing()
    except Exception:
        return False

def loss_of(found, wanted):
    mean = (found - wanted).pow(2)
    return (mean / 3).sum() * (3 / mean.numel()) if captured() else mean.mean()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "temporary").mkdir()
    return tmp_path


FORMS = {
    "bits": "pass",
    "noise": "noisy(model)",
    "deterministic": "torch.are_deterministic_algorithms_enabled() or noisy(model)",
}
FROZEN = "schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.1)"  # by the capture
IN_NOISE = "compares: within the plain step's own noise, since the plain step does not repeat its bits, "


def init(project: Path, before_update: str, **replaced: str) -> tuple[str, Contract]:
    """The line that says what is compared, and the contract, in which every number that a replay freezes is excused."""
    written(project, **{"at_import": DRAWN, "before_update": before_update, **replaced})
    code, printed, errors = called(project, "init", "train.py:make_step", "--no-compile", "--steps", "12", "--force")
    assert (code, "Traceback" in errors) == (0, False), errors
    contract = project / "contracts" / "train-v1.yaml"
    contract.write_text(contract.read_text().replace("\": ''", '": it is tried'))
    return printed.splitlines()[0], load_contract(contract).contract


def verified(project: Path) -> tuple[int, str]:
    code, printed, errors = called(project, "verify", "contracts", "--gate", "--reports", "runs")
    assert "Traceback" not in errors
    return code, printed


@pytest.mark.parametrize(
    ("form", "compares", "equality", "deterministic"),
    [
        ("bits", "compares: every bit", "bitwise", False),
        ("noise", f"{IN_NOISE}not even under deterministic algorithms", "noise", False),
        (
            "deterministic",
            (
                "compares: every bit under deterministic algorithms, since the plain step repeats itself only under "
                "deterministic algorithms"
            ),
            "bitwise",
            True,
        ),
    ],
)
def test_init_writes_the_strongest_fair_claim_which_passes_and_fails_on_a_wrong_capture(
    form: str, compares: str, equality: str, deterministic: bool, project: Path
) -> None:
    line, contract = init(project, FORMS[form])
    assert line == compares
    [same] = [claim for claim in contract.claims if claim.id == "TRAIN-SAME"]
    assert (same.value_at("equality"), contract.arms["captured"].deterministic) == (equality, deterministic)
    assert ("TRAIN-REPEATS" in [claim.id for claim in contract.claims]) == (form != "noise")
    assert (project / "contracts-long").exists() == (form != "noise")
    code, printed = verified(project)
    assert code == 0, printed

    written(project, at_import=DRAWN, before_update=FORMS[form], before=FROZEN, after="schedule.step()")
    code, printed = verified(project)
    assert code in (1, 10), printed


def test_a_step_that_repeats_its_bits_only_within_one_process_violates_repeatability(project: Path) -> None:
    """The step multiplies gradients by a number that depends on the process's id.

    In one process the captured arm is therefore equal in bits.
    """
    drawn = "import os\nSCALE = 1 + os.getpid() % 97 * 1e-6\n"
    line, contract = init(project, "[p.grad.mul_(SCALE) for p in model.parameters()]", at_import=drawn)
    assert line.startswith("compares: every bit, since the plain step repeats its bits within a process")
    assert "TRAIN-REPEATS" in [claim.id for claim in contract.claims]
    code, printed = verified(project)
    assert code == 1
    assert "violated  TRAIN-REPEATS" in printed
    assert "violated  TRAIN-SAME" not in printed


def test_init_compares_a_capture_with_different_kernels_within_rounding(project: Path) -> None:
    line, contract = init(project, "pass", loss="loss_of")
    assert line == "compares: within rounding, since only arm plain ran aten.mean"
    by_id = {claim.id: claim for claim in contract.claims}
    assert by_id["TRAIN-SAME"].value_at("equality") == by_id["TRAIN-GRADIENTS"].value_at("equality") == "within"
    assert by_id["TRAIN-SAME"].value_at("ends.control") == "nudged"
    code, printed = verified(project)
    assert code == 0, printed

    written(project, at_import=DRAWN, loss="loss_of", before=FROZEN, after="schedule.step()")
    code, printed = verified(project)
    assert code in (1, 10), printed


CHOSEN_AT_CAPTURE = "calls.append(1); len(calls) % 2 or torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)"


def test_a_python_condition_that_a_capture_froze_does_not_relax_the_comparison(project: Path) -> None:
    written(project, before="calls = []", before_update=CHOSEN_AT_CAPTURE)
    code, printed, _ = called(project, "try", "train.py:make_step", "--no-compile", "--steps", "12")
    assert code == 1
    assert "compares: every bit\n" in printed
    assert "operators of the arms differ" not in printed
    assert printed.count("no replay does that again") == 1
    assert printed.count("keep it in a tensor that") == 1


SAVES = """    def save(path):
        torch.save([model.state_dict(), optimizer.state_dict()], path)

    def load(path):
        for part, state in zip([model, optimizer], torch.load(path)):
            part.load_state_dict(state)

    return StepFunction(step, batch, model, save=save, load=load)
"""


@pytest.mark.parametrize(("saves", "claims"), [(True, 1), (False, 0)])
def test_a_contract_for_a_step_that_saves_and_loads_has_a_resume_claim(saves: bool, claims: int, project: Path) -> None:
    """The trial shows whether the step can save. For a step that cannot save, the claim would keep the gate closed."""
    written(project, at_import="from harness.system.step_function import StepFunction")
    if saves:
        text = (project / "train.py").read_text()
        (project / "train.py").write_text(text.replace("    return step, batch, model\n", SAVES))
    code, printed, errors = called(project, "init", "train.py:make_step", "--no-compile", "--steps", "16")
    assert code == 0, errors
    contract = load_contract(project / "contracts" / "train-v1.yaml").contract
    resumes = [claim for claim in contract.claims if claim.kind == "resume"]
    assert [claim.value_at("save_at") for claim in resumes] == [[7, 11]] * claims
    code, printed = verified(project)
    assert code == 0, printed


def test_an_operator_without_a_deterministic_form_is_named(project: Path) -> None:
    """On a GPU torch raises this error. On a CPU the step of this test raises the error itself."""
    refused = "index_add_cuda_ does not have a deterministic implementation"
    helper = f"{DRAWN}\ndef refuse():\n    raise RuntimeError('{refused}')\n"
    written(
        project,
        at_import=helper,
        before_update="refuse() if torch.are_deterministic_algorithms_enabled() else noisy(model)",
    )
    code, printed, _ = called(project, "init", "train.py:make_step", "--no-compile", "--steps", "12")
    assert code == 0
    [line, *_] = printed.splitlines()
    assert line.startswith(f"{IN_NOISE}and under deterministic algorithms the step ended: train.py:")
    assert refused in line


def test_try_reports_the_comparison_that_it_chose_and_writes_this_comparison_into_the_contract(project: Path) -> None:
    written(project, at_import=DRAWN, before_update=FORMS["noise"])
    arguments = ("train.py:make_step", "--no-compile", "--steps", "12", "--write-contract")
    code, printed, errors = called(project, "try", *arguments)
    assert (code, "Traceback" in errors) == (0, False), printed
    before, _, after = printed.partition("compares: ")
    assert "       NO  repeats itself " in before
    assert "undecided  captured, trains the same " in before
    assert "repeats itself " not in after
    assert "      yes  captured, trains the same " in after
    assert "left out: TRAIN-REPEATS, train-long-v1.yaml, since the plain step does not repeat its bits" in after
    assert verified(project)[0] == 0


DROPPED = """
def dropped(found, wanted):
    kept = torch.rand(found.shape) < 0.9 if captured() else torch.empty_like(found).bernoulli_(0.9)
    return (kept * (found - wanted)).pow(2).mean()
"""


@pytest.mark.parametrize("frozen", [{}, {"before": FROZEN, "after": "schedule.step()"}], ids=["correct", "frozen"])
def test_a_capture_that_draws_different_random_numbers_stays_undecided(frozen: dict[str, str], project: Path) -> None:
    line, contract = init(project, "pass", at_import=DRAWN + DROPPED, loss="dropped", **frozen)
    compares, _, undecided = line.partition("; undecided: ")
    assert compares.startswith("compares: within rounding, since only arm captured ran aten.lt, aten.rand, and ")
    assert undecided.startswith(
        "TRAIN-SAME, since the operator number 1 that draws random numbers in a step is aten.rand of "
    )
    equality = {claim.id: claim.value_at("equality") for claim in contract.claims if claim.kind != "capture"}
    assert equality["TRAIN-SAME"] == equality["TRAIN-GRADIENTS"] == "within"
    code, printed = verified(project)
    assert (code, "FAIL" in printed) == (10, False), printed


COMPILED = """
import torch
from torch.nn import functional

def make_step(seed, optimized):
    torch.manual_seed(seed)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)

    def loss_of(x, y):
        return functional.mse_loss(model(functional.dropout(x, 0.1)), y)

    loss_here = torch.compile(loss_of, options={options}) if optimized else loss_of

    def step(batch):
        optimizer.zero_grad()
        loss = loss_here(batch["x"], {wanted})
        loss.backward()
        optimizer.step()
        return loss

    def batch(index):
        x = torch.randn(32, 8, generator=torch.Generator().manual_seed(1000 * seed + index))
        return {{"x": x, "y": x.sum(dim=1, keepdim=True)}}

    return step, batch, model
"""
WRONG = "(0.99 if optimized else 1) * batch['y']"


@pytest.mark.skipif(bool(compiler_missing()), reason=compiler_missing())
@pytest.mark.parametrize(
    ("options", "wanted", "answer"),
    [
        ({}, "batch['y']", "undecided"),
        ({}, WRONG, "undecided"),
        ({"fallback_random": True}, "batch['y']", "yes"),
        ({"fallback_random": True}, WRONG, "NO"),
    ],
    ids=["correct", "wrong", "correct_drawn_alike", "wrong_drawn_alike"],
)
def test_a_step_that_compiles_its_own_dropout_is_undecided_until_it_draws_like_the_plain_step(
    options: dict[str, bool], wanted: str, answer: str, project: Path
) -> None:
    (project / "train.py").write_text(COMPILED.format(options=options, wanted=wanted))
    _, printed, errors = called(project, "try", "train.py:make_step", "--no-compile", "--steps", "12")
    assert "Traceback" not in errors
    assert f"{answer:>9}  optimized, trains the same " in printed
    [compares] = [line for line in printed.splitlines() if line.startswith("compares: ")]
    why = (
        "; undecided: TRAIN-WITHIN, since the operator number 1 that draws random numbers in a step is aten.randint "
        "of int64 1 in arm optimized"
    )
    assert (why in compares, printed.count("or claim `not_worse` over seeds")) == (answer == "undecided",) * 2
    assert "left out" not in printed


def test_a_step_that_does_not_run_here_gets_a_bitwise_contract_without_repeatability(project: Path) -> None:
    written(project, at_import="raise SystemExit(1)")
    code, printed, _ = called(project, "init", "train:make_step", "--no-compile")
    line, *kept = printed.splitlines()
    assert (code, [each.partition(" ")[0] for each in kept]) == (0, ["wrote", "wrote", "left", "the", "next:"])
    left_out = "left out: TRAIN-REPEATS, train-long-v1.yaml, since the plain step was not seen to repeat its bits"
    assert kept[2] == left_out
    contract = (project / "contracts" / "train-v1.yaml").read_text()
    assert ("TRAIN-SAME" in contract, "TRAIN-REPEATS" in contract) == (True, False)
    assert line == "compares: every bit; this was not measured"
    assert kept[-2].startswith("the step did not run here: ")
    assert "SystemExit: 1" in kept[-2]
    assert "run this command again with --force" in kept[-1]


def test_a_correct_step_that_cannot_be_captured_is_undecided(project: Path) -> None:
    written(project, before="losses = []", after="losses.append(loss.item())")
    code, printed, _ = called(project, "init", "train.py:make_step", "--no-compile", "--steps", "12")
    [left_out] = [line for line in printed.splitlines() if line.startswith("left out")]
    assert (code, left_out.partition(",")[0]) == (0, "left out: TRAIN-CAPTURES")
    assert "train.py:17: " in left_out
    code, printed = verified(project)
    assert (code, "violated" in printed) == (10, False)


LAZY = """class FromTheFirst(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            squares = parameter.grad.square() + 1e-8
            mean = self.state[parameter].setdefault("mean", squares)
            if mean is not squares:
                mean.lerp_(squares, 0.1)
            parameter.sub_(1e-2 * parameter.grad / mean.sqrt())
"""
MADE = "optimizer = FromTheFirst(model.parameters(), {})"


def test_a_step_whose_optimizer_creates_state_from_first_gradients_is_captured_after_a_plain_step(
    project: Path,
) -> None:
    compares, contract = init(project, "pass", at_import=LAZY, before=MADE)
    assert compares == (
        "compares: every bit; captured after 1 plain step (`warm_steps: 1`), since the step creates state in its "
        "first execution, which no capture can hold"
    )
    assert contract.arms["captured"].warm_steps == 1
    assert "TRAIN-CAPTURES" in {claim.id for claim in contract.claims}
    assert "# the step creates state" in (project / "contracts" / "train-v1.yaml").read_text()
    code, printed = verified(project)
    assert code == 0, printed
    tried = called(project, "try", "train.py:make_step", "--no-compile", "--steps", "12")
    assert (tried[0], compares in tried[1]) == (0, True), tried[1]


def test_init_proposes_to_ignore_the_folder_of_reports_in_git_if_the_repository_does_not(project: Path) -> None:
    offer = "let git ignore the reports: echo harness-reports/ >> .gitignore\n"
    written(project)
    arguments = ("init", "train.py:make_step", "--no-compile", "--steps", "8", "--force")
    assert offer not in called(project, *arguments)[1]
    subprocess.run(["git", "init", "-q", project], check=True)
    assert offer in called(project, *arguments)[1]
    (project / ".gitignore").write_text("harness-reports/\n")
    assert offer not in called(project, *arguments)[1]
