"""Show when each kernel was compiled and loaded, its PTX target, and its errors against references."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator

from harness.evidence.run_records import (
    KernelCase,
    KernelErrors,
    KernelMatchEvidence,
    KernelsEvidence,
    PeerErrors,
    PrewarmEvidence,
)
from harness.numbers import counted
from harness.report.blocks import JudgedPlot, Part, Section, Table, Unit, table
from harness.report.charts import plots
from harness.report.text import size
from harness.report.view import ReportView


def sections(view: ReportView) -> list[Section]:
    """Return sections about compile times, PTX targets and kernel errors. A section without evidence is left out."""
    prewarms: list[Part] = []
    matches: list[Part] = []
    for run_id, run in view.evidence.items():
        title = view.title_of(run_id)
        for arm, seen in run.prewarm.items():
            units = view.units_judged_by(run_id, "jit", arm)
            prewarms.append(_prewarm(run_id, f"{title} · {arm}", seen, units))
        matches.extend(_match(run_id, f"{title} · {arm}", seen) for arm, seen in run.kernel_match.items())
    all_sections = [
        Section(
            "jit", "JIT timeline", "When kernels were compiled and loaded, next to the phases of the run.", prewarms
        ),
        Section(
            "ptx",
            "PTX targets",
            "The architecture that each kernel was compiled for.",
            list(_targets(view)),
        ),
        Section("accuracy", "Kernel accuracy", "Each kernel against its naive twin and an fp64 reference.", matches),
    ]
    return [section for section in all_sections if section.parts]


def _prewarm(run_id: str, title: str, seen: PrewarmEvidence, units: frozenset[Unit]) -> Part:
    part = Part(title, runs=[run_id])
    drawn = plots.timeline(seen.events, seen.phases, seen.handles)
    if units:
        part.judged.append(JudgedPlot(drawn, units))
    else:
        part.plots.append(drawn)
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
        after = counted(seen.steps_after_fill, "step")
        part.text.append(f"Device memory was filled except for {free}; {after} ran after that.")
    return part


def _targets(view: ReportView) -> Iterator[Part]:
    """Yield a part for each workload, with each kernel once, because a workload's runs use mostly the same kernels."""
    by_workload: dict[str, list[tuple[str, str, KernelsEvidence]]] = {}
    for run_id, run in view.evidence.items():
        records = by_workload.setdefault(view.title_of(run_id), [])
        records.extend((run_id, arm, seen) for arm, seen in run.kernels.items())
    for title, records in by_workload.items():
        if not records:
            continue
        part = Part(title, runs=[run_id for run_id, _, _ in records])
        part.text.extend(dict.fromkeys(f"{arm}: {_machine(seen)}" for _, arm, seen in records))
        rows = [[target, count, arm] for _, arm, seen in records for target, count in _by_target(seen)]
        columns = ["target", "kernels", "arm"][: 3 if len(records) > 1 else 2]
        part.tables.append(table("Kernels by target", columns, [row[: len(columns)] for row in rows]))
        part.tables.append(_kernels([(arm, seen) for _, arm, seen in records]))
        yield part


def _by_target(seen: KernelsEvidence) -> list[tuple[str, int]]:
    """Return each target with its number of kernels. A kernel that is both planned and used counts twice."""
    targets = (" ".join(kernel.targets) or "no .target line" for kernel in [*seen.used, *seen.planned])
    return Counter(targets).most_common()


def _machine(seen: KernelsEvidence) -> str:
    """Return a sentence: the kernels' architecture or the device, and the newest PTX version that the driver loads."""
    if seen.compiled_for:
        compiled = f"compiled for {seen.compiled_for}, without a device"
    elif seen.device:
        compiled = f"device {seen.device}"
    else:
        compiled = "no device" if seen.device_readable else "the device could not be read"
    driver = f"; the driver knows PTX up to {seen.driver_ptx_version}" if seen.driver_ptx_version else ""
    return f"{compiled}{driver}."


def _kernels(records: list[tuple[str, KernelsEvidence]]) -> Table:
    """Return a table of kernels with their arms. Kernels without a target come first, because they are faulty."""
    arms: dict[tuple[str, ...], list[str]] = {}
    for arm, seen in records:
        for row in _of_an_arm(seen):
            arms.setdefault(row, []).append(arm)
    ordered = sorted(arms.items(), key=lambda item: (item[0][1] != "none", item[0]))
    rows = [[*row, ", ".join(dict.fromkeys(having))] for row, having in ordered]
    columns = ["kernel", "target", "PTX version", "found in", "loaded by", "arms"]
    # If all kernels have the same value in a column, show this value in the caption and leave out the column.
    shared = [place for place in range(3, len(columns)) if len(rows) > 1 and len({row[place] for row in rows}) == 1]
    common = "".join(f"; {columns[place]}: {rows[0][place]}" for place in shared)
    kept = [place for place in range(len(columns)) if place not in shared]
    cells = [[row[place] for place in kept] for row in rows]
    caption = f"{counted(len(rows), 'kernel')} by key{common}"
    return table(caption, [columns[place] for place in kept], cells, folded=len(rows) > 8, shown=40)


def _of_an_arm(seen: KernelsEvidence) -> Iterator[tuple[str, ...]]:
    """Yield one row for each kernel, or two rows if its targets or PTX versions differ between plan and run."""
    found: dict[tuple[str, str, str], list[str]] = {}
    routes: dict[tuple[str, str, str], str] = {}
    for where, kernels in (("plan", seen.planned), ("run", seen.used)):
        for kernel in kernels:
            targets, versions = " ".join(kernel.targets) or "none", " ".join(kernel.versions) or "none"
            row = (kernel.key, targets, versions)
            found.setdefault(row, []).append(where)
            routes[row] = kernel.load_route or "–"
    for named, places in found.items():
        yield *named, " and ".join(dict.fromkeys(places)), routes[named]


def _match(run_id: str, title: str, seen: KernelMatchEvidence) -> Part:
    groups: dict[tuple[str, str], list[tuple[float, float, float, bool]]] = {}
    for case in seen.cases:
        written = case.unwritten == 0 and not case.overwritten
        sound = case.finite and not case.mistyped and written and case.repeat_equal
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
    text += "Unsound: not finite, of another type, not wholly written, written outside its outputs, or not repeatable."
    part = Part(title, [text], runs=[run_id])
    part.tables.append(table("Errors by operation and type", columns, rows))
    beside = list(_beside_peers(seen.cases))
    if beside:
        text = (
            "Errors of each element are relative to the sum of the sizes of its terms. A peer is another project's "
            "kernel "
        )
        text += (
            "on the same inputs. In a peer's row, the kernel's errors cover only the outputs that the peer also has."
        )
        part.text.append(text)
        columns = [
            "operation",
            "inputs",
            "outputs",
            "worst against fp64",
            "naive",
            "peer's worst",
            "ours beside",
            "peer",
        ]
        part.tables.append(table("Errors relative to terms, and the peer's", columns, beside))
    if seen.compiled:
        compiled = [
            [item.name, item.key, item.shared_memory_bytes, item.threads, " ".join(item.targets)]
            for item in seen.compiled
        ]
        part.tables.append(
            table(
                "Compiled kernels",
                ["kernel", "key", "shared memory, B", "threads", "target"],
                compiled,
                folded=True,
                shown=12,
            )
        )
    if seen.constants:
        part.tables.append(table("Constants of the source", ["constant", "value"], sorted(seen.constants.items())))
    return part


def _beside_peers(cases: list[KernelCase]) -> Iterator[list[str | float | None]]:
    """Yield a table row for each operation, type of inputs and type of outputs: the largest errors of kernel, naive
    twin and peer, and the peer's name."""
    terms: dict[tuple[str, str, str], list[KernelErrors]] = {}
    peers: dict[tuple[str, str, str], list[PeerErrors]] = {}
    names: dict[str, dict[str, None]] = {}
    for case in cases:
        for outputs, errors in (case.terms or {}).items():
            terms.setdefault((case.operation, case.dtype, outputs), []).append(errors)
        if case.peer is not None:
            names.setdefault(case.operation, {})[case.peer.name] = None
            for outputs, beside in case.peer.errors.items():
                peers.setdefault((case.operation, case.dtype, outputs), []).append(beside)
    for key, several in terms.items():
        worst = [_largest(each.vs_fp64 for each in several), _largest(each.naive_vs_fp64 for each in several)]
        theirs, ours = (
            _largest(getattr(each, name) for each in peers.get(key, [])) for name in PeerErrors.model_fields
        )
        compared = [theirs, ours] if key in peers else [None, None]
        yield [*key, *worst, *compared, ", ".join(names.get(key[0], {})) or "–"]


def _largest(errors: Iterable[float]) -> float:
    """Return the largest error; NaN counts as worse than any error."""
    values = [float(error) for error in errors]
    return math.nan if any(map(math.isnan, values)) else max(values, default=0.0)


def _worst(cases: list[tuple[float, float, float, bool]], column: int) -> float:
    return _largest(float(case[column]) for case in cases)
