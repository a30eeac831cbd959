"""Calls of `torch.cuda`, NVML, the driver, CUPTI and the profiler stand in `harness/devices`, and nowhere else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from import_statements import ROOT, import_statements, module_name
from syntax_trees import parsed

DEVICES = ROOT / "harness" / "devices"
PACKAGES = re.compile(
    r"(torch\.(cuda|profiler|accelerator|autograd\.profiler|backends\.(cuda|cudnn)|version\.cuda)|pynvml|cuda|cupti)(\.|$)"
    r"|torch\._C\._(cuda|accelerator|profiler|autograd\._profiler|Cuda|CUDA)"
)
LIBRARIES = re.compile(r"lib(cuda|cudart|cupti|nvidia-ml)\b")
LOADERS = {"CDLL", "LoadLibrary", "import_module", "__import__"}


def device_calls(module: str, source: str) -> Iterator[str]:
    """Yield `module:line name` for each name of such a package in a source, and for each library that it loads."""
    for statement in import_statements(module, source):
        if PACKAGES.match(statement.name):
            yield f"{module}:{statement.line} {statement.name}"
    seen = set()  # the parts of a dotted name, whose whole comes first
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Attribute):
            if id(node) not in seen and PACKAGES.match(ast.unparse(node)):
                yield f"{module}:{node.lineno} {ast.unparse(node)}"
            seen.add(id(node.value))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in LOADERS:
            for given in (str(each.value) for each in node.args if isinstance(each, ast.Constant)):
                if PACKAGES.match(given) or LIBRARIES.match(given):
                    yield f"{module}:{node.lineno} {given}"


def test_only_the_devices_room_calls_cuda() -> None:
    sources = [path for path in sorted((ROOT / "harness").rglob("*.py")) if DEVICES not in path.parents]
    assert [
        call for path in sources for call in device_calls(module_name(path), path.read_text(encoding="utf-8"))
    ] == []


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("torch.cuda.synchronize()", "torch.cuda.synchronize"),
        ("def later(stream: torch.cuda.Stream | None): ...", "torch.cuda.Stream"),
        ("def later():\n    from torch import cuda", "torch.cuda"),
        ("import torch.profiler as p", "torch.profiler"),
        ("if torch._C._autograd._profiler_enabled(): ...", "torch._C._autograd._profiler_enabled"),
        ("before = torch._C._cuda_synchronize", "torch._C._cuda_synchronize"),
        ("torch.backends.cudnn.benchmark = False", "torch.backends.cudnn.benchmark"),
        ("torch.accelerator.synchronize()", "torch.accelerator.synchronize"),
        ("import pynvml", "pynvml"),
        ("from cuda.bindings import runtime", "cuda.bindings.runtime"),
        ("importlib.import_module('cuda.bindings.driver')", "cuda.bindings.driver"),
        ("ctypes.CDLL('libcuda.so.1')", "libcuda.so.1"),
    ],
)
def test_a_planted_cuda_call_outside_the_devices_room_is_found(source: str, name: str) -> None:
    [found] = device_calls("harness.execution.arm", source)
    assert found.partition(" ")[2] == name


@pytest.mark.parametrize(
    "source",
    [
        "torch.zeros(3, device='cuda')",
        "if loss.is_cuda: ...",
        "def later(stream: torch.Stream): ...",
        "from harness.devices.device import synchronize",
        "if name.startswith('torch.cuda'): ...",
    ],
)
def test_source_that_calls_no_device_has_no_finding(source: str) -> None:
    assert list(device_calls("harness.execution.arm", source)) == []
