"""Kernels: when each was compiled and loaded, which PTX target it has, how far it is from its reference."""

from __future__ import annotations

import math
from collections import Counter

from harness.evidence.model import KernelMatchEvidence, KernelRecord, KernelsEvidence, PrewarmEvidence
from harness.report import plots_machine
from harness.report.blocks import Part, Section, table
from harness.report.text import size
from harness.report.view import RunView


def sections(view: RunView) -> list[Section]:
    """JIT timeline, PTX targets and kernel errors, each left out when nothing of it was seen."""
    prewarms: list[Part] = []
    targets: list[Part] = []
    matches: list[Part] = []
    for run_id, run in view.evidence.items():
        title = view.title_of(run_id)
        prewarms.extend(_prewarm(run_id, f"{title} · {arm}", seen) for arm, seen in run.prewarm.items())
        targets.extend(_targets(run_id, f"{title} · {arm}", seen) for arm, seen in run.kernels.items())
        matches.extend(_match(run_id, f"{title} · {arm}", seen) for arm, seen in run.kernel_match.items())
    found = [
        Section(
            "jit", "JIT timeline", "When kernels were compiled and loaded, against the phases of the run.", prewarms
        ),
        Section("ptx", "PTX targets", "The architecture each kernel was compiled for, kernel by kernel.", targets),
        Section("accuracy", "Kernel accuracy", "Each kernel against its naive twin and an fp64 reference.", matches),
    ]
    return [section for section in found if section.parts]


def _prewarm(run_id: str, title: str, seen: PrewarmEvidence) -> Part:
    part = Part(title, runs=[run_id])
    part.plots.append(plots_machine.timeline(seen.events, seen.phases, seen.handles))
    counts: Counter[tuple[str, str]] = Counter((event.phase, event.event) for event in seen.events)
    order = dict(seen.phases)
    phases = sorted({*order, *(phase for phase, _ in counts)}, key=lambda phase: float(order.get(phase, math.inf)))
    kinds = ("compile", "disk_hit", "load")
    rows = [[phase, order.get(phase), *(counts[phase, kind] for kind in kinds)] for phase in phases]
    part.tables.append(table("Events by phase", ["phase", "began, s", "compiles", "disk-cache hits", "loads"], rows))
    late = [
        [event.key, event.event.replace("_", " "), event.phase, float(event.seconds)]
        for event in seen.events
        if event.phase != "prewarm"
    ]
    if late:
        part.tables.append(table("Events after prewarm", ["kernel", "event", "phase", "at, s"], late, shown=40))
    if seen.handles:
        handles = [[name, float(at)] for name, at in sorted(seen.handles.items(), key=lambda item: item[1])]
        part.tables.append(table("Library handles", ["handle", "came to be, s"], handles))
    if seen.free_bytes_after_fill is not None:
        free = size(seen.free_bytes_after_fill)
        part.text.append(f"Device memory was filled but for {free}; {seen.steps_after_fill} steps ran after that.")
    return part


def _targets(run_id: str, title: str, seen: KernelsEvidence) -> Part:
    part = Part(title, runs=[run_id])
    compiled = f"Compiled for {seen.compiled_for}, without a device." if seen.compiled_for else None
    device = (
        f"Device: {seen.device}."
        if seen.device
        else "No device."
        if seen.device_readable
        else "The device could not be read."
    )
    driver = f"The driver knows PTX up to {seen.driver_ptx_version}." if seen.driver_ptx_version else None
    part.text.extend(text for text in (compiled or device, driver) if text)
    by_target = Counter(" ".join(kernel.targets) or "no .target line" for kernel in [*seen.used, *seen.planned])
    part.tables.append(table("Kernels by target", ["target", "kernels"], by_target.most_common()))
    used, planned = {kernel.key for kernel in seen.used}, {kernel.key for kernel in seen.planned}
    kernels = {kernel.key: kernel for kernel in [*seen.planned, *seen.used]}
    # One without a target is what the reader looks for.
    ordered = sorted(kernels.values(), key=lambda kernel: (bool(kernel.targets), kernel.key))
    rows = [_kernel(kernel, used, planned) for kernel in ordered]
    columns = ["kernel", "key", "target", "PTX version", "used in", "digest", "loaded by"]
    part.tables.append(table(f"{len(kernels)} kernels by key", columns, rows, folded=len(rows) > 8, shown=80))
    return part


def _kernel(kernel: KernelRecord, used: set[str], planned: set[str]) -> list[object]:
    where = " and ".join(name for name, keys in (("plan", planned), ("run", used)) if kernel.key in keys)
    targets, versions = " ".join(kernel.targets) or "none", " ".join(kernel.versions) or "none"
    return [kernel.name, kernel.key, targets, versions, where, kernel.ptx_digest[:12], kernel.load_route or "–"]


def _match(run_id: str, title: str, seen: KernelMatchEvidence) -> Part:
    groups: dict[tuple[str, str], list[tuple[float, float, float, bool]]] = {}
    for case in seen.cases:
        sound = case.finite and case.unwritten == 0 and case.repeat_equal
        errors = (float(case.error_vs_naive), float(case.error_vs_fp64), float(case.naive_error_vs_fp64), sound)
        groups.setdefault((case.operation, case.dtype), []).append(errors)
    rows = [
        [*key, len(cases), *(_worst(cases, column) for column in range(3)), sum(1 for case in cases if not case[3])]
        for key, cases in groups.items()
    ]
    columns = [
        "operation",
        "dtype",
        "cases",
        "worst against naive",
        "worst against fp64",
        "naive against fp64",
        "unsound cases",
    ]
    text = "Errors are relative to the largest value of the reference. "
    text += "Unsound: not finite, not wholly written, or not repeatable."
    part = Part(title, [text], runs=[run_id])
    part.tables.append(table("Errors by operation and type", columns, rows))
    if seen.compiled:
        compiled = [
            [item.name, item.key, item.shared_memory_bytes, item.threads, " ".join(item.targets)]
            for item in seen.compiled
        ]
        part.tables.append(
            table("Compiled kernels", ["kernel", "key", "shared memory, B", "threads", "target"], compiled, folded=True)
        )
    if seen.constants:
        part.tables.append(table("Constants of the source", ["constant", "value"], sorted(seen.constants.items())))
    return part


def _worst(cases: list[tuple[float, float, float, bool]], column: int) -> float:
    """The largest error; one that is not a number is worse than any."""
    values = [float(case[column]) for case in cases]
    return math.nan if any(map(math.isnan, values)) else max(values)
