"""What `harness init` writes: an adapter, and a contract of which lint has nothing to say."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.commands.check import findings_of
from harness.commands.init import init
from harness.contract.load import load_contract
from harness.errors import UsageError
from harness.first_contract.draft import Arms, Draft
from harness.first_contract.project import compiler_missing, keep
from harness.first_contract.step_source import find_step_source

STEP = "def make_step(seed, seq_len=128):\n    return step, batch, model\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_train.py").write_text(STEP)
    return tmp_path


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_lint_has_nothing_to_say_of_it(timed: bool, compiled: bool, project: Path) -> None:
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
            ["EVALUATED", "RESUMES", "RESUMES-LATER", "LONG"],
            {"captured": {"capture": "step"}, "plain": {"capture": "none"}},
        ),
        (
            "optimized",
            ["REPEATS", "WITHIN", "GRADIENTS"],
            ["EVALUATED", "RESUMES", "RESUMES-LATER"],
            {
                "optimized": {"capture": "none", "optimized": True},
                "plain": {"capture": "none"},
                "nudged": {"capture": "none"},
            },
        ),
    ],
)
def test_a_step_with_an_optimization_of_its_own_has_its_own_template(
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


CLEARING = {
    "at the beginning": (["optimizer.zero_grad()", "loss.backward()", "optimizer.step()"], ""),
    "at the end": (["loss.backward()", "optimizer.zero_grad()"], ":7 clears the gradients behind the backward pass"),
    "by name": (["loss.backward()", "model.weight.grad = None"], ":7 clears the gradients behind the backward pass"),
    "behind a helper": (["backward(loss)", "optimizer.zero_grad()"], ":7 clears the gradients behind"),
    "in a loop": (["for part in batch:", "    loss.backward()", "optimizer.zero_grad()"], ":8 clears the gradients"),
    "read only": (["loss.backward()", "return model.weight.grad"], ""),
    "unseen": (["return train_elsewhere(batch)"], " has no `backward()` whose gradients a step would leave"),
}


@pytest.mark.parametrize(("lines", "why"), CLEARING.values(), ids=CLEARING)
def test_a_source_that_shows_no_gradients_gets_no_claim_about_them(
    lines: list[str], why: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    helper = "def backward(loss):\n    loss.backward()\n" if "backward" in str(lines) else "\n\n"
    body = "\n".join(f"        {line}" for line in lines)
    (project / "my_train.py").write_text(
        f"{helper}def make_step():\n    optimizer.zero_grad()\n    def step(batch):\n{body}\n"
        "    return step, batch, model\n"
    )
    init("my_train.py:make_step", compiled=False)
    claims = load_contract(project / "contracts" / "my-train-v1.yaml").contract.claims
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("left out")]
    assert ("MY-TRAIN-GRADIENTS" in [claim.id for claim in claims]) == (not why)
    assert len(told) == bool(why)
    assert all(line.startswith(f"left out: MY-TRAIN-GRADIENTS, since my_train.py{why}") for line in told)


def test_the_adapter_calls_the_function_with_what_it_takes(project: Path) -> None:
    adapter, contract, _ = keep(
        Draft(find_step_source("my_train.py:make_step"), 40, Arms(False, False, memory=False)), project, force=False
    )
    assert (adapter.name, contract.name) == ("my_train_harness.py", "my-train-v1.yaml")
    assert "        return make_step(seed=workload.seed, seq_len=workload.seq_len)\n" in adapter.read_text()
    assert "sys.path" not in adapter.read_text()


def test_the_adapter_of_a_script_in_a_folder_finds_it_there(project: Path) -> None:
    (project / "scripts").mkdir()
    (project / "scripts" / "run.py").write_text(STEP)
    adapter, _, _ = keep(
        Draft(find_step_source("scripts/run.py:make_step"), 40, Arms(False, False, memory=False)), project, force=False
    )
    assert "sys.path.insert(0, str(Path(__file__).parent / 'scripts'))\n" in adapter.read_text()


def test_no_file_is_replaced_unasked(project: Path) -> None:
    draft = Draft(find_step_source("my_train.py:make_step"), 40, Arms(False, False, memory=False))
    (project / "contracts").mkdir()
    (project / "contracts" / "my-train-v1.yaml").write_text("mine")
    with pytest.raises(UsageError, match=r"contracts/my-train-v1\.yaml exists"):
        keep(draft, project, force=False)
    assert not (project / "my_train_harness.py").exists()
    assert (project / "contracts" / "my-train-v1.yaml").read_text() == "mine"
    keep(draft, project, force=True)
    assert load_contract(project / "contracts" / "my-train-v1.yaml").contract.id == "my-train-v1"


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert compiler_missing() == "no C++ compiler (g++, clang++, c++)"
    monkeypatch.setenv("CXX", "clang++-99")
    assert compiler_missing() == "no C++ compiler (clang++-99)"
    (tmp_path / "clang++-99").touch(mode=0o755)
    assert compiler_missing() == ""
