"""Kernels that start while the one before them still runs: they wait before they touch memory, and launches say so."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from step_kernels import fp8_specs, gemm_specs, hopper_specs, qwen2_specs
from torch import Tensor

from reference_impl.kernels import registry, target, triton_source
from reference_impl.kernels.cuda_source import CudaFunction
from reference_impl.kernels.registry import KERNELS, KernelSpec
from reference_impl.kernels.triton_source import TritonFunction

WAIT, RELEASE = "griddepcontrol.wait", "griddepcontrol.launch_dependents"

_NO_INSTRUCTION = re.compile(r"//[^\n]*|/\*.*?\*/|^\s*\.(?:loc|file)\b[^\n]*", re.DOTALL | re.MULTILINE)
_LABEL = re.compile(r"\s*([\w$%]+):(?!:)")
_GUARD = re.compile(r"@!?%?\w+\s+")
# Of these a kernel could read or write what the one before it does; a call could hide any of them.
_TOUCHES = re.compile(
    r"(?:ldu?|st|atom|red|cp|multimem|prefetchu?|discard|applypriority|tensormap|tex|tld4|suld|sust|sured|wmma|call)\b"
)
_TOUCHES_NO_TENSOR = re.compile(r"(?:ld|st|atom|red)\.(?!\S*global)(?:\w+\.)*(?:shared|param|const|local)\b")
# A block that leaves without the wait lets the next kernel take the one before this one for ended, too.
_LEAVES = re.compile(r"(?:ret|exit|brx)\b")
_JUMP = re.compile(r"bra(?:\.uni)?\s+(\S+)")


def instructions(ptx: str) -> Iterator[str]:
    """The steps of a module's one entry, in order; a label is one of them, with its colon."""
    _, _, entry = _NO_INSTRUCTION.sub("", ptx).partition(".entry")
    for piece in re.split(r"[;{}]", entry.partition("{")[2]):
        rest = piece
        while label := _LABEL.match(rest):
            yield f"{label[1]}:"
            rest = rest[label.end() :]
        if step := " ".join(rest.split()):
            yield step


def faults(ptx: str) -> list[str]:
    """Why a kernel must not start early: what is amiss, or the instructions before the wait that must not be there.

    Without any, every thread comes to the wait, whatever way it takes, before it touches a tensor.
    """
    steps = [*instructions(ptx)]
    if WAIT not in steps:
        return [f"no {WAIT} of every thread"]
    before = [_GUARD.sub("", step) for step in steps[: steps.index(WAIT)]]
    found = [step.split()[0] for step in before if _touches(step) or _LEAVES.match(step)]
    labels = [jump[1] for step in before if (jump := _JUMP.match(step))]
    found += [f"bra {label}" for label in labels if f"{label}:" not in before]
    if RELEASE not in steps or RELEASE in before:
        found.append(f"no {RELEASE} after the wait")
    return found


def _touches(step: str) -> bool:
    return bool(_TOUCHES.match(step)) and not _TOUCHES_NO_TENSOR.match(step)


def one_of_each_source(specs: list[KernelSpec]) -> list[Any]:
    """All, of which `make test` compiles the first of each source."""
    first: dict[object, KernelSpec] = {}
    for spec in specs:
        first.setdefault(source_of(spec), spec)
    quick = [id(spec) for spec in first.values()]
    return [pytest.param(spec, id=spec.key, marks=() if id(spec) in quick else pytest.mark.slow) for spec in specs]


def source_of(spec: KernelSpec) -> object:
    return spec.function.source if isinstance(spec.function, CudaFunction) else spec.op.partition(".")[0]


def long_attention() -> KernelSpec:
    """It reads by descriptors, through the copy engine."""
    spec: KernelSpec = registry.load("attention").forward_spec(4, 2048, 12, 2, 128, "bf16")
    return spec


def triton_specs() -> list[KernelSpec]:
    return [*qwen2_specs(), *fp8_specs(), *gemm_specs(), long_attention()]


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("spec", one_of_each_source([*triton_specs(), *hopper_specs()]))
def test_a_hopper_kernel_waits_for_the_previous_kernel_before_it_accesses_memory(spec: KernelSpec) -> None:
    assert faults(registry.offline_compile(spec, 90).asm["ptx"]) == []


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("spec", [*qwen2_specs(), *gemm_specs(), long_attention()], ids=lambda spec: spec.key)
def test_kernels_compiled_for_gpus_older_than_hopper_do_not_wait_for_the_previous_kernel(spec: KernelSpec) -> None:
    compiled: Any = registry.offline_compile(spec, 80)
    assert (compiled.metadata.launch_pdl, "griddepcontrol" in compiled.asm["ptx"]) == (False, False)


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(("sm", "early"), [(80, False), (86, False), (90, True), (100, True), (120, True)])
def test_kernels_compiled_for_hopper_or_later_may_start_before_the_previous_kernel_ends(sm: int, early: bool) -> None:
    compiled: Any = registry.offline_compile(registry.load("softmax").backward_spec(2, 8, "fp32"), sm)
    assert (compiled.metadata.launch_pdl, WAIT in compiled.asm["ptx"]) == (early, early)


def test_every_cuda_source_file_is_compiled_in_this_test() -> None:
    folder = Path(registry.__file__).parent
    assert {source_of(spec) for spec in hopper_specs()} == {*folder.glob("*/*.cu")}


KERNELS_OF_TRITON = [
    pytest.param(kernel, id=f"{operation}.{name}")
    for operation in KERNELS
    for name, kernel in vars(registry.load(operation)).items()
    if isinstance(kernel, TritonFunction)
]


@pytest.mark.parametrize("kernel", KERNELS_OF_TRITON)
def test_every_triton_kernel_begins_with_the_wait_for_the_previous_kernel(kernel: TritonFunction) -> None:
    # kernels that no list here has are held to it, too
    [function] = ast.parse(textwrap.dedent(inspect.getsource(kernel.jit.fn))).body
    assert isinstance(function, ast.FunctionDef)
    assert ast.unparse(function.body[0]) == "begin(PDL)"


LOAD, STORE = "ld.global.b32 %r1, [%rd1];", "@%p1 st.global.v2.b32 [ %rd1 + 0 ], { %r1, %r2 };"
COPY = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r2, %r3}], [%r4];"
BOTH = f"{WAIT};\n{RELEASE};"
HARMLESS = (
    "// ld.global\n.loc 1 2 3\nld.param.b64 %rd1, [kernel_param_0];\n@%p1 bra $ready;\n"
    "mbarrier.init.shared::cta.b64 [%r1], 1;\nst.shared.b32 [%r1], %r2;\n$ready:\nbarrier.cluster.arrive.release;\n"
)
BODIES = {
    "as it must be": (f"{HARMLESS}{BOTH}\n{LOAD}\n{STORE}", []),
    "no wait": (f"{LOAD}\n{RELEASE};", [f"no {WAIT} of every thread"]),
    "a wait of some": (f"@%p1 {BOTH}\n{LOAD}", [f"no {WAIT} of every thread"]),
    "a load": (f"{HARMLESS}{LOAD}\n{BOTH}", ["ld.global.b32"]),
    "a load of some address": (f"ld.v4.b32 {{%r1, %r2, %r3, %r4}}, [%rd1];\n{BOTH}", ["ld.v4.b32"]),
    "a guarded store": (f"{STORE}\n{BOTH}", ["st.global.v2.b32"]),
    "a sum in memory": (f"red.relaxed.gpu.global.add.f32 [%rd1], %f1;\n{BOTH}", ["red.relaxed.gpu.global.add.f32"]),
    "a copy": (f"{COPY}\n{BOTH}", [COPY.partition(" ")[0]]),
    "a prefetch": (f"prefetch.global.L2 [%rd1];\n{BOTH}", ["prefetch.global.L2"]),
    "a call": (f"call.uni (%r1), f, (%r2);\n{BOTH}", ["call.uni"]),
    "a jump": (f"@%p1 bra $over;\n{BOTH}\n$over:\n{LOAD}", ["bra $over"]),
    "an end": (f"@%p1 ret;\n{BOTH}\n{LOAD}", ["ret"]),
    "released before": (f"{RELEASE};\n{WAIT};\n{LOAD}", [f"no {RELEASE} after the wait"]),
    "never released": (f"{WAIT};\n{LOAD}", [f"no {RELEASE} after the wait"]),
}


@pytest.mark.parametrize("case", BODIES)
def test_memory_access_before_the_dependency_wait_is_found_in_ptx(case: str) -> None:
    body, expected = BODIES[case]
    head = ".visible .entry kernel(\n.param .u64 kernel_param_0\n)\n.maxntid 128"
    assert faults(f"{head}\n{{\n{body}\nret;\n}}") == expected


class Recorder:
    """What a `triton.jit` function is called with."""

    def __init__(self) -> None:
        self.launched: list[dict[str, Any]] = []
        self.warmed: list[dict[str, Any]] = []

    def __getitem__(self, _grid: tuple[int, ...]) -> Any:
        return lambda *_tensors, **named: self.launched.append(named)

    def warmup(self, *_stand_ins: Any, grid: tuple[int, ...], **named: Any) -> None:
        assert grid
        self.warmed.append(named)


@pytest.mark.parametrize("early", [True, False])
def test_a_launch_starts_early_when_the_device_supports_it_and_matches_the_compiled_kernel(
    early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_source, "device_starts_early", lambda: early)
    spec, recorder = registry.load("softmax").backward_spec(2, 8, "fp32"), Recorder()
    tensors: tuple[Tensor, ...] = tuple(torch.zeros(2, 8) for _ in spec.pointers)
    TritonFunction(recorder).launch(spec, tensors)
    TritonFunction(recorder).compile_for_device(spec)
    expected = {**spec.constexprs, **spec.options, "PDL": early, "launch_pdl": early}
    assert (recorder.launched, recorder.warmed) == ([expected], [expected])


@pytest.mark.parametrize(
    ("capability", "interpreted", "early"),
    [((8, 0), "0", False), ((9, 0), "0", True), ((12, 0), "0", True), ((9, 0), "1", False), (None, "0", False)],
)
def test_launches_start_early_on_hopper_and_later_devices_unless_kernels_are_interpreted(
    capability: tuple[int, int] | None, interpreted: str, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", interpreted)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: capability is not None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert target.device_starts_early.__wrapped__() is early
