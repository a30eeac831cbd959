"""Names of systems: what resolves, and what each wrong name is told."""

from __future__ import annotations

import sys
import types

import pytest

from harness.errors import SystemResolutionError
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
def test_class_instance_factory_and_nested_names_resolve(module: types.ModuleType, attribute: str) -> None:
    assert isinstance(resolve(f"resolve_subject:{attribute}"), Minimal)


def test_an_instance_is_not_called_again(module: types.ModuleType) -> None:
    assert resolve("resolve_subject:instance") is module.instance


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resolve_subject", "a system is named `module:attribute`"),
        (":x", "a system is named `module:attribute`"),
        ("resolve_subject:MinimlSystem", "did you mean MinimalSystem"),
        ("resolve_subject:zzz", "systems there: MinimalSystem, instance"),
        ("resolve_subject:number", "found a int"),
        ("resolve_subject:needs_argument", "called without arguments; found TypeError"),
        ("no_such_module_at_all:x", "found ModuleNotFoundError: No module named 'no_such_module_at_all'"),
    ],
)
def test_a_wrong_name_says_what_is_wrong(module: types.ModuleType, name: str, message: str) -> None:
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
