"""Cases of kernel_match: evidence that passes, with one thing changed."""

from __future__ import annotations

import math
from typing import Any

from evidence_builders import verdict_of
from judge_cases import Case
from judge_cases_kernels import kernel

from harness.evidence.run_evidence import RunEvidence
from harness.evidence.run_records import KernelCase, KernelErrors, KernelMatchEvidence, KernelPeer, PeerErrors
from harness.judging.verdict import Verdict

MATCH: dict[str, Any] = {
    "kind": "kernel_match",
    "candidate": "graphed",
    "operations": ["gemm"],
    "max_relative_error": {"float32": 1e-4, "bfloat16": 1e-2},
    "magnitudes": [1.0, 1e5],
    "demands": {"shared_memory_bytes": 2048, "threads": 256, "tile": 16, "unroll": 4},
}
GRID = [("float32", 1.0), ("float32", 1e5), ("bfloat16", 1.0), ("bfloat16", 1e5)]


def errors(**changes: float) -> KernelErrors:
    return KernelErrors(**{"vs_naive": 1e-6, "vs_fp64": 1e-6, "naive_vs_fp64": 1e-6, **changes})


def peer(dtype: str, own: float = 1e-6, theirs: float = 1e-6) -> KernelPeer:
    beside = PeerErrors(vs_fp64=theirs, own_vs_fp64=own)
    return KernelPeer(name="another gemm", outputs=["product"], errors={dtype: beside})


def compared(dtype: str = "float32", magnitude: float = 1.0, **changes: Any) -> KernelCase:
    """Return a case in which kernel and references agree."""
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
            "overwritten": 0,
            "zero_references": 0,
            "outputs": {"product": dtype},
            "terms": {dtype: errors()},
            "peer": peer(dtype),
            **changes,
        }
    )


def agreed(claim: dict[str, Any] | None = None, last: dict[str, Any] | None = None, **changes: Any) -> Verdict:
    """Return the verdict on the whole grid, with the last case changed."""
    cases = [compared(*point) for point in GRID[:-1]] + [compared(*GRID[-1], **(last or {}))]
    evidence = {
        "arm": "graphed",
        "cases": cases,
        "compiled": [kernel()],
        "constants": {"tile": 16, "unroll": 4},
    } | changes
    run = RunEvidence("run", "kernel_match", {}, kernel_match={"graphed": KernelMatchEvidence(**evidence)})
    return verdict_of(MATCH | (claim or {}), run)


def in_terms(claim: dict[str, Any] | None = None, last: dict[str, Any] | None = None, **changes: Any) -> Verdict:
    """Return the verdict as `agreed` does, judged relative to terms and compared with a peer."""
    demands = {"relative_to": "terms", "over_peer_at_most": 3.0, "demands": {}}
    return agreed(demands | (claim or {}), last, **changes)


def mixed(**of_float32: float) -> dict[str, Any]:
    """Return a bfloat16 case with an additional output in float32."""
    types = {"product": "bfloat16", "sums": "float32"}
    return {"outputs": types, "terms": {"bfloat16": errors(), "float32": errors(**of_float32)}}


def errs_in(dtype: str) -> dict[str, Any]:
    """Return a bfloat16 case with outputs of two types, one of which has errors."""
    case = mixed()
    return {**case, "terms": {each: errors(vs_fp64=0.5 if each == dtype else 1e-6) for each in case["terms"]}}


def of_type(dtype: str, own: float, theirs: float) -> dict[str, Any]:
    """Return a bfloat16 case whose output, like the peer's, has another type."""
    return {"outputs": {"product": dtype}, "terms": {dtype: errors()}, "peer": peer(dtype, own, theirs)}


def beyond(dtype: str, factor: float) -> dict[str, Any]:
    """Return a claim on one type of inputs that allows `factor` times its peer's error."""
    return {"max_relative_error": {dtype: MATCH["max_relative_error"][dtype]}, "over_peer_at_most": factor}


def mixed_peer() -> dict[str, Any]:
    """Return a bfloat16 case whose output, like the peer's, is float32, for which the claim has no tolerance."""
    return of_type("float32", 1e-7, 1e-7)


def of_narrow_inputs() -> Verdict:
    """Return the verdict on float32 outputs of inputs in two types, whose tolerances apply; bfloat16's is wider."""
    points = [(dtype, magnitude) for dtype in ("bfloat16", "float16") for magnitude in (1.0, 1e5)]
    narrow = {"max_relative_error": {"bfloat16": 1e-2, "float16": 1e-5}, "over_peer_at_most": 1000.0}
    return in_terms(narrow, cases=[compared(*point, **of_type("float32", 1e-7, 1e-7)) for point in points])


def demanding(**demands: int) -> dict[str, Any]:
    return {"demands": demands}


def beside_peers(*changes: dict[str, float]) -> list[KernelCase]:
    """Return the grid with changed peers for its float32 cases, one after the other."""
    several = iter([*changes, *(changes[-1:] * 2)])
    return [compared(*point, peer=peer(point[0], **(next(several) if point[0] == "float32" else {}))) for point in GRID]


MATCH_CASES = [
    Case("agrees in terms, as compiled", "held", lambda: in_terms({"demands": MATCH["demands"]})),
    Case("agrees", "held", agreed),
    Case("within its data type's bound", "held", lambda: agreed(last={"error_vs_fp64": 5e-3})),
    Case("errs against fp64", "exceeds_tolerance", lambda: agreed(last={"error_vs_fp64": 5e-2})),
    Case("errs against naive", "exceeds_tolerance", lambda: agreed(last={"error_vs_naive": 5e-2})),
    Case("not finite", "non_finite", lambda: agreed(last={"finite": False})),
    Case(
        "a difference from a reference of zeros",
        "exceeds_tolerance",
        lambda: agreed(last={"error_vs_fp64": math.inf}),
    ),
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
    Case(
        "other type",
        "wrong_type",
        lambda: agreed(last={"mistyped": ["y is torch.float32 [3], not torch.bfloat16 [3]"], "finite": False}),
    ),
    Case("written beyond", "overwritten_memory", lambda: agreed(last={"overwritten": 2})),
    Case("a reference of zeros", "vacuous_reference", lambda: agreed(last={"zero_references": 1})),
    Case("agrees in terms", "held", in_terms),
    Case("large errors of small elements", "held", lambda: in_terms(last={"error_vs_fp64": 0.5})),
    Case(
        "errs in terms",
        "exceeds_tolerance",
        lambda: in_terms(last={"terms": {"bfloat16": errors(vs_fp64=2e-2)}}),
    ),
    Case(
        "errs in terms against naive",
        "exceeds_tolerance",
        lambda: in_terms(last={"terms": {"bfloat16": errors(vs_naive=2e-2)}}),
    ),
    Case("a float32 output of bfloat16 inputs", "held", lambda: in_terms(last=mixed(vs_fp64=9e-5))),
    Case(
        "an output without a bound of its own errs",
        "exceeds_tolerance",
        lambda: in_terms({"max_relative_error": {"bfloat16": 1e-2}}, errs_in("float32")),
    ),
    Case(
        "one next to an output without a bound of its own errs",
        "exceeds_tolerance",
        lambda: in_terms({"max_relative_error": {"bfloat16": 1e-2}}, errs_in("bfloat16")),
    ),
    Case("one errs by a bfloat16 rounding", "exceeds_tolerance", lambda: in_terms(last=mixed(vs_fp64=5e-3))),
    Case(
        "one of a type without a bound",
        "exceeds_tolerance",
        lambda: in_terms(
            last={
                "outputs": {"product": "float16"},
                "terms": {"float16": errors(vs_fp64=2e-2)},
                "peer": peer("float16"),
            }
        ),
    ),
    Case(
        "not finite in terms", "non_finite", lambda: in_terms(last={"terms": {"bfloat16": errors(vs_naive=math.nan)}})
    ),
    Case(
        "a difference where all terms are zero",
        "exceeds_tolerance",
        lambda: in_terms(last={"terms": {"bfloat16": errors(vs_fp64=math.inf)}}),
    ),
    Case(
        "an infinite error of outputs that are not finite",
        "non_finite",
        lambda: in_terms(last={"finite": False, "terms": {"bfloat16": errors(vs_fp64=math.inf)}}),
    ),
    Case("terms unknown", "evidence_missing", lambda: in_terms(last={"terms": None})),
    Case("guards unknown", "evidence_missing", lambda: in_terms(last={"overwritten": None})),
    Case("zeros unknown", "evidence_missing", lambda: in_terms(last={"zero_references": None})),
    Case("outputs unknown", "evidence_missing", lambda: in_terms(last={"outputs": None})),
    Case("errors of another type", "evidence_inconsistent", lambda: in_terms(last={"terms": {"float32": errors()}})),
    Case("a peer of another type", "evidence_inconsistent", lambda: in_terms(last={"peer": peer("float32")})),
    Case("as good as its peer", "held", lambda: in_terms(cases=beside_peers({"own": 3e-6}))),
    Case(
        "worse than its peer",
        "exceeds_peer",
        lambda: in_terms(cases=beside_peers({"own": 4e-6}, {"own": 2e-6})),
    ),
    Case(
        "a peer that errs less than a rounding",
        "held",
        lambda: in_terms(cases=beside_peers({"own": 1e-7, "theirs": 0.0})),
    ),
    Case(
        "a peer that is not finite where the kernel is",
        "exceeds_peer",
        lambda: in_terms(cases=beside_peers({"own": 5e-6, "theirs": 1e-6}, {"theirs": math.inf})),
    ),
    Case("a peer that is never finite", "peer_missing", lambda: in_terms(cases=beside_peers({"theirs": math.inf}))),
    Case("a peer of float64", "held", lambda: in_terms(last=of_type("float64", 2e-16, 1e-16))),
    Case("worse than a peer of float64", "exceeds_peer", lambda: in_terms(last=of_type("float64", 2e-12, 1e-16))),
    Case(
        "a peer of 8 bits that errs less than a rounding",
        "held",
        lambda: in_terms(last=of_type("float8_e4m3fn", 0.05, 0.0)),
    ),
    Case("a peer of whole numbers", "held", lambda: in_terms(last=of_type("int32", 0.0, 0.0))),
    Case("worse than a peer of whole numbers", "exceeds_peer", lambda: in_terms(last=of_type("int32", 1e-6, 0.0))),
    Case(
        "a peer of narrower inputs that errs more",
        "exceeds_peer",
        lambda: in_terms(
            cases=[
                *beside_peers({"own": 4e-6}),
                compared(
                    *GRID[-1],
                    outputs={"product": "float32"},
                    terms={"float32": errors()},
                    peer=peer("float32", theirs=1e-2),
                ),
            ]
        ),
    ),
    Case("a peer that allows more than the tolerance", "vacuous_peer", lambda: in_terms(beyond("bfloat16", 3.0))),
    Case("a peer that allows as much", "vacuous_peer", lambda: in_terms(beyond("bfloat16", 2.56))),
    Case("a peer that allows less", "held", lambda: in_terms(beyond("bfloat16", 2.5))),
    Case("a peer that bounds one type of two", "held", lambda: in_terms({"over_peer_at_most": 1000.0})),
    Case("a peer that bounds neither", "vacuous_peer", lambda: in_terms({"over_peer_at_most": 2000.0})),
    Case("a peer of a type without a tolerance", "held", lambda: in_terms(beyond("bfloat16", 3.0), last=mixed_peer())),
    Case("a peer that bounds outputs of one type of inputs", "held", of_narrow_inputs),
    Case("no peer", "peer_missing", lambda: in_terms(last={"peer": None})),
    Case("too few shapes", "missing_cases", lambda: agreed({"shapes_at_least": 2})),
    Case("as many shapes", "held", lambda: agreed({"shapes_at_least": 1})),
    Case("not compared", "evidence_missing", lambda: verdict_of(MATCH, RunEvidence("run", "kernel_match", {}))),
]
