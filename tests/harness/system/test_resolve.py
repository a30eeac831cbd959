"""Names of systems: what resolves, and what each wrong name is told."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from harness.contract.schema import Arm, Workload
from harness.errors import SystemResolutionError
from harness.system.protocol import NotAvailable
from harness.system.resolve import resolve


class Minimal:
    def describe(self) -> str:
        return "minimal"

    def open(self) -> None: ...


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    made = types.ModuleType("resolve_subject")
    made.MinimalSystem = Minimal  # type: ignore[attr-defined]
    made.instance = Minimal()  # type: ignore[attr-defined]
    made.factory = lambda: made.instance  # type: ignore[attr-defined]
    made.needs_argument = lambda size: size  # type: ignore[attr-defined]
    made.number = 3  # type: ignore[attr-defined]
    made.Holder = types.SimpleNamespace(inner=Minimal)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "resolve_subject", made)
    return made


@pytest.mark.parametrize("attribute", ["MinimalSystem", "instance", "factory", "Holder.inner"])
def test_names_of_classes_instances_factories_and_nested_attributes_resolve_to_a_system(
    module: types.ModuleType, attribute: str
) -> None:
    assert isinstance(resolve(f"resolve_subject:{attribute}"), Minimal)


def test_a_name_of_an_instance_resolves_to_this_instance_without_a_call(module: types.ModuleType) -> None:
    assert resolve("resolve_subject:instance") is module.instance


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resolve_subject", "a system must be named `module:attribute`"),
        (":x", "a system must be named `module:attribute`"),
        ("resolve_subject:MinimlSystem", "did you mean MinimalSystem"),
        ("resolve_subject:zzz", "systems in the module: MinimalSystem, instance"),
        ("resolve_subject:number", "found a int"),
        ("resolve_subject:needs_argument", "must be callable without arguments; found TypeError"),
        ("no_such_module_at_all:x", "found ModuleNotFoundError: No module named 'no_such_module_at_all'"),
        ("no_such_module_at_all.inner:x", "run from the folder that holds `no_such_module_at_all`, install it"),
    ],
)
def test_a_wrong_system_name_is_refused_with_its_error(module: types.ModuleType, name: str, message: str) -> None:
    with pytest.raises(SystemResolutionError) as caught:
        resolve(name)
    assert message in str(caught.value)


def test_a_module_that_fails_to_import_is_a_resolution_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("broken")
    (folder / "resolve_broken_subject.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(folder))
    with pytest.raises(SystemResolutionError, match="ZeroDivisionError: division by zero"):
        resolve("resolve_broken_subject:System")


SYSTEM = "class System:\n    def describe(self): ...\n    def open(self): ...\n"


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory that nobody put on the path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    return tmp_path


def test_a_system_is_found_in_the_working_directory(elsewhere: Path) -> None:
    (elsewhere / "resolve_beside_subject.py").write_text(SYSTEM)
    assert type(resolve("resolve_beside_subject:System")).__name__ == "System"
    assert sys.path[-1] == str(elsewhere)


def test_the_working_directory_hides_no_installed_module(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (elsewhere / "colorsys.py").write_text(SYSTEM)
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with pytest.raises(SystemResolutionError, match="must have the attribute 'System'"):
        resolve("colorsys:System")


def test_a_missing_dependency_of_the_systems_module_is_named(elsewhere: Path) -> None:
    (elsewhere / "resolve_lacking_subject.py").write_text("import no_such_dependency\n")
    with pytest.raises(
        SystemResolutionError,
        match="No module named 'no_such_dependency'; fix the module first, so that `import resolve_lacking_su",
    ):
        resolve("resolve_lacking_subject:System")


def test_a_retired_system_that_published_contracts_name_can_be_described_but_not_trained() -> None:
    system = resolve("harness.system.huggingface:TransformersQLoRA")
    assert system.describe().faults == {}
    with pytest.raises(NotAvailable, match="no longer contains this system"):
        system.open(Workload(model="any", batch_size=1, seq_len=1, steps=1), Arm())
