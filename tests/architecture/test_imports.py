"""The import rules of ARCHITECTURE.md, over the sources and over what running processes really load."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from import_statements import ROOT, SOURCES, import_statements, module_name


@dataclass(frozen=True)
class Rule:
    """Modules under `packages` (but for `exempt`) import nothing under `forbidden` (but for `allowed`).

    With `lazily`, an import inside a function or under `if TYPE_CHECKING:` is fine: importing the module does not
    execute it.
    """

    packages: tuple[str, ...]
    forbidden: tuple[str, ...]
    allowed: tuple[str, ...] = ()
    exempt: tuple[str, ...] = ()
    lazily: bool = False


RULES = (
    Rule(
        packages=(
            "harness.judge",
            "harness.report",
            "harness.contract",
            "harness.evidence",
            "harness.run_directory",
            "harness.costs",
            "harness.attestation",
            "harness.lint",
        ),
        forbidden=("torch", "triton"),
        exempt=("harness.evidence.environment",),
    ),
    # What `describe()` needs is imported without torch; heavy imports happen in `open()`.
    Rule(
        packages=(
            *("harness.evidence.environment", "harness.system", "reference_impl.system", "reference_impl.faults"),
            *("reference_impl.transformers_twin.system", "reference_impl.transformers_twin.declared"),
        ),
        forbidden=("torch", "triton"),
        exempt=("harness.system.replay",),
        lazily=True,
    ),
    Rule(packages=("harness",), forbidden=("reference_impl",)),
    # The table of kinds names what other layers have; it imports none of them.
    Rule(packages=("harness.kinds",), forbidden=("harness",), allowed=("harness.kinds", "harness.errors")),
    Rule(packages=("harness.processes",), forbidden=("harness",), allowed=("harness.processes",)),
    Rule(packages=("harness.processes.keeper",), forbidden=("harness",)),
    Rule(packages=("reference_impl",), forbidden=("harness",), allowed=("harness.system", "harness.ptx")),
    # The twin holds the trainer, so it shares nothing with it.
    Rule(
        packages=("reference_impl.transformers_twin",),
        forbidden=("reference_impl",),
        allowed=("reference_impl.transformers_twin",),
    ),
    # What a run cost decides nothing.
    Rule(packages=("harness.judge",), forbidden=("harness.runners", "harness.report", "harness.costs")),
    Rule(packages=("harness.runners",), forbidden=("harness.judge", "harness.report", "harness.costs")),
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
    return any(name == package or name.startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_sources_keep_the_rules(path: Path) -> None:
    assert violations(module_name(path), path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("module", "source", "imported"),
    [
        ("harness.judge.capture", "import torch", "torch"),
        ("harness.report.html", "def draw():\n    from torch import nn", "torch.nn"),
        ("harness.lint", "import torch.cuda as c", "torch.cuda"),
        ("harness.kinds.built_in", "from harness.judge import capture", "harness.judge.capture"),
        ("harness.evidence.run_evidence", "if True:\n    import triton", "triton"),
        ("harness.evidence.environment", "import torch", "torch"),
        ("reference_impl.transformers_twin.system", "try:\n    import torch\nexcept ImportError:\n    pass", "torch"),
        ("reference_impl.system", "class A:\n    import torch", "torch"),
        ("harness.session", "def run():\n    import reference_impl.system", "reference_impl.system"),
        ("harness.system.resolve", "from reference_impl import system", "reference_impl.system"),
        ("reference_impl.trainer", "from harness.errors import HarnessError", "harness.errors.HarnessError"),
        ("reference_impl.trainer", "from harness import runners", "harness.runners"),
        ("reference_impl.transformers_twin.run", "from reference_impl import data", "reference_impl.data"),
        ("harness.judge.capture", "from harness.runners import plan", "harness.runners.plan"),
        ("harness.judge.timing", "from harness.costs import account", "harness.costs.account"),
        ("harness.judge.capture", "from ..report.html import x", "harness.report.html.x"),
        ("harness.judge.__init__", "from ..report import html", "harness.report.html"),
        ("harness.runners.plan", "from harness import judge", "harness.judge"),
        ("harness.runners.plan", "import harness.report.html", "harness.report.html"),
        ("harness.processes.kept", "from harness.errors import HarnessError", "harness.errors.HarnessError"),
        ("harness.processes.keeper", "from harness.processes import kept", "harness.processes.kept"),
    ],
)
def test_a_planted_import_is_seen(module: str, source: str, imported: str) -> None:
    (found,) = violations(module, source)
    assert found.startswith(f"{module}:")
    assert found.endswith(f" imports {imported}")


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("harness.runners.paired", "import torch"),
        ("harness.system.replay.traced", "import torch"),
        ("harness.system.wrappers", "def slow():\n    import torch"),
        (
            "harness.system.protocol",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from torch import Tensor",
        ),
        ("harness.evidence.environment", "def collect():\n    import torch"),
        ("reference_impl.system", "from harness.system.protocol import Expectation\nimport harness.ptx"),
        ("harness.judge.capture", "from harness.judge import verdict\nimport torchless"),
        ("harness.session", "from harness.runners import plan\nfrom harness.judge import registry"),
    ],
)
def test_a_proper_import_is_left_alone(module: str, source: str) -> None:
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


def _import_all(package: str, *, exempt: str = "") -> str:
    modules = [module_name(path) for path in SOURCES if _under(module_name(path), (package,))]
    return "\n".join(f"import {name.removesuffix('.__init__')}" for name in modules if name != exempt)


def test_a_process_loads_no_torch() -> None:
    """One process for all packages: what one of them loads would be there after it."""
    packages = RULES[0].packages
    pieces = [_import_all(package, exempt="harness.evidence.environment") for package in packages]
    loaded = _loaded_in_turn(pieces, "torch", "triton", "reference_impl")
    assert dict(zip(packages, loaded, strict=True)) == {package: [] for package in packages}


def test_a_judging_process_loads_neither_runners_nor_report() -> None:
    assert _loaded_after(_import_all("harness.judge"), "harness.runners", "harness.report") == []


def test_what_a_process_loads_is_seen(tmp_path: Path) -> None:
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
