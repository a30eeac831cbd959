"""What `harness init` writes: an adapter, and a contract of which lint has nothing to say."""

from __future__ import annotations

import importlib
import re
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import pytest

from harness.cli.check import findings_of
from harness.contract.load import load_contract
from harness.errors import ContractError, UsageError
from harness.first_contract.draft import Arms, Choice, Draft, compiler_missing, keep, saves_of
from harness.first_contract.step_source import find_step_source

pytestmark = pytest.mark.usefixtures("described_here")

STEP = "def make_step(seed, seq_len=128):\n    return step, batch, model\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_train.py").write_text(STEP)
    return tmp_path


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_drafted_contract_has_no_lint_findings(timed: bool, compiled: bool, project: Path) -> None:
    draft = Draft(find_step_source("my_train.py:make_step"), 40, Arms(compiled, timed, memory=timed))
    keep(draft, project, force=False)
    [loaded, _], findings = findings_of([project / "contracts", project / "contracts-long"])
    assert [str(finding) for finding in findings] == []
    ids = [claim.id.removeprefix("MY-TRAIN-") for claim in loaded.contract.claims]
    expected = ["REPEATS", "CAPTURES", "SAME", "GRADIENTS", "SYNCS", *["COMPILED"] * compiled]
    expected += ["MEMORY", "FASTER"] if timed else []
    assert ids == [*expected, *["COMPILED-FASTER"] * (timed and compiled)]
    assert loaded.contract.workloads["small"].seq_len == 128


@pytest.mark.parametrize(
    ("argument", "short", "long", "arms"),
    [
        (
            "captured",
            ["REPEATS", "CAPTURES", "SAME", "GRADIENTS"],
            ["EVALUATED", "RESUMES", "LONG"],
            {
                "captured": {"capture": "step"},
                "plain": {"capture": "none"},
                "untrained": {"capture": "none", "trains": False},
            },
        ),
        (
            "optimized",
            ["REPEATS", "WITHIN", "GRADIENTS"],
            ["EVALUATED", "RESUMES"],
            {
                "optimized": {"capture": "none", "optimized": True},
                "plain": {"capture": "none"},
                "untrained": {"capture": "none", "trains": False},
                "nudged": {"capture": "none"},
            },
        ),
    ],
)
def test_a_step_with_its_own_optimization_argument_gets_its_own_contract_template(
    argument: str, short: list[str], long: list[str], arms: dict[str, dict[str, object]], project: Path
) -> None:
    (project / "my_train.py").write_text(STEP.replace("seq_len=128", argument))
    keep(Draft(find_step_source("my_train.py:make_step"), 40, Arms(True, False, memory=False)), project, force=False)
    contracts, findings = findings_of([project / "contracts", project / "contracts-long"])
    assert [str(finding) for finding in findings] == []
    claims = [[claim.id.removeprefix("MY-TRAIN-") for claim in each.contract.claims] for each in contracts]
    assert claims == [short, long]
    found = {name: {"capture": arm.capture, **arm.settings()} for name, arm in contracts[0].contract.arms.items()}
    assert found == arms
    whys = {claim.id.removeprefix("MY-TRAIN-"): claim.why for each in contracts for claim in each.contract.claims}
    assert not [why for why in whys.values() if "thousandth" in why or "hundredth" in why]
    if argument.startswith("optimized"):
        assert "relative to the loss" in whys["WITHIN"]
        assert "relative to the largest element of the tensor's gradient" in whys["GRADIENTS"]
        assert "the loss" not in whys["GRADIENTS"]


@pytest.mark.parametrize(
    ("argument", "candidate", "baseline", "before"),
    [("captured", "captured", "plain", 2), ("optimized", "optimized", None, 0), ("seq_len", "captured", "plain", 0)],
)
def test_the_drafted_resume_claim_fits_steps_with_and_without_their_own_capture(
    argument: str, candidate: str, baseline: str | None, before: int, project: Path
) -> None:
    """If the step captures itself, the load must keep the captured addresses.

    Otherwise the harness captures again after a load.
    """
    (project / "my_train.py").write_text(STEP.replace("seq_len=128", f"{argument}=False"))
    source = find_step_source("my_train.py:make_step")
    keep(Draft(source, 43, Arms(False, False, memory=False), resumes=True), project, force=False)
    contracts, findings = findings_of([project / "contracts", project / "contracts-long"])
    assert [str(finding) for finding in findings] == []
    [short, long] = [{claim.id: claim for claim in loaded.contract.claims} for loaded in contracts]
    assert "MY-TRAIN-RESUMES" not in long
    resumes = short["MY-TRAIN-RESUMES"]
    found = [resumes.value_at(each) for each in ("save_at", "steps", "steps_before_load", "candidate", "baseline")]
    assert found == [[20, 24, 29], 14, before, candidate, baseline]


def test_a_step_that_does_not_repeat_its_bits_gets_no_resume_claim(project: Path) -> None:
    choice = Choice("noise", repeats=False)
    draft = Draft(find_step_source("my_train.py:make_step"), 43, Arms(False, False, memory=False), choice=choice)
    assert replace(draft, resumes=True).contract() == draft.contract()


@pytest.mark.parametrize("steps", [8, 12, 16, 33, 43, 79, 103, 250])
def test_checkpoint_saves_are_at_least_four_steps_apart_and_one_step_number_is_prime(steps: int) -> None:
    """With fewer than four steps between the saves, the last step on a GPU would not be a watched replay."""
    saves = saves_of(steps)
    assert min(later - earlier for earlier, later in pairwise([0, *saves, steps])) >= min(4, saves[0])
    assert any(all(save % divisor for divisor in range(2, save)) for save in saves)


@pytest.mark.parametrize("steps", [43, 103, 250])
def test_drafted_saves_include_ends_of_epochs_of_many_lengths(steps: int) -> None:
    ended = {length for save in saves_of(steps) for length in range(1, save + 1) if save % length == 0}
    assert ended >= {2, 3, 4, 5, 6, 8, 10, 12, 20, 24}


CHOICES = [
    Choice("bitwise"),
    Choice("bitwise", deterministic=True),
    Choice("within"),
    Choice("within", deterministic=True),
    Choice("within", repeats=False),
    Choice("noise", repeats=False),
]
# Every pair of values of three options, in four of their eight combinations.
PAIRS = [(compiled, timed, compiled != timed) for compiled, timed in product([False, True], repeat=2)]


@pytest.mark.parametrize("argument", ["seq_len", "captured", "optimized"])
@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: f"{choice.equality} {choice.deterministic}")
def test_a_drafted_contract_of_every_choice_has_no_lint_findings(choice: Choice, argument: str, project: Path) -> None:
    (project / "my_train.py").write_text(STEP.replace("seq_len=128", f"{argument}=False"))
    source = find_step_source("my_train.py:make_step")
    for compiled, timed, fit in PAIRS:
        unfit = {} if fit else dict.fromkeys(("CAPTURES", "GRADIENTS"), "a trial said so")
        draft = Draft(source, 40, Arms(compiled, timed, memory=timed), unfit, choice)
        keep(draft, project, force=True)
        folders = [project / "contracts", *([project / "contracts-long"] if choice.repeats else [])]
        contracts, findings = findings_of(folders)
        assert [str(finding) for finding in findings] == []
        for loaded in contracts:
            arms = {name: arm.deterministic for name, arm in loaded.contract.arms.items()}
            compared = {name for name in arms if not name.endswith("_timed")}
            assert {arms[name] for name in compared} == {choice.deterministic}
            assert not any(arms[name] for name in arms.keys() - compared)
            claims = {claim.id.removeprefix("MY-TRAIN-"): claim for claim in loaded.contract.claims}
            bits = [name for name, claim in claims.items() if claim.value_at("equality") == "bitwise"]
            assert choice.repeats or bits == []
            faster = [claim for name, claim in claims.items() if "FASTER" in name]
            measured = {claim.value_at(arm) for claim in faster for arm in ("candidate", "baseline")}
            assert measured <= (arms.keys() - compared if choice.deterministic else compared)
        same = {claim.id.removeprefix("MY-TRAIN-"): claim for claim in contracts[0].contract.claims}
        assert ("REPEATS" in same) == choice.repeats
        assert ("GRADIENTS" in same) == (fit and draft.equality != "noise")
        assert ("CAPTURES" in same) == (fit and argument != "optimized")
        assert same["WITHIN" if argument == "optimized" else "SAME"].value_at("equality") == draft.equality


def test_the_drafted_adapter_passes_the_arguments_that_the_function_takes(project: Path) -> None:
    adapter, contract, _ = keep(
        Draft(find_step_source("my_train.py:make_step"), 40, Arms(False, False, memory=False)), project, force=False
    )
    assert (adapter.name, contract.name) == ("my_train_harness.py", "my-train-v1.yaml")
    assert "        return make_step(seed=workload.seed, seq_len=workload.seq_len)\n" in adapter.read_text()
    assert "sys.path" not in adapter.read_text()


def test_the_drafted_adapter_of_a_script_in_a_folder_adds_the_folder_to_the_path(project: Path) -> None:
    (project / "scripts").mkdir()
    (project / "scripts" / "run.py").write_text(STEP)
    adapter, _, _ = keep(
        Draft(find_step_source("scripts/run.py:make_step"), 40, Arms(False, False, memory=False)), project, force=False
    )
    assert "sys.path.insert(0, str(Path(__file__).parent / 'scripts'))\n" in adapter.read_text()


@pytest.mark.parametrize(
    ("arguments", "written", "shown"),
    [
        ("", "model: make_step, steps: 211", ""),
        ("batch_size=16", "model: make_step, batch_size: 16, steps: 211", "batches of 16"),
        ("batch_size=4, seq_len=64", "model: make_step, batch_size: 4, seq_len: 64, steps: 211", "4 × 64 tokens"),
    ],
)
def test_a_draft_states_only_sizes_that_the_function_takes(
    arguments: str, written: str, shown: str, project: Path
) -> None:
    (project / "train.py").write_text(f"def make_step({arguments}):\n    return step, batch, model\n")
    draft = Draft(find_step_source("train.py:make_step"), 211, Arms(compiled=False, timed=False, memory=False))
    assert f"{{{written}}}" in draft.contract()
    (project / draft.contract_name).write_text(draft.contract())
    assert load_contract(project / draft.contract_name).contract.workloads["small"].size() == shown


def test_a_draft_replaces_an_existing_file_only_with_force(project: Path) -> None:
    draft = Draft(find_step_source("my_train.py:make_step"), 40, Arms(False, False, memory=False))
    (project / "contracts").mkdir()
    (project / "contracts" / "my-train-v1.yaml").write_text("mine")
    with pytest.raises(UsageError, match=r"existing contracts/my-train-v1\.yaml; add --force, or move this file away"):
        keep(draft, project, force=False)
    assert not (project / "my_train_harness.py").exists()
    assert (project / "contracts" / "my-train-v1.yaml").read_text() == "mine"
    keep(draft, project, force=True)
    assert load_contract(project / "contracts" / "my-train-v1.yaml").contract.id == "my-train-v1"


def test_a_draft_reports_a_missing_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert compiler_missing() == "no C++ compiler (g++, clang++, c++)"
    monkeypatch.setenv("CXX", "clang++-99")
    assert compiler_missing() == "no C++ compiler (clang++-99)"
    (tmp_path / "clang++-99").touch(mode=0o755)
    assert compiler_missing() == ""


def test_host_values_that_no_replay_changes_are_drafted_with_an_empty_reason_that_fails_to_load(project: Path) -> None:
    draft = Draft(find_step_source("my_train.py:make_step"), 40, Arms(False, False, memory=False))
    paths = keep(replace(draft, host_values={"kept.done": "compared at my_train.py:7"}), project, force=False)
    line = next(each for each in paths[1].read_text().splitlines() if "kept.done" in each)
    assert line == "  \"kept.done\": ''  # compared at my_train.py:7"
    for path in paths[1:]:
        with pytest.raises(ContractError, match=r":\d+:16: 'kept.done' must be a reason in your own words"):
            load_contract(path)


@pytest.mark.parametrize("function", ["make_step", "make_trainer"])
def test_every_harness_name_that_a_drafted_adapter_imports_exists(function: str, project: Path) -> None:
    (project / "my_train.py").write_text(f"def {function}(seed):\n    return made(seed)\n")
    draft = Draft(find_step_source(f"my_train.py:{function}"), 40, Arms(False, False, memory=False))
    [(module, name)] = re.findall(r"^from (harness\S+) import (\w+)$", draft.adapter(project), re.MULTILINE)
    assert hasattr(importlib.import_module(module), name)
