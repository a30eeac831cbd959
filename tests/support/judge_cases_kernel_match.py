"""Cases of kernel_match: evidence that passes, with one thing changed."""

from __future__ import annotations

import math
from typing import Any

from evidence_builders import verdict_of
from judge_cases import Case
from judge_cases_kernels import kernel

from harness.evidence.run_evidence import RunEvidence
from harness.evidence.run_records import KernelCase, KernelMatchEvidence
from harness.judge.verdict import Verdict

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
    Case("a tile unknown", "evidence_missing", lambda: agreed(demanding(unroll=4), constants={"unroll": 4})),
    Case("metadata unknown", "evidence_missing", lambda: agreed(compiled=[kernel(threads=None)])),
    Case("nothing compiled", "vacuous_no_kernels", lambda: agreed(compiled=[])),
    Case("another's magnitude", "held", lambda: agreed({"magnitudes": [1.0]}, last={"error_vs_fp64": 5e-2})),
    Case("some shapes", "held", lambda: agreed(demanding() | {"shapes": ["16x16"]})),
    Case("a given shape untried", "missing_cases", lambda: agreed({"shapes": ["16x16", "5x3"]})),
    Case(
        "another shape errs",
        "held",
        lambda: agreed(
            demanding() | {"shapes": ["16x16"]},
            cases=[*(compared(*point) for point in GRID), compared(shape="5x3", error_vs_fp64=1.0)],
        ),
    ),
    Case("a magnitude untried", "missing_cases", lambda: agreed(cases=[compared(*point) for point in GRID[:3]])),
    Case("an operation untried", "missing_cases", lambda: agreed({"operations": ["gemm", "clip"]})),
    Case(
        "a shape at one magnitude alone",
        "missing_cases",
        lambda: agreed(cases=[compared(*point) for point in GRID] + [compared(*GRID[0], shape="other")]),
    ),
    Case("another operation", "vacuous_nothing_compared", lambda: agreed({"operations": ["clip"]})),
    Case("not compared", "evidence_missing", lambda: verdict_of(MATCH, RunEvidence("run", "kernel_match", {}))),
]
