"""Show the peaks of device memory of both arms, during the opening and the steps, counted by torch and the driver."""

from __future__ import annotations

from collections.abc import Iterator

from harness.evidence.arm_records import MemoryPeak, PeakMemoryEvidence
from harness.kinds.memory.model import PeakMemory
from harness.numbers import counted
from harness.report.blocks import Part, Section, table
from harness.report.glance import JudgedPart, judged_parts
from harness.report.text import line, size
from harness.report.view import ReportView


def section(view: ReportView) -> Section | None:
    """Return a section with a part for each judged `peak_memory` claim with a measured arm; None if there is none."""
    shown = [part for judged in judged_parts(view, PeakMemory) for part in _parts(judged)]
    lead = (
        "The most memory that each arm held at one time, in a separate process. Torch counts allocated bytes (the "
        "bytes of tensors) and reserved bytes (the bytes that its allocator took from the device). The column of the "
        "device shows samples of the driver's count, minus the memory that was in use before the process used the "
        "GPU. Outside is the device memory outside torch's allocator, including the CUDA context."
    )
    return Section("peak_memory", "Peak memory", lead, shown) if shown else None


def _parts(judged: JudgedPart[PeakMemory]) -> Iterator[Part]:
    claim, runs = judged.claim, judged.runs
    seen: dict[str, PeakMemoryEvidence] = {}
    made_from = []
    for arm in (claim.candidate, claim.baseline):
        for run in runs:
            found = run.arms[arm][0].peak_memory if run.arms.get(arm) else None
            if found is not None and arm not in seen:
                seen[arm] = found
                made_from.append(run.run_id)
    if not seen:
        return
    part = Part(f"{judged.verdict.claim} · {judged.verdict.workload}", [_bound(claim)], runs=made_from)
    rows: list[list[object]] = [
        [arm, name, *_row(peak)]
        for arm, found in seen.items()
        for name, peak in (("opening", found.opening), ("steps", found.steps))
    ]
    part.tables.append(table("Peaks", ["arm", "during", "allocated", "reserved", "device", "outside"], rows))
    for arm, found in seen.items():
        if found.resets or found.lost_peaks or found.foreign_processes:
            part.text.append(_disturbances(line(arm), found))
    yield part


def _bound(claim: PeakMemory) -> str:
    over = "the whole run" if claim.over == "run" else "the steps"
    if claim.at_most_gib is not None:
        return f"Allowed: {claim.at_most_gib:g} GiB {claim.of} during {over}."
    return f"Allowed: {claim.at_most_ratio:g} times the baseline's bytes {claim.of} during {over}."


def _row(peak: MemoryPeak) -> list[str]:
    counts = (peak.allocated_bytes, peak.reserved_bytes, peak.device_bytes, peak.outside_bytes)
    return ["–" if count is None else size(count) for count in counts]


def _disturbances(arm: str, found: PeakMemoryEvidence) -> str:
    foreign = found.foreign_processes or 0
    others = "1 other process" if foreign == 1 else f"{foreign} other processes"
    return (
        f"In the process of {arm}, torch's peak statistics were reset {counted(found.resets, 'time')} and fell "
        f"{counted(found.lost_peaks, 'time')} without a visible reset, and {others} used the GPU."
    )
