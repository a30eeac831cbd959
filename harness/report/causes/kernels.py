"""What usually causes that a kernel is not as demanded, and what to do: by reason code."""

from __future__ import annotations

from typing import Final

TEXTS: Final[dict[str, tuple[str, str]]] = {
    "ptx_target_missing": (
        "The kernel was stored without its header, or is no PTX.",
        "store the compiler's PTX as it is",
    ),
    "ptx_target_mismatch": (
        "The target is a constant in the source, or a cache of another machine was used.",
        "take the target from the device at hand, and empty the kernel cache",
    ),
    "ptx_version_unsupported": (
        "The compiler is newer than the driver that loads its PTX.",
        "compile for an older PTX version, or install a newer driver",
    ),
    "duplicate_key": (
        "The key leaves out something that the kernel depends on: a shape, a data type, a flag.",
        "put what differs between the two kernels into the key",
    ),
    "prewarm_missing_key": (
        "The plan of kernels is made from other shapes or settings than training uses.",
        "plan from the settings of the run itself, the missing key's first",
    ),
    "prewarm_ptx_differs": (
        "The kernel is compiled from other constants the second time: a specialization by value or by alignment.",
        "give prewarm arguments that are specialized as training's are",
    ),
    "late_jit": (
        "A kernel is first used in training: another shape, the optimizer's, or a library's that loads lazily.",
        "use the named kernel once in prewarm",
    ),
    "handle_late": (
        "A library makes its handle with its first call.",
        "call the library once before the weights are uploaded",
    ),
    "step_failed_when_full": (
        "The step allocates: a temporary, a workspace, a kernel that is loaded late.",
        "see in the stack what allocated, and allocate it before the weights",
    ),
    "unwritten_elements": (
        "The grid does not cover the output, or a mask leaves its edge out: at odd sizes above all.",
        "compare the number of blocks with the output's size at the named shape",
    ),
    "overwritten_memory": (
        "A store lacks its mask, or a stride is another tensor's.",
        "mask the stores at the named shape, at its last block first",
    ),
    "wrong_type": (
        "The kernel's wrapper allocates its output in the data type of an input, or of an accumulator.",
        "allocate the output in the declared data type and shape",
    ),
    "exceeds_peer": (
        "The kernel accumulates in a narrower type, or in an order that loses more than the peer's.",
        "accumulate in float32, and compare block sizes at the named shape",
    ),
    "not_repeatable": (
        "Atomic additions, a split whose order is left to chance, or memory that is read before it is written.",
        "add in a fixed order, or write partial results and sum them in another pass",
    ),
    "demand_unmet": (
        "The compiler or a constant of the source chose otherwise than the claim demands.",
        "compare the kernel's constants and its compiled metadata with the demand",
    ),
}
