"""Imports that draw random numbers leave the process's generators as they were, wherever and however they are made."""

from __future__ import annotations

import importlib
import importlib.util
import random
import sys
import threading
from collections.abc import Callable
from importlib.machinery import BuiltinImporter
from pathlib import Path
from typing import Any

import pytest
from claims_in_process import verdict_on
from torch._subclasses.fake_tensor import FakeTensorMode
from waiting import LIMIT_S

from harness.judging.verdict import Status
from harness.system.replay.generators import UndrawnImports, as_tensor, global_generators, states

DRAWS = "import random, numpy, torch\nrandom.random(), numpy.random.rand(), torch.rand(1)\n"
Written = Callable[..., None]


def seen() -> dict[str, bytes]:
    found = states(global_generators())
    return {name: bytes(as_tensor(state).tolist()) for name, state in found.items()}


@pytest.fixture
def unwatched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    """Write modules; no `UndrawnImports` of an earlier test looks for them."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [each for each in sys.meta_path if not isinstance(each, UndrawnImports)])

    def write(**sources: str) -> None:
        for name, source in sources.items():
            monkeypatch.delitem(sys.modules, name, raising=False)
            (tmp_path / f"{name}.py").write_text(source)
        importlib.invalidate_caches()

    return write


@pytest.fixture
def written(unwatched: Written) -> Written:
    """Write modules that an `UndrawnImports` looks for."""
    sys.meta_path.insert(0, UndrawnImports())
    return unwatched


def test_random_numbers_drawn_while_a_module_is_imported_are_restored(written: Written) -> None:
    written(drawing_module=DRAWS)
    before = seen()
    importlib.import_module("drawing_module")
    assert seen() == before


def test_random_numbers_drawn_after_a_nested_import_are_restored(written: Written) -> None:
    written(drawing_module=DRAWS, outer_module=f"import drawing_module\n{DRAWS}")
    before = seen()
    importlib.import_module("outer_module")
    assert seen() == before


def test_random_numbers_drawn_by_a_failing_import_and_the_next_import_are_restored(written: Written) -> None:
    written(raising_module=f"{DRAWS}raise OSError", drawing_module=DRAWS)
    before = seen()
    with pytest.raises(OSError):
        importlib.import_module("raising_module")
    importlib.import_module("drawing_module")
    assert seen() == before


def test_an_import_in_another_thread_restores_no_random_state(written: Written) -> None:
    """Otherwise the import would undo what this thread has drawn or seeded in the meantime."""
    begun, seeded = threading.Event(), threading.Event()

    def find_slowly() -> None:
        module = importlib.util.module_from_spec(spec)
        module.__dict__.update(begun=begun, seeded=seeded)
        assert spec.loader is not None
        spec.loader.exec_module(module)

    written(slow_module=f"begun.set()\nseeded.wait({LIMIT_S})\n")
    other = threading.Thread(target=find_slowly)
    spec = next(spec for spec in [importlib.util.find_spec("slow_module")] if spec is not None)
    other.start()
    assert begun.wait(LIMIT_S)
    random.seed(5)
    now = seen()
    seeded.set()
    other.join()
    assert seen() == now


def test_generators_are_restored_after_an_import_within_a_pass_over_fake_tensors(written: Written) -> None:
    written(drawing_module=DRAWS.replace(", torch.rand(1)", "").replace(", torch", ""))
    before = seen()
    with FakeTensorMode(allow_non_fake_inputs=True):
        importlib.import_module("drawing_module")
    assert seen() == before


def test_the_loader_of_builtin_modules_is_not_wrapped(written: Written) -> None:
    shared = vars(BuiltinImporter)["exec_module"]
    found: Any = UndrawnImports().find_spec("sys")
    assert found.loader is BuiltinImporter
    assert vars(BuiltinImporter)["exec_module"] is shared


def test_random_numbers_that_a_call_of_an_imported_function_draws_stay_drawn(written: Written) -> None:
    written(calm_module="import torch\ndef draw(): torch.rand(1)\n")
    before = seen()
    importlib.import_module("calm_module").draw()
    assert seen()["torch.cpu"] != before["torch.cpu"]


def test_arms_start_from_equal_state_if_the_first_arm_imports_a_module_that_draws_random_numbers(
    tmp_path: Path, unwatched: Written
) -> None:
    unwatched(
        drawing_module=DRAWS,
        importing_system=(
            "from step_function_systems import Regression\n\n\n"
            "class Importing(Regression):\n"
            "    def build(self, workload, arm):\n"
            "        import drawing_module\n\n"
            "        return super().build(workload, arm)\n"
        ),
    )
    found = verdict_on("importing_system:Importing", tmp_path / "run")
    assert (found.status, found.message) == (Status.PASS, found.message)
