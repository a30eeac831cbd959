"""Where an error about an adapter points: definitions, returns, and the innermost line of the user's own code."""

from __future__ import annotations

import functools
import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from installed_packages import record_installed

from harness.system import users_code
from harness.system.replay.traced import HostSyncError, fake_pass
from harness.system.users_code import attribute_place, definition, innermost_frame, relative, return_place

HERE = relative(__file__)


def line_of(text: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, start=1) if line.strip() == text)


def one_return(value: int) -> int:
    def inside() -> int:
        return 0

    return value + inside()  # the only one


def two_returns(value: int) -> int:
    if value:
        return 1
    return 2


@functools.lru_cache
def wrapped() -> int:
    return 1  # of the wrapped


class Callable_:  # noqa: N801 - for the test alone
    def __call__(self) -> int:
        return 2  # of the object


class Module(torch.nn.Module):
    option = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x  # of the module


RETURNS: list[tuple[Callable[..., Any], str]] = [
    (one_return, "return value + inside()  # the only one"),
    (two_returns, "def two_returns(value: int) -> int:"),
    (wrapped, "return 1  # of the wrapped"),
    (functools.partial(one_return, 3), "return value + inside()  # the only one"),
    (Callable_(), "return 2  # of the object"),
    (Module(), "return x  # of the module"),
    (Module().forward, "return x  # of the module"),
]


@pytest.mark.parametrize(("function", "line"), RETURNS, ids=[line for _, line in RETURNS])
def test_a_function_is_located_at_its_only_return_or_its_definition(function: Callable[..., Any], line: str) -> None:
    assert return_place(function) == f"{HERE}:{line_of(line)}"


def test_the_result_of_an_imported_function_is_located_in_that_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made_by_a_user.py").write_text("def build():\n    value = 1\n    return value\n")
    drafted = "def build():\n    from made_by_a_user import build\n\n    return build()\n"
    (tmp_path / "as_drafted.py").write_text(drafted)
    monkeypatch.syspath_prepend(tmp_path)
    adapter = importlib.import_module("as_drafted")
    assert return_place(adapter.build) == "as_drafted.py:4"  # before the import was executed
    adapter.build()
    assert return_place(adapter.build) == "made_by_a_user.py:3"


@pytest.mark.parametrize("thing", [dict, len, 3, torch.nn.functional.relu.__class__])
def test_an_object_without_source_has_no_place_in_the_test_file(thing: Any) -> None:
    assert HERE not in definition(thing)


def test_an_attribute_is_located_where_its_class_sets_it_or_at_the_class() -> None:
    assert attribute_place(Module, "option") == f"{HERE}:{line_of('option = 1')}"
    assert attribute_place(Module, "no_such", "forward").endswith(f":{line_of('return x  # of the module') - 1}")
    assert attribute_place(Module, "no_such") == f"{HERE}:{line_of('class Module(torch.nn.Module):')}"


def raised(function: Callable[[], object]) -> str:
    with pytest.raises(Exception) as caught:
        function()
    return str(innermost_frame(caught.value))


def test_an_exception_in_a_library_is_reported_at_the_users_line_that_called_the_library() -> None:
    def step() -> None:
        torch.nn.functional.linear(torch.ones(2, 3), torch.ones(2, 2))  # called

    expected = "torch.nn.functional.linear(torch.ones(2, 3), torch.ones(2, 2))  # called"
    assert raised(step) == f"{HERE}:{line_of(expected)} in step `{expected}`"


def installed(folder: Path, name: str, source: str, into: str = "site-packages") -> ModuleType:
    """A module as one that a package manager put there."""
    place = folder / into
    record_installed(place, {f"{name}.py": source})
    sys.path.insert(0, str(place))
    try:
        return __import__(name)
    finally:
        sys.path.remove(str(place))


def test_a_sync_in_a_library_is_reported_with_the_users_line(tmp_path: Path) -> None:
    library = installed(tmp_path, "waiting_library", "def log(loss):\n    return loss.item()\n")

    weight = torch.ones(())

    def step() -> torch.Tensor:
        loss = weight * 2
        library.log(loss)  # the user's line
        return loss

    with pytest.raises(HostSyncError) as caught:
        fake_pass(step, dict)
    assert (caught.value.file, caught.value.line) == ("waiting_library.py", 2)
    line = line_of("library.log(loss)  # the user's line")
    called = f"called at {HERE}:{line}"
    assert caught.value.got.startswith(f"host sync by aten._local_scalar_dense.default, {called} in step `library.log")


@pytest.mark.parametrize("into", ["site-packages", "target"])
def test_an_exception_in_an_installed_trainer_is_reported_at_the_function_called_by_the_harness(
    into: str, tmp_path: Path
) -> None:
    name = f"installed_trainer_in_{into.partition('-')[0]}"
    trainer = installed(tmp_path, name, "def step():\n    inner()\n\ndef inner():\n    1 / 0\n", into)
    source = compile("def call(step):\n    step()\n", str(Path(definition.__code__.co_filename)), "exec")
    harness: dict[str, Any] = {}
    exec(source, harness)  # noqa: S102 - a frame of the harness's own
    try:
        harness["call"](trainer.step)
    except ZeroDivisionError as error:
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # without this test's own frame
        frame = innermost_frame(error)
    assert frame is not None
    assert (Path(frame.file).name, frame.line, frame.function) == (f"{name}.py", 2, "step")


CALLS = """
import sys
from pathlib import Path

from harness.system import describing, users_code

source = compile(Path(sys.argv[1]).read_text(), users_code.__file__, "exec")
ours = {}
exec(source, ours)
try:
    ours["call"](ours["fail"])
except ValueError as error:
    error.__traceback__ = error.__traceback__.tb_next  # without this program's own frame
    print(users_code.innermost_frame(error), repr(describing._place(error)))
"""
OURS = "def call(function):\n    function()\n\ndef fail():\n    raise ValueError\n"


@pytest.mark.parametrize(
    "place",
    ["site-packages", "checkout", *(pytest.param(each, marks=pytest.mark.slow) for each in ("target", "links"))],
)
def test_lines_of_the_harness_are_never_users_lines_wherever_it_is_installed(place: str, tmp_path: Path) -> None:
    folder = tmp_path / place
    copied = (tmp_path / "store" if place == "links" else folder) / "harness"
    shutil.copytree(Path(users_code.__file__).parents[1], copied, ignore=shutil.ignore_patterns("__pycache__"))
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "harness").exists():
        (folder / "harness").symlink_to(copied)
    if place == "target":
        record_installed(folder, {"harness/__init__.py": (copied / "__init__.py").read_text()})
    for name, text in {"program.py": CALLS, "ours.py": OURS}.items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-P", tmp_path / "program.py", tmp_path / "ours.py"],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == ["None ''"], done.stderr
