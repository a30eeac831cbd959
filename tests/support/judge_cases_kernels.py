"""Cases of ptx_target, prewarm and kernel_match: evidence that passes, with one thing changed."""

from __future__ import annotations

import math
from typing import Any

from evidence_builders import verdict_of
from judge_cases import Case

from harness.evidence.model import (
    JitEvent,
    KernelCase,
    KernelMatchEvidence,
    KernelRecord,
    KernelsEvidence,
    PrewarmEvidence,
    RunEvidence,
)
from harness.judge.verdict import Verdict


def kernel(key: str = "gemm", **changes: Any) -> KernelRecord:
    """A Hopper kernel."""
    return KernelRecord(
        **{
            "key": key,
            "name": key,
            "ptx_digest": f"ptx of {key}",
            "targets": ["sm_90a"],
            "versions": ["8.7"],
            "entries": [key],
            "shared_memory_bytes": 2048,
            "threads": 256,
            **changes,
        }
    )


def inventory(**changes: Any) -> KernelsEvidence:
    """Two planned and used kernels on a Hopper device under a driver of CUDA 13.0."""
    return KernelsEvidence(
        **{
            "arm": "graphed",
            "device": "sm_90",
            "device_readable": True,
            "driver_ptx_version": "9.0",
            "compiled_for": None,
            "planned": [kernel(), kernel("clip")],
            "used": [kernel(), kernel("clip")],
            **changes,
        }
    )


PTX: dict[str, Any] = {"kind": "ptx_target", "candidate": "graphed", "policy": "loadable", "target": "device"}
EXACT = {"policy": "exact"}
NAMED = {"target": "sm_90"}
OFFLINE: dict[str, Any] = {"device": None, "driver_ptx_version": None, "compiled_for": "sm_90"}


def targeted(claim: dict[str, Any] | None = None, **changes: Any) -> Verdict:
    """The verdict on an inventory with changes."""
    kernels = {"graphed": inventory(**changes)}
    return verdict_of(PTX | (claim or {}), RunEvidence("run", "kernels", {}, kernels=kernels))


def odd(**changes: Any) -> dict[str, Any]:
    """One of two kernels changed."""
    return {"planned": [], "used": [kernel(), kernel("clip", **changes)]}


PTX_CASES = [
    Case("fits the device", "held", targeted),
    Case("same architecture", "held", lambda: targeted(EXACT)),
    Case("forward compatible", "held", lambda: targeted(**odd(targets=["compute_80"]))),
    Case("fits the named target", "held", lambda: targeted(NAMED | EXACT, **OFFLINE)),
    Case("another architecture", "ptx_target_mismatch", lambda: targeted(EXACT, **odd(targets=["sm_80"]))),
    Case("newer architecture", "ptx_target_mismatch", lambda: targeted(**odd(targets=["sm_100"]))),
    Case("suffix of another", "ptx_target_mismatch", lambda: targeted(device="sm_100")),
    Case("one wrong of two under one key", "ptx_target_mismatch", lambda: targeted(used=[kernel(targets=["sm_120"]), kernel()])),
    Case("no target line", "ptx_target_missing", lambda: targeted(**odd(targets=[]))),
    Case("unreadable target", "ptx_target_missing", lambda: targeted(**odd(targets=["sm_ninety"]))),
    Case("no version line", "ptx_version_unsupported", lambda: targeted(**odd(versions=[]))),
    Case("unreadable version", "ptx_version_unsupported", lambda: targeted(**odd(versions=["new"]))),
    Case("older than its target", "ptx_version_unsupported", lambda: targeted(**odd(versions=["7.8"]))),
    Case("newer than the driver", "ptx_version_unsupported", lambda: targeted(**odd(versions=["9.1"]))),
    Case("driver unknown", "driver_version_unknown", lambda: targeted(driver_ptx_version=None)),
    Case("no kernel", "vacuous_no_kernels", lambda: targeted(planned=[], used=[])),
    Case("device unreadable", "device_unreadable", lambda: targeted(device=None, device_readable=False)),
    Case("device of no known form", "device_unreadable", lambda: targeted(device="hopper")),
    Case("no device", "needs_cuda", lambda: targeted(device=None)),
    Case("cross-compiled for a device's claim", "needs_cuda", lambda: targeted(**OFFLINE)),
    Case("compiled for another", "evidence_inconsistent", lambda: targeted(NAMED, **(OFFLINE | {"compiled_for": "sm_80"}))),
    Case("no inventory", "evidence_missing", lambda: verdict_of(PTX, RunEvidence("run", "kernels", {}))),
]  # fmt: skip

PREWARM: dict[str, Any] = {
    "kind": "prewarm",
    "candidate": "graphed",
    "scope": "device",
    "handles": ["cublas"],
    "memory_filled": True,
}
COVERAGE = {"scope": "coverage", "target": "sm_90", "handles": [], "memory_filled": False}


def compiled(key: str, *, seconds: float = 1.0, phase: str = "prewarm") -> JitEvent:
    return JitEvent(key=key, event="compile", phase=phase, seconds=seconds)


WARM = [compiled("gemm"), compiled("clip")]


def ledger(**changes: Any) -> PrewarmEvidence:
    """Both kernels compiled at one second, upload at two, training at three in full memory."""
    return PrewarmEvidence(
        **{
            "arm": "graphed",
            "events": WARM,
            "phases": {"prewarm": 0.0, "upload": 2.0, "train": 3.0},
            "handles": {"cublas": 0.5},
            "free_bytes_after_fill": 3 * 2**20,
            "steps_after_fill": 2,
            **changes,
        }
    )


def prewarmed(kernels: dict[str, Any] | None = None, claim: dict[str, Any] | None = None, **changes: Any) -> Verdict:
    """The verdict on an inventory and a JIT ledger with changes."""
    run = RunEvidence(
        "run",
        "prewarm",
        {},
        kernels={"graphed": inventory(**(kernels or {}))},
        prewarm={"graphed": ledger(**changes)},
    )
    return verdict_of(PREWARM | (claim or {}), run)


def covered(**kernels: Any) -> Verdict:
    """Keys and PTX alone, cross-compiled."""
    run = RunEvidence("run", "kernels", {}, kernels={"graphed": inventory(**(OFFLINE | kernels))})
    return verdict_of(PREWARM | COVERAGE, run)


PREWARM_CASES = [
    Case("all warm", "held", prewarmed),
    Case("all covered", "held", covered),
    Case("more planned than used", "held", lambda: covered(used=[kernel()])),
    Case("a key not planned", "prewarm_missing_key", lambda: covered(planned=[kernel()])),
    Case("a key planned and never compiled", "prewarm_missing_key", lambda: prewarmed(events=WARM[:1])),
    Case("other PTX", "prewarm_ptx_differs", lambda: covered(planned=[kernel(), kernel("clip", ptx_digest="other")])),
    Case("two kernels under one key", "duplicate_key", lambda: covered(planned=[kernel(), kernel(name="clip")])),
    Case("nothing planned", "vacuous_no_kernels", lambda: covered(planned=[])),
    Case("nothing used", "vacuous_no_kernels", lambda: covered(used=[])),
    Case("compiled in training", "late_jit", lambda: prewarmed(events=[*WARM, compiled("clip", phase="train", seconds=3.5)])),
    Case("compiled after the upload began", "late_jit", lambda: prewarmed(events=[*WARM, compiled("clip", seconds=2.0)])),
    Case("no handle", "handle_late", lambda: prewarmed(handles={})),
    Case("a late handle", "handle_late", lambda: prewarmed(handles={"cublas": 2.5})),
    Case("memory left", "vacuous_memory_not_filled", lambda: prewarmed(free_bytes_after_fill=32 * 2**20)),
    Case("memory unknown", "vacuous_memory_not_filled", lambda: prewarmed(free_bytes_after_fill=None)),
    Case("no step in full memory", "vacuous_steps", lambda: prewarmed(steps_after_fill=0)),
    Case("no phases", "evidence_missing", lambda: prewarmed(phases={"prewarm": 0.0})),
    Case("phases out of order", "evidence_missing", lambda: prewarmed(phases={"prewarm": 0.0, "upload": 2.0, "train": 1.0})),
    Case("no ledger", "evidence_missing", lambda: verdict_of(PREWARM, RunEvidence("run", "prewarm", {}, kernels={"graphed": inventory()}))),
    Case("no device", "needs_cuda", lambda: prewarmed({"device": None})),
]  # fmt: skip

MATCH: dict[str, Any] = {
    "kind": "kernel_match",
    "candidate": "graphed",
    "operations": ["gemm"],
    "max_relative_error": {"float32": 1e-4, "bfloat16": 1e-2},
    "magnitudes": [1.0, 1e5],
    "demands": {"shared_memory_bytes": 2048, "threads": 256, "tile": 16, "unroll": 4},
}
GRID = [("float32", 1.0), ("float32", 1e5), ("bfloat16", 1.0), ("bfloat16", 1e5)]


def compared(dtype: str = "float32", magnitude: float = 1.0, **changes: Any) -> KernelCase:
    """A case that agrees."""
    return KernelCase(
        **{
            "operation": "gemm",
            "dtype": dtype,
            "shape": "16x16",
            "magnitude": magnitude,
            "error_vs_naive": 1e-6,
            "error_vs_fp64": 1e-6,
            "naive_error_vs_fp64": 1e-6,
            "finite": True,
            "unwritten": 0,
            "repeat_equal": True,
            **changes,
        }
    )


def agreed(claim: dict[str, Any] | None = None, last: dict[str, Any] | None = None, **changes: Any) -> Verdict:
    """The verdict on the whole grid, with the last case changed."""
    cases = [compared(*point) for point in GRID[:-1]] + [compared(*GRID[-1], **(last or {}))]
    evidence = {
        "arm": "graphed",
        "cases": cases,
        "compiled": [kernel()],
        "constants": {"tile": 16, "unroll": 4},
    } | changes
    run = RunEvidence("run", "kernel_match", {}, kernel_match={"graphed": KernelMatchEvidence(**evidence)})
    return verdict_of(MATCH | (claim or {}), run)


def demanding(**demands: int) -> dict[str, Any]:
    return {"demands": demands}


MATCH_CASES = [
    Case("agrees", "held", agreed),
    Case("within its data type's bound", "held", lambda: agreed(last={"error_vs_fp64": 5e-3})),
    Case("errs against fp64", "exceeds_tolerance", lambda: agreed(last={"error_vs_fp64": 5e-2})),
    Case("errs against naive", "exceeds_tolerance", lambda: agreed(last={"error_vs_naive": 5e-2})),
    Case("not finite", "non_finite", lambda: agreed(last={"finite": False})),
    Case("NaN error", "non_finite", lambda: agreed(last={"error_vs_fp64": math.nan})),
    Case("unwritten", "unwritten_elements", lambda: agreed(last={"unwritten": 3})),
    Case("not repeatable", "not_repeatable", lambda: agreed(last={"repeat_equal": False})),
    Case("other shared memory", "demand_unmet", lambda: agreed(compiled=[kernel(), kernel(shared_memory_bytes=4096)])),
    Case("other tile", "demand_unmet", lambda: agreed(constants={"tile": 32, "unroll": 4})),
    Case("indivisible tile", "demand_unmet", lambda: agreed(demanding(unroll=5), constants={"tile": 16, "unroll": 5})),
    Case("constant unknown", "evidence_missing", lambda: agreed(constants={"tile": 16})),
    Case("metadata unknown", "evidence_missing", lambda: agreed(compiled=[kernel(threads=None)])),
    Case("nothing compiled", "vacuous_no_kernels", lambda: agreed(compiled=[])),
    Case("a magnitude untried", "missing_cases", lambda: agreed(cases=[compared(*point) for point in GRID[:3]])),
    Case("another operation", "vacuous_nothing_compared", lambda: agreed({"operations": ["clip"]})),
    Case("not compared", "evidence_missing", lambda: verdict_of(MATCH, RunEvidence("run", "kernel_match", {}))),
]  # fmt: skip
