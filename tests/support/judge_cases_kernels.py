"""Cases of ptx_target and prewarm: evidence that passes, with one thing changed."""

from __future__ import annotations

import math
from typing import Any

from evidence_builders import verdict_of
from judge_cases import Case

from harness.evidence.run_evidence import RunEvidence
from harness.evidence.run_records import JitEvent, KernelRecord, KernelsEvidence, PrewarmEvidence
from harness.judging.verdict import Verdict


def kernel(key: str = "gemm", **changes: Any) -> KernelRecord:
    """Return a kernel for Hopper."""
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
    """Return two planned and used kernels on a Hopper device with a driver for CUDA 13.0."""
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
    """Return the verdict on an inventory with changes."""
    kernels = {"graphed": inventory(**changes)}
    return verdict_of(PTX | (claim or {}), RunEvidence("run", "kernels", {}, kernels=kernels))


def odd(**changes: Any) -> dict[str, Any]:
    """Return two kernels, one of them changed."""
    return {"planned": [], "used": [kernel(), kernel("clip", **changes)]}


PTX_CASES = [
    Case("fits the device", "held", targeted),
    Case("same architecture", "held", lambda: targeted(EXACT)),
    Case("forward compatible", "held", lambda: targeted(**odd(targets=["compute_80"]))),
    Case("fits the named target", "held", lambda: targeted(NAMED | EXACT, **OFFLINE)),
    Case("another architecture", "ptx_target_mismatch", lambda: targeted(EXACT, **odd(targets=["sm_80"]))),
    Case("newer architecture", "ptx_target_mismatch", lambda: targeted(**odd(targets=["sm_100"]))),
    Case("suffix of another", "ptx_target_mismatch", lambda: targeted(device="sm_100")),
    Case(
        "one wrong of two under one key",
        "ptx_target_mismatch",
        lambda: targeted(used=[kernel(targets=["sm_120"]), kernel()]),
    ),
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
    Case("cross-compiled next to a device", "needs_cuda", lambda: targeted(compiled_for="sm_90")),
    Case(
        "compiled for another",
        "evidence_inconsistent",
        lambda: targeted(NAMED, **(OFFLINE | {"compiled_for": "sm_80"})),
    ),
    Case("no inventory", "evidence_missing", lambda: verdict_of(PTX, RunEvidence("run", "kernels", {}))),
]

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
    """Return a ledger: both kernels compiled at 1 s, upload at 2 s, training with full memory at 3 s."""
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
    """Return the verdict on an inventory and a ledger of compilations, with changes."""
    run = RunEvidence(
        "run",
        "prewarm",
        {},
        kernels={"graphed": inventory(**(kernels or {}))},
        prewarm={"graphed": ledger(**changes)},
    )
    return verdict_of(PREWARM | (claim or {}), run)


def covered(**kernels: Any) -> Verdict:
    """Return the verdict on keys and PTX alone, cross-compiled."""
    run = RunEvidence("run", "kernels", {}, kernels={"graphed": inventory(**(OFFLINE | kernels))})
    return verdict_of(PREWARM | COVERAGE, run)


def covered_among_targets(target: str) -> Verdict:
    """Return the verdict on a plan alone, with runs for two targets, sm_80 first: a part uses its own target's run."""
    runs = [
        RunEvidence(name, "kernels", {}, kernels={"graphed": inventory(**(OFFLINE | changes))})
        for name, changes in (("first", {"compiled_for": "sm_80"}), ("plan alone", {"used": []}), ("second", {}))
    ]
    return verdict_of(PREWARM | COVERAGE | {"target": target}, *runs)


PREWARM_CASES = [
    Case("all warm", "held", prewarmed),
    Case("all covered", "held", covered),
    Case("more planned than used", "held", lambda: covered(used=[kernel()])),
    Case("a key not planned", "prewarm_missing_key", lambda: covered(planned=[kernel()])),
    Case("a key planned and never compiled", "prewarm_missing_key", lambda: prewarmed(events=WARM[:1])),
    Case("other PTX", "prewarm_ptx_differs", lambda: covered(planned=[kernel(), kernel("clip", ptx_digest="other")])),
    Case("two kernels under one key", "duplicate_key", lambda: covered(planned=[kernel(), kernel(name="clip")])),
    Case("its own target among several", "held", lambda: covered_among_targets("sm_90")),
    Case("another target among several", "evidence_inconsistent", lambda: covered_among_targets("sm_120")),
    Case("nothing planned", "vacuous_no_kernels", lambda: covered(planned=[])),
    Case("nothing used", "vacuous_no_kernels", lambda: covered(used=[])),
    Case(
        "compiled in training",
        "late_jit",
        lambda: prewarmed(events=[*WARM, compiled("clip", phase="train", seconds=3.5)]),
    ),
    Case(
        "compiled after the upload began", "late_jit", lambda: prewarmed(events=[*WARM, compiled("clip", seconds=2.0)])
    ),
    Case(
        "an event at no time",
        "evidence_inconsistent",
        lambda: prewarmed(events=[*WARM, compiled("clip", seconds=math.nan)]),
    ),
    Case(
        "an event at no time before its like",
        "evidence_inconsistent",
        lambda: prewarmed(events=[compiled("clip", seconds=math.nan), *WARM, compiled("clip", seconds=0.5)]),
    ),
    Case("a handle at no time", "evidence_inconsistent", lambda: prewarmed(handles={"cublas": math.nan})),
    Case(
        "phases at no time",
        "evidence_inconsistent",
        lambda: prewarmed(phases={"prewarm": math.nan, "upload": math.inf, "train": math.nan}),
    ),
    Case("no handle", "handle_late", lambda: prewarmed(handles={})),
    Case("a late handle", "handle_late", lambda: prewarmed(handles={"cublas": 2.5})),
    Case("memory left", "device_memory_unseen", lambda: prewarmed(free_bytes_after_fill=32 * 2**20)),
    Case("memory unknown", "device_memory_unseen", lambda: prewarmed(free_bytes_after_fill=None)),
    Case("no step in full memory", "vacuous_steps", lambda: prewarmed(steps_after_fill=0)),
    Case(
        "a step failed in full memory",
        "step_failed_when_full",
        lambda: prewarmed(steps_after_fill=1, failure="OutOfMemoryError"),
    ),
    Case("a step failed for a late handle", "handle_late", lambda: prewarmed(handles={}, failure="OutOfMemoryError")),
    Case("no phases", "evidence_missing", lambda: prewarmed(phases={"prewarm": 0.0})),
    Case(
        "phases out of order",
        "evidence_missing",
        lambda: prewarmed(phases={"prewarm": 0.0, "upload": 2.0, "train": 1.0}),
    ),
    Case(
        "no ledger",
        "evidence_missing",
        lambda: verdict_of(PREWARM, RunEvidence("run", "prewarm", {}, kernels={"graphed": inventory()})),
    ),
    Case("no device", "needs_cuda", lambda: prewarmed({"device": None})),
]
