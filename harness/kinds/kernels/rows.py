"""List the kinds of claim about kernels, and the report's sections about them."""

from __future__ import annotations

from harness.kinds.checks import MISSING_RUN, SHARED_CHECKS
from harness.kinds.kind import Kind

_NOT_TRAINED = "The kind's probe trains no arm. Kernels are compiled, listed, or executed outside of a training."
_KERNELS = dict.fromkeys(SHARED_CHECKS, _NOT_TRAINED)

ROWS = (
    Kind(
        name="kernel_match",
        model="harness.kinds.kernels.model:KernelMatch",
        judge="harness.kinds.kernels.kernel_match:judge",
        probes={"kernel_match": ("operations", "max_relative_error", "magnitudes")},
        capabilities=frozenset({"kernel_cases"}),
        card=("accuracy",),
        evidence_faults=(MISSING_RUN,),
        leaves_out=_KERNELS,
    ),
    Kind(
        name="prewarm",
        model="harness.kinds.kernels.model:Prewarm",
        judge="harness.kinds.kernels.compiled_kernels:judge_prewarm",
        probes={"kernels": ("target", "scope"), "prewarm": ("target", "handles", "memory_filled")},
        capabilities=frozenset({"kernels"}),
        card=("jit", "ptx"),
        evidence_faults=(MISSING_RUN,),
        leaves_out=_KERNELS,
    ),
    Kind(
        name="ptx_target",
        model="harness.kinds.kernels.model:PtxTarget",
        judge="harness.kinds.kernels.compiled_kernels:judge_ptx_target",
        probes={"kernels": ("target",)},
        capabilities=frozenset({"kernels"}),
        judges_unreadable_device=True,
        card=("ptx",),
        evidence_faults=(MISSING_RUN,),
        leaves_out=_KERNELS,
    ),
)
SECTIONS = ("harness.kinds.kernels.section:sections",)
