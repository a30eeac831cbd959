"""`kernel_match`: kernels agree with their naive twins and an fp64 reference over a grid of shapes and magnitudes.

Errors are relative to the reference's largest absolute value; the bound of the case's data type holds for both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product

from harness.contract.kinds.kernels import KernelDemands, KernelMatch
from harness.evidence.run_records import KernelCase, KernelMatchEvidence, KernelRecord
from harness.judge import reasons
from harness.judge.context import Context
from harness.judge.sheet import Sheet, number, settle, some
from harness.judge.verdict import Judgement


def judge(part: KernelMatch, context: Context, sheet: Sheet) -> Judgement:
    """Order: each case's outputs, then the compiled kernels' demands, then whether the grid was complete."""
    run = context.only_run("kernel_match")
    evidence = run.kernel_match.get(part.candidate)
    if evidence is None:
        settle(reasons.EVIDENCE_MISSING, f"there are no kernel comparisons of arm {part.candidate}")
    bounds: Mapping[str, float] = {str(dtype): bound for dtype, bound in part.max_relative_error.items()}
    cases = [
        case
        for case in evidence.cases
        if case.operation in part.operations and case.dtype in bounds and case.magnitude in part.magnitudes
    ]
    if part.shapes is not None:
        cases = [case for case in cases if case.shape in part.shapes]
    sheet.count("cases", len(cases))
    sheet.count("operations", len({case.operation for case in cases}))
    for case in cases:
        _require_whole(case, sheet)
    _require_agreement(cases, bounds, sheet)
    for case in cases:
        if not case.repeat_equal:
            settle(reasons.NOT_REPEATABLE, f"{_name(case)} gave other bits on the same input")
    _require_demands(part.demands, evidence, sheet)
    _require_grid(part, cases)
    return sheet.held(_sentence(part, cases, evidence))


def _sentence(part: KernelMatch, cases: list[KernelCase], evidence: KernelMatchEvidence) -> str:
    """Everything that was judged, since claims of this kind differ in their fields alone."""
    where = f"at {len(part.shapes)} given shapes and " if part.shapes is not None else "at "
    demands = [f"{name.replace('_', ' ')} {value}" for name, value in part.demands if value is not None]
    compiled = f"; the {len(evidence.compiled)} compiled kernels have {', '.join(demands)}" if demands else ""
    return (
        f"{len(cases)} cases of {len(part.operations)} operations {where}magnitude "
        f"{', '.join(map(number, part.magnitudes))} are finite, wholly written, equal in bits when repeated, and "
        f"agree with the naive twin and the fp64 reference{compiled}"
    )


def _name(case: KernelCase) -> str:
    return f"{case.operation} {case.dtype} {case.shape} at magnitude {number(case.magnitude)}"


def _require_whole(case: KernelCase, sheet: Sheet) -> None:
    errors = (case.error_vs_naive, case.error_vs_fp64)
    if not case.finite or not all(math.isfinite(error) for error in errors):
        sheet.figure("first_non_finite_case", _name(case))
        settle(reasons.NON_FINITE, f"{_name(case)} gave a value that is not finite")
    if case.unwritten > 0:
        settle(reasons.UNWRITTEN_ELEMENTS, f"{_name(case)} left {case.unwritten} elements unwritten")


def _require_agreement(cases: list[KernelCase], bounds: Mapping[str, float], sheet: Sheet) -> None:
    for dtype in sorted({case.dtype for case in cases}):
        here = [case for case in cases if case.dtype == dtype]
        sheet.figure(f"max_error_vs_fp64.{dtype}", max(case.error_vs_fp64 for case in here))
        sheet.figure(f"max_error_vs_naive.{dtype}", max(case.error_vs_naive for case in here))
        sheet.figure(f"max_naive_error_vs_fp64.{dtype}", max(case.naive_error_vs_fp64 for case in here))
        worst = max(here, key=_error)
        if _error(worst) > bounds[dtype]:
            beyond = sum(_error(case) > bounds[dtype] for case in here)
            settle(
                reasons.EXCEEDS_TOLERANCE,
                f"{beyond} of {len(here)} {dtype} cases err by more than {number(bounds[dtype])}, most of all "
                f"{_name(worst)}: {number(worst.error_vs_fp64)} against fp64, {number(worst.error_vs_naive)} against "
                "its naive twin",
            )


def _error(case: KernelCase) -> float:
    return max(case.error_vs_fp64, case.error_vs_naive)


def _require_demands(demands: KernelDemands, evidence: KernelMatchEvidence, sheet: Sheet) -> None:
    sheet.figure("compiled_kernels", len(evidence.compiled), "kernels")
    # constants first: what was compiled follows from them, and the cause says more than what it led to
    for constant in ("tile", "unroll"):
        demanded = getattr(demands, constant)
        if demanded is not None:
            _require_constant(constant, demanded, evidence.constants, sheet)
    if demands.unroll:
        tile = _constant("tile", evidence.constants)
        if tile % demands.unroll:
            sheet.figure("unmet_demand", "unroll")
            settle(reasons.DEMAND_UNMET, f"the tile {tile} is not divisible by the unrolling {demands.unroll}")
    for field in ("shared_memory_bytes", "threads"):
        demanded = getattr(demands, field)
        if demanded is not None:
            _require_metadata(field, demanded, evidence.compiled, sheet)


def _require_metadata(field: str, demanded: int, compiled: list[KernelRecord], sheet: Sheet) -> None:
    words = field.replace("_", " ")
    if not compiled:
        settle(reasons.VACUOUS_NO_KERNELS, f"no compiled kernel shows its {words}")
    for kernel in compiled:
        value = getattr(kernel, field)
        if value is None:
            settle(reasons.EVIDENCE_MISSING, f"the compiled kernel {kernel.name} does not state its {words}")
        if value != demanded:
            sheet.figure("unmet_demand", field)
            settle(reasons.DEMAND_UNMET, f"{kernel.name} ({kernel.key}) has {words} {value}, {demanded} is demanded")


def _require_constant(constant: str, demanded: int, constants: dict[str, int], sheet: Sheet) -> None:
    value = _constant(constant, constants)
    if value != demanded:
        sheet.figure("unmet_demand", constant)
        settle(reasons.DEMAND_UNMET, f"the source's `{constant}` is {value}, {demanded} is demanded")


def _constant(constant: str, constants: dict[str, int]) -> int:
    value = constants.get(constant)
    if value is None:
        settle(reasons.EVIDENCE_MISSING, f"the source states no constant `{constant}`")
    return value


def _require_grid(part: KernelMatch, cases: list[KernelCase]) -> None:
    if not cases:
        settle(reasons.VACUOUS_NOTHING_COMPARED, "no case of the demanded operations and data types was tried")
    missing = []
    for operation, dtype in product(part.operations, part.max_relative_error):
        here = [case for case in cases if (case.operation, case.dtype) == (operation, dtype)]
        shapes, seen = {case.shape for case in here}, {(case.shape, case.magnitude) for case in here}
        shapes |= set(part.shapes or ())
        missing += [
            f"{operation} {dtype} {shape} at {number(magnitude)}"
            for shape, magnitude in product(sorted(shapes) or ["in any shape"], part.magnitudes)
            if (shape, magnitude) not in seen
        ]
    if missing:
        settle(reasons.MISSING_CASES, f"{len(missing)} points of the grid were not tried: {some(missing)}")
