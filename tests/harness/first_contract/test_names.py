"""A first contract of a step whose file or function has any name that Python takes: ids and files are in ASCII."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from harness.cli.check import findings_of
from harness.errors import ExitCode, HarnessError, UsageError
from harness.first_contract.draft import Arms, Draft, keep
from harness.first_contract.step_source import find_step_source, stem_of

pytestmark = pytest.mark.usefixtures("described_here")

ARMS = Arms(compiled=True, timed=True, memory=True)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def drafted(file: str, function: str = "make_step", argument: str = "seed") -> Draft:
    path = Path(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"def {function}({argument}):\n    return step, batch, model\n", encoding="utf-8")
    return Draft(find_step_source(f"{file}:{function}"), 43, ARMS)


@pytest.mark.parametrize(
    ("file", "stem", "argument"),
    [
        ("entraîné.py", "entraine", "seed"),
        ("Übung_2.py", "Ubung_2", "captured"),
        ("訓練.py", "step", "optimized"),
        ("訓練_1.py", "_1", "seed"),
        ("é2.py", "e2", "captured"),
        ("訓2.py", "step_2", "optimized"),
        ("訓x.py", "x", "seed"),
        ("_.py", "step", "captured"),
        ("__init.py", "__init", "optimized"),
        ("null.py", "null", "seed"),
        ("класс.py", "step", "captured"),
        (f"{'é' * 80}.py", "e" * 60, "optimized"),
        (f"訓{'7' * 80}.py", f"step_{'7' * 55}", "captured"),
        ("dossier/sous_système/entraîné.py", "entraine", "seed"),
    ],
)
def test_drafted_files_of_unusual_names_have_no_findings(file: str, stem: str, argument: str, project: Path) -> None:
    draft = drafted(file, argument=argument)
    adapter, *contracts = keep(draft, project, force=False)
    assert (adapter.name, adapter.stem.isidentifier(), adapter.name.isascii()) == (f"{stem}_harness.py", True, True)
    loaded, findings = findings_of(contracts)
    assert ([str(finding) for finding in findings], len(loaded)) == ([], 2)
    compile(adapter.read_text(encoding="utf-8"), adapter, "exec")
    assert f"from {draft.source.module} import make_step" in adapter.read_text(encoding="utf-8")


@pytest.mark.parametrize("function", ["null", "true", "No", "on", "y", "entraîner", "f" * 300])
def test_the_workload_model_is_named_after_the_step_function(function: str, project: Path) -> None:
    _, contract, _ = keep(drafted("train.py", function), project, force=False)
    [loaded], findings = findings_of([contract])
    assert ([str(finding) for finding in findings], loaded.contract.workloads["small"].model) == ([], function)


def test_the_stem_of_any_module_name_is_an_ascii_identifier() -> None:
    for number in range(0x3000):
        letter = chr(number)
        for module in (letter, f"{letter}_a", f"a{letter}", f"{letter}1"):
            if module.isidentifier():
                assert stem_of(module).isascii()
                assert stem_of(module).isidentifier(), ascii(module)


def test_a_folder_name_that_is_not_utf_8_gives_a_readable_adapter(project: Path) -> None:
    draft = drafted("dossi\udce9r/train.py")
    adapter, *_ = keep(draft, project, force=False)
    compile(adapter.read_text(encoding="utf-8"), adapter, "exec")


def test_a_module_name_that_python_cannot_import_is_refused(project: Path) -> None:
    """Files from another system may have names in which letters and their accents are separate characters."""
    with pytest.raises(UsageError, match="to which Python normalizes module names"):
        drafted(unicodedata.normalize("NFD", "entraîné.py"))
    drafted("train.py", "entraîné")
    assert find_step_source(f"train.py:{unicodedata.normalize('NFD', 'entraîné')}").function == "entraîné"


@pytest.mark.parametrize("part", ["adapter", "contract", "long_contract"])
def test_an_invalid_draft_leaves_no_file(part: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = drafted("train.py")
    monkeypatch.setattr(Draft, part, lambda *_: "id: é\n  :")
    with pytest.raises(
        HarnessError,
        match=r"train\.py:1: the adapter and the .* this is a bug in the harness",
    ) as broken:
        keep(draft, project, force=False)
    assert broken.value.exit_code == ExitCode.ERROR
    assert [path.name for path in project.iterdir()] == ["train.py"]
