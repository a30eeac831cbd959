"""Planted faults of the kernel plan, its keys and its PTX.

The faults change how a run's kernels are planned, how their keys are made, and how their PTX is read (`RunKernels`).
They are therefore planted before a prewarm. Claims find most of them with and without a GPU. Importable without torch
and Triton. Keys in the expected verdicts are those of the workload `tiny` in the contracts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness.devices.ptx import parse_target
from harness.system.protocol import Expectation
from reference_impl.faults.registry import PLAN, fault

if TYPE_CHECKING:
    from reference_impl.kernels.registry import KernelSpec
    from reference_impl.prewarm import RunKernels

# The epsilon for which the prewarm of the upstream project compiles the norms. A run of the upstream project reads the
# epsilon from the model.
UPSTREAMS_EPS = 1e-5
# The kernel whose PTX a fault changes. In every plan, it is the last kernel of the clip.
SPOILED = "clip.scale_apply"


def _coverage(reason: str, **figures: str | int) -> dict[str, Expectation]:
    named = {f"prewarm.1.{name}": value for name, value in figures.items()}
    return {"PREWARM-COVERAGE-001": Expectation("FAIL", reason, named)}


def _missing(**figures: str | int) -> dict[str, Expectation]:
    """Return the verdicts of two claims, without and with a GPU, for a key that is used but not in the plan."""
    return {
        **_coverage("prewarm_missing_key", **figures),
        "C-PREWARM-001": Expectation("FAIL", "prewarm_missing_key"),
    }


def _target(reason: str, part: int, **figures: str | int) -> dict[str, Expectation]:
    named = {f"ptx_target.{part}.{name}": value for name, value in figures.items()}
    return {"PTX-TARGET-001": Expectation("FAIL", reason, named)}


def _every_target(reason: str, **figures: int) -> dict[str, Expectation]:
    """Return the verdict of the claim PTX-TARGET-001 for a fault with which all four parts of the claim fail."""
    named = {f"ptx_target.{part}.{name}": value for part in range(1, 5) for name, value in figures.items()}
    return {"PTX-TARGET-001": Expectation("FAIL", reason, named)}


@fault(
    PLAN,
    "all shapes of an operation have one key, so the kernel of the first shape is used for all shapes",
    _coverage("duplicate_key"),
)
def key_collision(kernels: RunKernels) -> None:
    kernels.key = lambda spec, target: f"{spec.op}@{target}"


@fault(
    PLAN,
    "the key does not contain eps, and the prewarm compiles a kernel with another eps than the run uses",
    _coverage("prewarm_ptx_differs", first_differing_key="rms_norm.add_forward/256x128/bf16/-/w1s1@sm_90"),
)
def missing_eps_in_key(kernels: RunKernels) -> None:
    key = kernels.key

    def key_without_eps(spec: KernelSpec, target: str) -> str:
        kept = tuple(constant for constant in spec.constants if constant[0] != "eps")
        return key(replace(spec, constants=kept), target)

    kernels.key = key_without_eps
    wrong_eps(kernels)


@fault(
    PLAN,
    "the prewarm compiles the norms for eps 1e-5, but the run uses the model's 1e-6",
    _missing(first_missing_key="rms_norm.add_forward/256x128/bf16/eps=1e-06/w1s1@sm_90"),
)
def wrong_eps(kernels: RunKernels) -> None:
    kernels.model_of_plan = replace(kernels.model, rms_norm_eps=UPSTREAMS_EPS)


@fault(
    PLAN,
    "the prewarm compiles for sequences of 1 token, but the run trains on longer sequences",
    # Name no missing key in the expected verdict: most keys are missing, and any of them may be reported first.
    _missing(),
)
def sequence_length_1(kernels: RunKernels) -> None:
    kernels.seq_lens_of_plan = (1,)


@fault(
    PLAN,
    "the second stage of the gain gradients is missing in the plan (PMAT-698h)",
    _missing(keys_missing=2),
)
def missing_entry(kernels: RunKernels) -> None:
    plan = kernels.plan
    kernels.plan = lambda: [spec for spec in plan() if spec.op != "rms_norm.reduce_gain"]


@fault(
    PLAN,
    "the prewarm stores a kernel for the shape (I, T) under the key that the run uses for (T, I)",
    _coverage("prewarm_ptx_differs", first_differing_key="swiglu.backward/256x384/bf16/-/w4s1@sm_90"),
)
def swapped_dimensions(kernels: RunKernels) -> None:
    plan = kernels.plan

    def swapped(spec: KernelSpec) -> KernelSpec:
        if spec.op != "swiglu.backward":
            return spec
        from reference_impl.kernels import registry

        tokens, intermediate = spec.shape
        other: KernelSpec = registry.load("swiglu").backward_spec(intermediate, tokens, spec.dtype)
        return replace(other, shape=spec.shape)

    kernels.plan = lambda: [swapped(spec) for spec in plan()]


@fault(
    PLAN,
    "one planned kernel is not compiled before its first launch",
    {"C-PREWARM-001": Expectation("FAIL", "late_jit")},
    needs="cuda",
)
def late_jit(kernels: RunKernels) -> None:
    kernels.to_prewarm = lambda: [spec for spec in kernels.plan() if spec.op != SPOILED]


@fault(
    PLAN,
    "cuBLAS's handle and workspace are not created before the first product of the first step",
    {"C-PREWARM-001": Expectation("FAIL", "handle_late")},
    needs="cuda",
)
def cold_cublas(kernels: RunKernels) -> None:
    kernels.warm_libraries = lambda: None


def _spoil(kernels: RunKernels, change: Callable[[KernelSpec, str, str], str]) -> None:
    """Change the PTX of the kernel `SPOILED`. `change` gets spec, PTX and target, and returns the new PTX."""
    ptx = kernels.ptx

    def spoiled(spec: KernelSpec, compiled: Any, target: str) -> str:
        text = ptx(spec, compiled, target)
        return change(spec, text, target) if spec.op == SPOILED else text

    kernels.ptx = spoiled


def _compiled_for(spec: KernelSpec, architecture: int) -> str:
    from reference_impl.kernels import registry

    text: str = registry.offline_compile(spec, architecture).asm["ptx"]
    return text


def _on_device(reason: str) -> dict[str, Expectation]:
    return {"F-PTX-001": Expectation("FAIL", reason)}


@fault(
    PLAN,
    "one kernel comes from a cache that was filled on another GPU",
    {**_every_target("ptx_target_mismatch", kernels_mismatched=1), **_on_device("ptx_target_mismatch")},
)
def ptx_other_architecture(kernels: RunKernels) -> None:
    def of_another_gpu(spec: KernelSpec, _text: str, target: str) -> str:
        return _compiled_for(spec, 90 if parse_target(target).number == 120 else 120)

    _spoil(kernels, of_another_gpu)


@fault(
    PLAN,
    "the PTX of one kernel has no .target line, which upstream's check lets pass",
    {**_target("ptx_target_missing", 1), **_on_device("ptx_target_missing")},
)
def ptx_without_target(kernels: RunKernels) -> None:
    _spoil(kernels, lambda _spec, text, _target: re.sub(r"(?m)^\.target.*$", "", text))


@fault(
    PLAN,
    "one kernel is compiled for sm_90a, which only an sm_90 can load, but the target is sm_80",
    _target("ptx_target_mismatch", 1, kernels_mismatched=1),
)
def ptx_sm_90a_on_sm_80(kernels: RunKernels) -> None:
    def hopper_on_ampere(spec: KernelSpec, text: str, target: str) -> str:
        return _compiled_for(spec, 90) if parse_target(target).number == 80 else text

    _spoil(kernels, hopper_on_ampere)
