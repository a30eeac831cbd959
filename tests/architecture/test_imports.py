"""The import rules of ARCHITECTURE.md, over the sources and over what running processes really load."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from import_statements import ROOT, SOURCES, import_statements, module_name, room


@dataclass(frozen=True)
class Rule:
    """Modules under `packages` (but for `exempt`) import nothing under `forbidden` (but for `allowed`).

    A name is that of a module with all that lies under it, or of a room (`harness.kinds:judges`). With `lazily`, an
    import inside a function or under `if TYPE_CHECKING:` is fine: importing the module does not execute it.
    """

    packages: tuple[str, ...]
    forbidden: tuple[str, ...]
    allowed: tuple[str, ...] = ()
    exempt: tuple[str, ...] = ()
    lazily: bool = False


JUDGING = ("harness.judging", "harness.kinds:judges")
NO_TORCH = (
    *("harness.contract", "harness.evidence", "harness.judging", "harness.kinds", "harness.report"),
    *("harness.run_directory", "harness.extras.attestation", "harness.lint"),
)
RULES = (
    Rule(packages=NO_TORCH, forbidden=("torch", "triton")),
    # What `describe()` needs is imported without torch; heavy imports happen in `open()`.
    Rule(
        packages=(
            *("harness.devices.environment", "harness.system", "reference_impl.system", "reference_impl.faults"),
            *("reference_impl.transformers_twin.system", "reference_impl.transformers_twin.declared"),
        ),
        forbidden=("torch", "triton"),
        # faults are wrapped around runs that are open: `faults.yaml` describes them
        exempt=(
            "harness.system.replay",
            *(f"harness.system.{name}_faults" for name in ("between", "memory", "rank")),
        ),
        lazily=True,
    ),
    Rule(packages=("harness",), forbidden=("reference_impl",)),
    # Optional parts: the command line alone knows them, and imports one where its command is given.
    Rule(packages=("harness",), forbidden=("harness.extras",), exempt=("harness.extras", "harness.cli")),
    Rule(packages=("harness.processes",), forbidden=("harness",), allowed=("harness.processes",)),
    Rule(packages=("harness.processes.keeper",), forbidden=("harness",)),
    Rule(
        packages=("reference_impl",),
        forbidden=("harness",),
        allowed=("harness.system", "harness.devices.graphs", "harness.devices.ptx"),
    ),
    # The twin holds the trainer, so it shares nothing with it.
    Rule(
        packages=("reference_impl.transformers_twin",),
        forbidden=("reference_impl",),
        allowed=("reference_impl.transformers_twin",),
    ),
    # What a run cost decides nothing.
    Rule(
        packages=JUDGING,
        forbidden=("harness.execution", "harness.planning", "harness.report", "harness.run_directory.costs"),
    ),
    Rule(
        packages=("harness.execution", "harness.planning", "harness.devices"),
        forbidden=(*JUDGING, "harness.kinds:sections", "harness.report", "harness.run_directory.costs"),
    ),
)


def violations(module: str, source: str) -> list[str]:
    """`module:line imports name` for every import in `source` that a rule forbids to `module`."""
    return [
        f"{module}:{line} imports {name}"
        for name, line, deferred in import_statements(module, source)
        for rule in RULES
        if _under(module, rule.packages) and not _under(module, rule.exempt)
        if _under(name, rule.forbidden) and not _under(name, rule.allowed)
        if not (rule.lazily and deferred)
    ]


def _under(name: str, packages: tuple[str, ...]) -> bool:
    return any(package in (name, room(name)) or name.startswith(f"{package}.") for package in packages)


def test_source_files_import_only_what_the_import_rules_allow() -> None:
    assert len(SOURCES) > 400
    assert [each for path in SOURCES for each in violations(module_name(path), path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    ("module", "source", "imported"),
    [
        ("harness.kinds.captures.capture", "import torch", "torch"),
        ("harness.report.html", "def draw():\n    from torch import nn", "torch.nn"),
        ("harness.lint", "import torch.cuda as c", "torch.cuda"),
        ("harness.evidence.run_evidence", "if True:\n    import triton", "triton"),
        ("harness.devices.environment", "import torch", "torch"),
        ("reference_impl.transformers_twin.system", "try:\n    import torch\nexcept ImportError:\n    pass", "torch"),
        ("reference_impl.system", "class A:\n    import torch", "torch"),
        ("harness.api.session", "def run():\n    import reference_impl.system", "reference_impl.system"),
        ("harness.system.resolve", "from reference_impl import system", "reference_impl.system"),
        ("reference_impl.trainer", "from harness.errors import HarnessError", "harness.errors.HarnessError"),
        ("reference_impl.trainer", "from harness import execution", "harness.execution"),
        ("reference_impl.trainer", "from harness.devices import device", "harness.devices.device"),
        ("reference_impl.transformers_twin.run", "from reference_impl import data", "reference_impl.data"),
        ("harness.kinds.captures.capture", "from harness.planning import plan", "harness.planning.plan"),
        ("harness.kinds.speed.timing", "import harness.run_directory.costs", "harness.run_directory.costs"),
        ("harness.kinds.captures.capture", "from ...report.html import x", "harness.report.html.x"),
        ("harness.judging.__init__", "from ..report import html", "harness.report.html"),
        ("harness.planning.plan", "from harness import judging", "harness.judging"),
        ("harness.planning.plan", "import harness.report.html", "harness.report.html"),
        ("harness.kinds.speed.throughput_ratio", "from harness.execution import worker", "harness.execution.worker"),
        ("harness.devices.graphs", "from harness.kinds.speed import timing as pace", "harness.kinds.speed.timing"),
        ("harness.api.session", "from harness.extras.fleet import gate", "harness.extras.fleet.gate"),
        ("harness.processes.kept", "from harness.errors import HarnessError", "harness.errors.HarnessError"),
        ("harness.processes.keeper", "from harness.processes import kept", "harness.processes.kept"),
    ],
)
def test_a_planted_forbidden_import_is_found(module: str, source: str, imported: str) -> None:
    (found,) = violations(module, source)
    assert found.startswith(f"{module}:")
    assert found.endswith(f" imports {imported}")


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("harness.execution.probes.paired", "import torch"),
        ("harness.system.replay.traced", "import torch"),
        ("harness.system.wrappers", "def slow():\n    import torch"),
        (
            "harness.system.protocol",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from torch import Tensor",
        ),
        ("harness.devices.environment", "def collect():\n    import torch"),
        ("reference_impl.system", "from harness.system.protocol import Expectation\nimport harness.devices.ptx"),
        ("harness.kinds.captures.capture", "from harness.judging import verdict\nimport torchless"),
        ("harness.api.session", "from harness.planning import plan\nfrom harness.judging import registry"),
    ],
)
def test_a_permitted_import_has_no_finding(module: str, source: str) -> None:
    assert violations(module, source) == []


def _loaded_after(code: str, *names: str) -> list[str]:
    """Which of `names` a fresh process has loaded after running `code`."""
    (loaded,) = _loaded_in_turn([code], *names)
    return loaded


def _loaded_in_turn(pieces: Sequence[str], *names: str) -> list[list[str]]:
    """Which of `names` one fresh process has loaded after running each of the pieces, one after the other."""
    told = f"print(*sorted({set(names)!r} & set(__import__('sys').modules)))"
    program = "\n".join(line for code in pieces for line in (code, told))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


def _import_all(*packages: str) -> str:
    modules = [module_name(path) for path in SOURCES if _under(module_name(path), packages)]
    return "\n".join(f"import {name.removesuffix('.__init__')}" for name in modules)


def test_packages_that_must_not_import_torch_load_neither_torch_nor_triton() -> None:
    """Each package is imported in turn, so that a module loaded for one package is not counted for another package."""
    loaded = _loaded_in_turn([_import_all(package) for package in NO_TORCH], "torch", "triton", "reference_impl")
    assert dict(zip(NO_TORCH, loaded, strict=True)) == {package: [] for package in NO_TORCH}


def test_a_judging_process_loads_neither_runners_nor_report() -> None:
    assert _loaded_after(_import_all(*JUDGING), "harness.execution", "harness.planning", "harness.report") == []


def test_modules_loaded_by_a_child_process_are_reported_per_piece_of_code(tmp_path: Path) -> None:
    (tmp_path / "torch.py").touch()
    pieces = ["import sys", f"sys.path.insert(0, {str(tmp_path)!r})\nimport torch", "import json"]
    assert _loaded_in_turn(pieces, "torch", "triton") == [[], ["torch"], ["torch"]]


@pytest.mark.parametrize(
    "name",
    [
        "reference_impl.system:QLoRASystem",
        "reference_impl.transformers_twin.system:TransformersTwin",
    ],
)
def test_a_system_describes_itself_without_torch(name: str) -> None:
    module, attribute = name.split(":")
    assert importlib.util.find_spec(module) is not None
    code = f"from {module} import {attribute}\nassert {attribute}().describe().name"
    assert _loaded_after(code, "torch", "triton", "transformers") == []
