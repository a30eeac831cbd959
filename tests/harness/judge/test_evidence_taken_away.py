"""Evidence that does not pass, with a part of it taken away: it must not pass then.

Whoever loses, cuts or hides a part of the evidence would otherwise turn a FAIL into a PASS. What may: the very entry
that is wrong, where nothing tells how many entries there should be. Those lists are named here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from evidence_paths import Path, changed, few, inside, name_of, recorded, things
from judge_cases_tables import EVERYTHING

from harness.evidence.model import Series
from harness.judge.verdict import Status

# What is in these was seen, and nothing says how much there was to see.
LISTS_OF_WHAT_WAS_SEEN = {
    "capture.failure": "the system's own words, that it failed",
    "capture.moved_buffers": "the buffers that moved",
    "capture.nodes": "graphs, where one capture has an unknown number of them",
    "capture.nodes.by_type": "nodes by type, where the contract bounds their number from above",
    "gradients.groups": "clipping groups, where the one beyond the threshold is named twice or at one step alone",
    "kernel_match.graphed.cases": "cases, where the one of a shape of its own is left out",
    "kernel_match.graphed.compiled": "compiled kernels",
    "kernels.graphed.planned": "kernels of the plan",
    "kernels.graphed.used": "kernels of the run",
    "kernels.graphed.compiled_for": "without it, they were compiled for the device that is there",
    "prewarm.graphed.events": "compilations, where the late one is left out",
    "prewarm.graphed.failure": "the error of a step in full memory",
    "telemetry.samples": "samples, as long as no more than two seconds lie between the others",
    "telemetry.samples.sm_clock_mhz": "the clock of one of them",
    "telemetry.samples.throttle_reasons": "why one of them was slowed",
    "timing.blocks.processor_seconds": "of the candidate; of the baseline it must be there",
    "timing.observed_device_seconds": "without it, the processor alone must have been busy",
}


def parts(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Lists and dictionaries without one of their entries, series without their first or last rows."""
    for key, entry in inside(value):
        here = (*path, key)
        if isinstance(entry, Series):
            yield from ((here, _rows(entry, kept)) for kept in (slice(1, None), slice(None, -1), slice(0, 1)))
        elif isinstance(entry, list) and not isinstance(value, Series):
            yield from ((here, entry[:index] + entry[index + 1 :]) for index in few(len(entry)))
        elif isinstance(entry, dict):
            yield from ((here, {name: each for name, each in entry.items() if name != gone}) for gone in entry)
        yield from parts(entry, here)


def _rows(series: Series, kept: slice) -> Series:
    return Series(series.loss[kept], series.batch_digest[kept], series.clip_active_groups[kept], series.tokens[kept])


def is_what_was_seen(path: Path) -> bool:
    return any(name_of(path).endswith(listed) for listed in LISTS_OF_WHAT_WAS_SEEN)


@pytest.mark.parametrize("kind", list(EVERYTHING))
def test_less_evidence_never_passes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    passed, tried = [], 0
    for case in EVERYTHING[kind]:
        judged = None if case.reason in ("held", "judge_error") else recorded(case, monkeypatch)
        if judged is None:  # or it is of several units
            continue
        for path, less in [*parts(judged.evidence), *things(judged.evidence)]:
            if is_what_was_seen(path):
                continue
            tried += 1
            with changed(judged.evidence, path, less):
                if judged.verdict().status is Status.PASS:
                    passed.append((case.name, ".".join(map(str, path))))
    assert passed == []
    assert tried > 20
