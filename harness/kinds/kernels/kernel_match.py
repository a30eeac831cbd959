"""Judge `kernel_match`: kernels agree with their naive versions (naive twins) and with an fp64 reference.

A case is a combination of one operation, data type, shape and magnitude of the inputs. Errors are relative to the
reference's largest absolute value. With `relative_to: terms`, the error of an element is instead relative to the sum of
the absolute values of the terms that add up to the element. A kernel may have a peer, which is another project's kernel
for the same operation.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from itertools import groupby, product
from operator import itemgetter

from harness.evidence.run_records import KernelCase, KernelErrors, KernelMatchEvidence, KernelRecord, PeerErrors
from harness.judging import reasons
from harness.judging.context import Context
from harness.judging.sheet import Sheet, number, settle, some
from harness.judging.verdict import Judgement
from harness.kinds.kernels.model import KernelDemands, KernelMatch

# The unit roundoff of every floating-point type of torch, because an output may have a type for which the claim states
# no bound. Types that are not in this table contain whole numbers and do not round.
UNIT_ROUNDOFF = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8_e4m3fn": 2.0**-4,
    "float8_e4m3fnuz": 2.0**-4,
    "float8_e5m2": 2.0**-3,
    "float8_e5m2fnuz": 2.0**-3,
    "float8_e8m0fnu": 2.0**-1,
}


def judge(part: KernelMatch, context: Context, sheet: Sheet) -> Judgement:
    """Return the judgement of a claim. The checks, in order: the outputs of each case, agreement with references, the
    peer's errors, equal repetitions, the demands on compiled kernels, that the grid of cases is complete."""
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
        _require_whole(part, case, sheet)
    _require_agreement(part, cases, bounds, sheet)
    _require_as_good_as_peer(part, cases, bounds, sheet)
    for case in cases:
        if not case.repeat_equal:
            settle(reasons.NOT_REPEATABLE, f"{_name(case)} gave different bits when it was repeated on the same input")
    _require_demands(part.demands, evidence, sheet)
    _require_grid(part, cases)
    _require_shapes(part, cases)
    return sheet.held(_sentence(part, cases, evidence))


def _sentence(part: KernelMatch, cases: list[KernelCase], evidence: KernelMatchEvidence) -> str:
    """Return the message of the verdict PASS, which names everything that was checked."""
    where = f"at {len(part.shapes)} given shapes and " if part.shapes is not None else "at "
    demands = [f"{name.replace('_', ' ')} {value}" for name, value in part.demands if value is not None]
    compiled = f"; the {len(evidence.compiled)} compiled kernels have {', '.join(demands)}" if demands else ""
    beside = f", with at most {number(part.over_peer_at_most)} times the peer's error" if part.over_peer_at_most else ""
    return (
        f"{len(cases)} cases of {len(part.operations)} operations {where}magnitude "
        f"{', '.join(map(number, part.magnitudes))} are finite, wholly written, and equal in bits when repeated, "
        f"and they agree with the naive twin and the fp64 reference{beside}{compiled}"
    )


def _name(case: KernelCase) -> str:
    return f"{case.operation} {case.dtype} {case.shape} at magnitude {number(case.magnitude)}"


def _require_whole(part: KernelMatch, case: KernelCase, sheet: Sheet) -> None:
    errors = (case.error_vs_naive, case.error_vs_fp64)
    if case.mistyped:
        settle(reasons.WRONG_TYPE, f"{_name(case)}: {some(case.mistyped)}")
    if part.relative_to == "terms":
        _require_terms(case, sheet)
    if case.zero_references:
        settle(
            reasons.VACUOUS_REFERENCE, f"{_name(case)} has {case.zero_references} outputs whose whole reference is zero"
        )
    _require_finite(case, errors, sheet, where_infinite="the whole reference is zero")
    if case.unwritten > 0:
        settle(reasons.UNWRITTEN_ELEMENTS, f"{_name(case)} left {case.unwritten} elements of its outputs unwritten")
    if case.overwritten:
        settle(reasons.OVERWRITTEN_MEMORY, f"{_name(case)} changed {case.overwritten} elements outside its outputs")


def _require_finite(case: KernelCase, errors: Collection[float], sheet: Sheet, *, where_infinite: str) -> None:
    """End the judgement with FAIL if an output is not finite, or if a relative error is infinite. A relative error is
    infinite if the output differs from the reference and the divisor is zero. where_infinite: a clause for the message
    that names the divisor that is zero."""
    if not case.finite or not all(math.isfinite(error) or error == math.inf for error in errors):
        sheet.figure("first_non_finite_case", _name(case))
        settle(reasons.NON_FINITE, f"{_name(case)} returned a value that is not finite")
    if math.inf in errors:
        settle(reasons.EXCEEDS_TOLERANCE, f"{_name(case)} has an error where {where_infinite}")


def _require_terms(case: KernelCase, sheet: Sheet) -> None:
    """End the judgement with ERROR if the case lacks evidence that `relative_to: terms` needs. Three things are needed:
    the error of every output, also of the peer, relative to its terms; the number of elements that were changed outside
    the outputs; the number of references that are zero everywhere."""
    if case.terms is None or case.outputs is None or None in (case.overwritten, case.zero_references):
        settle(
            reasons.EVIDENCE_MISSING,
            f"{_name(case)} has no errors relative to the terms of its sums, or lacks the records that belong to these "
            "errors",
        )
    errors = [each for several in case.terms.values() for each in (several.vs_naive, several.vs_fp64)]
    beside = case.peer.errors.values() if case.peer is not None else ()
    errors += [each.own_vs_fp64 for each in beside]
    _require_finite(case, errors, sheet, where_infinite="all terms of an element are zero")
    if set(case.outputs.values()) != case.terms.keys():
        settle(reasons.EVIDENCE_INCONSISTENT, f"{_name(case)} has outputs whose data types are not those of its errors")
    if case.peer is not None:
        types = {case.outputs.get(name, "") for name in case.peer.outputs}
        if types != case.peer.errors.keys():
            settle(
                reasons.EVIDENCE_INCONSISTENT,
                f"{_name(case)} has a peer whose errors have other data types than its outputs",
            )


def _errors(part: KernelMatch, case: KernelCase) -> dict[str, KernelErrors]:
    """Return the kernel's errors by data type. With `relative_to: terms`, there is an entry for each data type of the
    outputs. Otherwise there is one entry, for the data type of the inputs."""
    if part.relative_to == "terms" and case.terms is not None:
        return case.terms
    return {
        case.dtype: KernelErrors(
            vs_naive=case.error_vs_naive, vs_fp64=case.error_vs_fp64, naive_vs_fp64=case.naive_error_vs_fp64
        )
    }


def _require_agreement(part: KernelMatch, cases: list[KernelCase], bounds: Mapping[str, float], sheet: Sheet) -> None:
    """End the judgement with FAIL if an output's error exceeds the bound of the output's data type. If that type has no
    bound, use the bound of the inputs' type."""
    found: dict[str, list[tuple[str, KernelErrors]]] = {}
    for case in cases:
        for dtype, errors in _errors(part, case).items():  # outputs of several data types may share one bound
            found.setdefault(dtype if dtype in bounds else case.dtype, []).append((_name(case), errors))
    for dtype, here in sorted(found.items()):
        worst_of = {field: max(getattr(each, field) for _, each in here) for field in KernelErrors.model_fields}
        sheet.figure(f"max_error_vs_fp64.{dtype}", worst_of["vs_fp64"])
        sheet.figure(f"max_error_vs_naive.{dtype}", worst_of["vs_naive"])
        sheet.figure(f"max_naive_error_vs_fp64.{dtype}", worst_of["naive_vs_fp64"])
        name, worst = max(here, key=lambda item: _larger(item[1]))
        if not all(
            sheet.meets(f"max_error_{field}.{dtype}", worst_of[field], "at most", bounds[dtype])
            for field in ("vs_fp64", "vs_naive")
        ):
            tried = {tried for tried, _ in here}
            beyond = {tried for tried, errors in here if not _larger(errors) <= bounds[dtype]}
            settle(
                reasons.EXCEEDS_TOLERANCE,
                f"{len(beyond)} of {len(tried)} {dtype} cases have an error of more than {number(bounds[dtype])}; the "
                f"largest is that of {name}: {number(worst.vs_fp64)} against fp64, {number(worst.vs_naive)} against "
                "its naive twin",
            )


def _larger(errors: KernelErrors) -> float:
    return max(errors.vs_fp64, errors.vs_naive)


def _require_as_good_as_peer(
    part: KernelMatch, cases: list[KernelCase], bounds: Mapping[str, float], sheet: Sheet
) -> None:
    """End the judgement with FAIL if the kernel's worst error is more than `over_peer_at_most` times the peer's worst
    error. The errors are compared for each combination of operation, type of inputs and type of outputs."""
    beside: dict[tuple[str, str, str], list[PeerErrors]] = {}
    for case in cases:
        if case.peer is None and part.over_peer_at_most is not None:
            sheet.leave_open(reasons.PEER_MISSING, f"{_name(case)} has no peer to compare with")
        for dtype, errors in case.peer.errors.items() if case.peer is not None else ():
            beside.setdefault((case.operation, case.dtype, dtype), []).append(errors)
    for dtype in sorted({dtype for *_, dtype in beside}):
        theirs = [errors.vs_fp64 for (*_, other), several in beside.items() if other == dtype for errors in several]
        sheet.figure(f"max_peer_error_vs_fp64.{dtype}", max(theirs))
    if part.over_peer_at_most is None:
        return
    for (operation, inputs, dtype), several in sorted(beside.items()):
        ratio = _over_peer(operation, dtype, several)
        figure = f"over_peer.{operation}.{inputs}" + f".{dtype}" * (dtype != inputs)
        sheet.figure(figure, ratio)
        if not sheet.meets(figure, ratio, "at most", part.over_peer_at_most):
            settle(
                reasons.EXCEEDS_PEER,
                f"the error of {operation} {dtype} is {number(ratio)} times its peer's worst error, but "
                f"{number(part.over_peer_at_most)} times is allowed",
            )
    if part.relative_to == "terms":
        _require_peers_that_bound(part.over_peer_at_most, beside, bounds)


def _require_peers_that_bound(
    factor: float, beside: Collection[tuple[str, str, str]], bounds: Mapping[str, float]
) -> None:
    """End the judgement with FAIL if the comparison with the peer can never fail. The comparison can never fail if, for
    all outputs of an operation, `factor` times the unit roundoff of the output's type is at least the tolerance."""
    for operation, several in groupby(sorted(beside), key=itemgetter(0)):
        allowed = [(bounds[dtype if dtype in bounds else inputs], dtype) for _, inputs, dtype in several]
        if all(factor * UNIT_ROUNDOFF.get(dtype, 0.0) >= bound for bound, dtype in allowed):
            bound, dtype = max(allowed)
            settle(
                reasons.VACUOUS_PEER,
                f"the error of {operation} cannot reach {number(factor)} times its peer's error within the tolerance: "
                f"{number(factor)} unit roundoffs of {dtype} are {number(factor * UNIT_ROUNDOFF[dtype])}, but the "
                f"tolerance is {number(bound)}",
            )


def _over_peer(operation: str, dtype: str, several: list[PeerErrors]) -> float:
    """Return the kernel's largest error divided by max(peer's largest error, unit roundoff of the type). For a type
    that does not round, return infinity if the kernel has an error and the peer has no error.

    Cases in which the peer's result is not finite are left out.
    """
    sound = [errors for errors in several if math.isfinite(errors.vs_fp64)]
    if not sound:
        settle(reasons.PEER_MISSING, f"the peer of {operation} {dtype} returned no finite result")
    ours = max(errors.own_vs_fp64 for errors in sound)
    theirs = max(UNIT_ROUNDOFF.get(dtype, 0.0), *(errors.vs_fp64 for errors in sound))
    return ours / theirs if theirs else (math.inf if ours else 0.0)


def _require_demands(demands: KernelDemands, evidence: KernelMatchEvidence, sheet: Sheet) -> None:
    sheet.figure("compiled_kernels", len(evidence.compiled), "kernels")
    # Check the constants of the source code first, because the properties of the compiled kernels follow from them.
    for constant in ("tile", "unroll"):
        demanded = getattr(demands, constant)
        if demanded is not None:
            value = _constant(constant, evidence.constants)
            if value != demanded:
                sheet.figure("unmet_demand", constant)
                settle(reasons.DEMAND_UNMET, f"the source's `{constant}` is {value}, but {demanded} is required")
    if demands.unroll:
        tile = _constant("tile", evidence.constants)
        if tile % demands.unroll:
            sheet.figure("unmet_demand", "unroll")
            settle(
                reasons.DEMAND_UNMET,
                f"the tile's edge of {tile} elements is not divisible by the unrolling factor {demands.unroll}",
            )
    for field in ("shared_memory_bytes", "threads"):
        demanded = getattr(demands, field)
        if demanded is not None:
            _require_metadata(field, demanded, evidence.compiled, sheet)


def _require_metadata(field: str, demanded: int, compiled: list[KernelRecord], sheet: Sheet) -> None:
    words = field.replace("_", " ")
    if not compiled:
        settle(reasons.VACUOUS_NO_KERNELS, f"there is no compiled kernel whose {words} could be read")
    for kernel in compiled:
        value = getattr(kernel, field)
        if value is None:
            settle(reasons.EVIDENCE_MISSING, f"the compiled kernel {kernel.name} does not state its {words}")
        if value != demanded:
            sheet.figure("unmet_demand", field)
            settle(
                reasons.DEMAND_UNMET, f"{kernel.name} ({kernel.key}) has {words} {value}, but {demanded} is required"
            )


def _constant(constant: str, constants: dict[str, int]) -> int:
    value = constants.get(constant)
    if value is None:
        settle(reasons.EVIDENCE_MISSING, f"the recorded source has no constant `{constant}`")
    return value


def _require_grid(part: KernelMatch, cases: list[KernelCase]) -> None:
    if not cases:
        settle(reasons.VACUOUS_NOTHING_COMPARED, "no case of the required operations and data types was run")
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
        settle(
            reasons.MISSING_CASES,
            f"{len(missing)} points of the grid were not run (operation, data type, shape, magnitude): {some(missing)}",
        )


def _require_shapes(part: KernelMatch, cases: list[KernelCase]) -> None:
    for operation, dtype in product(part.operations, part.max_relative_error):
        shapes = {case.shape for case in cases if (case.operation, case.dtype) == (operation, dtype)}
        if len(shapes) < (part.shapes_at_least or 0):
            settle(
                reasons.MISSING_CASES,
                f"{operation} {dtype} was run at {len(shapes)} shapes, but {part.shapes_at_least} are required",
            )
