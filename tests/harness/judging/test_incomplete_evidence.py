"""Passing evidence with one thing taken from it: a float made NaN or infinite, a list emptied, a value left out.

The verdict is then no PASS, but for what no judgement rests on, which is listed here with what it is for.
"""

from __future__ import annotations

import math

import pytest
from evidence_paths import Judged, Path, changed, leaves, name_of, recorded, things
from judge_cases_tables import ONE_WRONG_THING

from harness.judging.verdict import Status

KINDS = [kind for kind in ONE_WRONG_THING if kind != "any"]

# Numbers on which no judgement rests, and what they are for.
SHOWN = {
    "power_w": "shown over time",
    "temperature_c": "shown over time",
    "magnitude": "names a case of a kernel",
    "naive_vs_fp64": "likewise, relative to terms",
    "peer.errors.float32.vs_fp64": "a case whose peer is not finite shows nothing of it, and is left out",
    "peer.errors.bfloat16.vs_fp64": "likewise",
    "naive_error_vs_fp64": "how well the twin itself does; a twin that is no number differs from the kernel",
    "differences.largest": "how far the ends lie apart: shown, and asked for by claims within a bound",
    "telemetry.samples.seconds": "places a sample; one that falls into no block belongs to no arm",
    "telemetry.began": "likewise",
    "timing.blocks.began": "places a block, likewise",
    "timing.blocks.enqueue_seconds": "judged where a claim measures the host's time; cases of it say more",
    "device_work.outside.seconds": "of one name; the sum of all is judged",
}
ABSENT = {
    "any": {
        "start.facts": "the system's own words; layers are asked for where a bound is per layer",
        "start.trainable_names": "digests show that parameters differ; names say it better",
        "end.input_names": "likewise, inputs",
        "start.trainable_dtypes": "data types of parameters: asked for by claims that compare two",
        "end.capture_attempts": "older evidence has none; the capture record and the replays that were seen are judged",
        "end.capture_errors": "likewise",
        "end.differences": "how far the ends lie apart: asked for by claims within a bound",
        "differences.largest": "likewise",
        "differences.tensor": "where, shown",
        "rank_steps.names": "of the collectives of each step, whose number is judged",
        "targets": "PTX declarations, which ptx_target judges",
        "versions": "likewise",
        "entries": "entry names, shown",
        "shared_memory_bytes": "asked for where a claim demands a number",
        "threads": "likewise",
        "syncs.readings.places": "where the control's syncs were, shown",
        "syncs.readings.first_step": "the first step with a sync, for the sentence",
        "syncs.every_step.first_step": "likewise",
        "syncs.every_step.places": "likewise",
        "timing.processors": "bounds processor time from above; its absence is an older harness's",
        "telemetry.timed_seconds": "likewise, timed seconds",
        "device_work.outside": "the names of what ran outside; its time is in the sum of all",
        "telemetry.samples.power_w": "shown over time",
        "telemetry.samples.temperature_c": "likewise",
        "telemetry.samples.sm_clock_mhz": "of one sample: an idle moment has no clock under load",
        "driver_ptx_version": "what the driver reads, for ptx_target",
    },
    # What the harness saw of a capture is the claim of kind `capture`; the others rest on its record.
    "a capture's record": {
        "capture.mechanism": "asked for where a claim names one",
        "capture.nodes": "the census",
        "capture.nodes.by_type": "likewise",
        "capture.nodes.kernels": "likewise",
        "capture.nodes.clipped_tensors": "likewise",
        "capture.observed_graph_launches": "launches that the harness saw",
    },
    "capture_fallback": {"capture.every_step": "what a step does outside its graphs, of which there is none"},
    "ptx_target": {
        "kernels.graphed.planned": "the used ones remain",
        "kernels.graphed.used": "the planned ones remain",
    },
    "host_syncs": {
        "arms.synchronizing.syncs.every_step": "of the control, whose two steps show that syncs are seen",
        "syncs.every_step.most": "no step has more than all of them together, which is none here",
    },
    "ranks_match": {"ranks.arms.ungraphed": "of the baseline, which has one rank: its evidence lies with rank 0"},
    "long_replay": {
        "arms.ungraphed.long_replay.blocks.allocated_bytes": "of the baseline, shown",
        "arms.ungraphed.long_replay.blocks.reserved_bytes": "likewise",
    },
    "gradient_match": {"gradients.groups": "asked for where the claim bounds clipped norms"},
    "throughput_ratio": {
        "timing.blocks.enqueue_seconds": "asked for where a claim measures the host's time",
        "timing.blocks.processor_seconds": "of the candidate: the baseline must not idle",
        "capture.every_step": "the steps of a timing are not watched one by one",
    },
}
JUDGED_WHOLE = {"ptx_target": ("targets", "versions", "driver_ptx_version"), "capture": ("start.facts",)}
# Claims about how a step was run; what it computed is the trajectory's claim.
WITHOUT_LOSSES = ("capture", "host_syncs", "memory_steady")


def passing(kind: str, monkeypatch: pytest.MonkeyPatch) -> Judged:
    case = next(case for case in ONE_WRONG_THING[kind] if case.reason == "held")
    found = recorded(case, monkeypatch)
    assert found is not None
    assert found.verdict().status is Status.PASS
    return found


def rests_on(path: Path, kind: str) -> bool:
    name = name_of(path)
    if kind in WITHOUT_LOSSES and name.endswith("series.loss"):
        return False
    return not any(name.endswith(shown) for shown in SHOWN)


def test_every_claim_kind_except_ptx_target_rests_on_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the test about non-finite numbers in the evidence would check nothing."""
    counted = {
        kind: sum(rests_on(path, kind) for path in leaves(passing(kind, monkeypatch).evidence)) for kind in KINDS
    }
    assert {kind for kind, numbers in counted.items() if not numbers} == {"ptx_target"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_non_finite_number_in_the_evidence_never_passes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = passing(kind, monkeypatch)
    passed = []
    for path in leaves(case.evidence):
        if not rests_on(path, kind):
            continue
        for number in (math.nan, math.inf, -math.inf):
            with changed(case.evidence, path, number):
                if case.verdict().status is Status.PASS:
                    passed.append((".".join(map(str, path)), number))
    assert passed == []


def may_be_absent(path: Path, kind: str) -> bool:
    name = name_of(path)
    if any(name.endswith(judged) for judged in JUDGED_WHOLE.get(kind, ())):
        return False
    lists = ["any", kind] if kind == "capture" else ["any", "a capture's record", kind]
    return any(name.endswith(listed) for each in lists for listed in ABSENT.get(each, {}))


@pytest.mark.parametrize("kind", KINDS)
def test_missing_evidence_never_passes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = passing(kind, monkeypatch)
    passed = []
    for path, nothing in things(case.evidence):
        if may_be_absent(path, kind) or (
            "synchronizing" in path and kind == "gradient_match"
        ):  # an arm of other claims
            continue
        with changed(case.evidence, path, nothing):
            if case.verdict().status is Status.PASS:
                passed.append(".".join(map(str, path)))
    assert passed == []
