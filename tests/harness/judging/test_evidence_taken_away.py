"""Evidence that does not pass, with a part of it taken away: it must not pass then.

Whoever loses, cuts or hides a part of the evidence would otherwise turn a FAIL into a PASS. What may pass without it
is named here, and no more is named than does.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from budget import is_long, slow_but
from evidence_builders import timed_run
from evidence_paths import Judged, Path, changed, few, inside, name_of, recorded, things
from evidence_reads import Reads, reads_noted
from judge_cases_tables import EVERYTHING

from harness.evidence.run_evidence import Series
from harness.judging.verdict import Status

# Lists of what was seen, where nothing says how much there was to see: one entry less may be the one that was wrong.
AN_ENTRY = {
    "capture": {
        "capture.moved_buffers": "the buffers that moved",
        "capture.nodes": "graphs, where one capture has an unknown number of them",
    },
    "gradient_match": {"gradients.groups": "a clipping group that is named twice, or at one step alone"},
    "kernel_match": {"cases": "a case of a shape of its own", "compiled": "compiled kernels"},
    "step_accuracy": {"step_errors.tensors": "a tensor that is named twice"},
    "prewarm": {"used": "kernels of the run", "events": "compilations and loads"},
    "ptx_target": {"used": "kernels of the run"},
    "ranks_agree": {"rank_steps.generators": "a generator that one rank alone has, of which nothing is recorded then"},
    "ranks_match": {"end.moved_apart.missing": "what the baseline alone ended with"},
    "trajectory_match": {
        "start.trainable_dtypes": "one of two data types of an arm's parameters",
        "end.moved_apart.missing": "what the baseline alone ended with",
        "end.loose.roles": "the role of a tensor without a digest, of which nothing is recorded then",
        "end.loose.unread": "likewise the digest of a tensor without a role",
        "end.moved_apart.tensors": "what an optimizer keeps of a parameter",
        "capture.as_written": "the only line that calls torch.compile: a step without one calls none",
        "capture.host_numbers": "a number that a step reads, of which nothing is recorded then",
    },
    "throughput_ratio": {
        "telemetry.samples": "a sample, as long as no more than two seconds lie between the others",
        "telemetry.samples.throttle_reasons": "why the clock was slowed at one of them",
    },
}
# What may be absent altogether.
ALL_OF_IT = {
    "capture": {
        "capture.failure": "the system's own words, that it failed",
        "capture.moved_buffers": "as above",
        "capture.ghost": "an older harness's, which did not look at the replays alone",
        "capture.ghost.alone_reads": "both steps of the look read the same batch",
        "capture.ghost.reads": "as above",
        "end.replays": "an older harness's, which counted no replays",
    },
    "capture_fallback": {"capture.mechanism": "a capture that failed need not name one"},
    "gradient_match": {
        "gradients": "the baseline's own, which older evidence has not",
        "gradients.made": "an older harness's, or what changed them was not seen",
        "start.trainable_names": "an older harness's: then trained tensors are counted",
    },
    "kernel_match": {
        "cases.overwritten": "an older harness's, which put no guards around outputs",
        "cases.zero_references": "an older harness's, which did not look for them",
    },
    "long_replay": {"arms.graphed.long_replay.rounds": "an older harness's, which opened no fresh run"},
    "prewarm": {"failure": "the error of a step in full memory"},
    "ptx_target": {
        "compiled_for": "then they were compiled for the device that is there",
        "used": "the planned kernels remain",
    },
    "ranks_match": {"end.moved_apart.missing": "an older harness's, which did not look for them"},
    "trajectory_match": {
        "end.capture_attempts": "an older harness's, which did not count captures in a plain arm",
        "end.moved_apart.missing": "an older harness's, which did not look for them",
        "end.clip": "an older harness's, which watched no clip",
        "end.clip.seen": "a clip may be hidden, as in compiled code",
        "end.loose": "an older harness's, which did not follow steps",
        "end.loose.roles": "as above",
        "end.loose.unread": "as above",
        "capture.as_written": "an older harness's, which recorded no step that calls torch.compile",
        "capture.host_numbers": "an older harness's, which followed no numbers",
        "capture.host_numbers.read": "what reads a number: one that nothing reads only counts",
    },
    "throughput_ratio": {
        "telemetry.samples.sm_clock_mhz": "an idle moment has no clock under load",
        "telemetry.samples.throttle_reasons": "as above",
        "timing.blocks.processor_seconds": "of the candidate: the baseline must not idle",
        "timing.profiler_sees_planted": "where every process was profiled: an older harness's",
        "timing.blocks.pace": "an older harness's, which measured no pace",
        "timing.processors": "bounds processor time from above; its absence is an older harness's",
        "telemetry.timed_seconds": "likewise, timed seconds",
    },
}


# Kinds with so many cases, or so much evidence, that they take three quarters of all the time.
MANY = (
    *("throughput_ratio", "trajectory_match", "not_worse"),
    *("gradient_match", "step_accuracy", "ranks_match", "long_replay"),
)


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


def unlike_earlier_ones(
    judged: Judged, reason: str, taken: Iterator[tuple[Path, Any]], known: set[object]
) -> Iterator[tuple[Path, Any]]:
    """What no earlier case says the same of; all of it is tried in `.ci/long fuzz` alone. `known` is added to.

    The processes of a timing are alike: the first and the last. What they trained is judged before what they timed:
    cases of one reason that trained the same, by the same claims, differ in what comes later. Of a last process that
    trained as the first did, each part is taken once, whatever the reason.
    """
    if is_long():
        yield from taken
        return
    last = len(judged.evidence) - 1
    timed = judged.claim.kind == "throughput_ratio"
    others = tuple(claim.model_dump_json() for claim in judged.contract.claims if claim.id != judged.claim.id)
    trained = {process: pickle.dumps(judged.evidence[process].arms) for process in (0, last) if timed}
    for path, less in taken:
        if 0 < path[0] < last:
            continue
        if timed and path[1:2] == ("arms",):
            as_the_first = path[0] > 0 and trained[last] == trained[0]
            part = (None if as_the_first else reason, others, trained[path[0]], path)
            if part in known:
                continue
            known.add(part)
        yield path, less


@pytest.mark.parametrize("kind", slow_but([kind for kind in EVERYTHING if kind not in MANY], EVERYTHING))
@pytest.mark.parametrize(("taken", "may_pass"), [(parts, AN_ENTRY), (things, ALL_OF_IT)], ids=["an entry", "all of it"])
def test_a_verdict_never_becomes_pass_when_evidence_is_removed(
    taken: Callable[[Any], Iterator[tuple[Path, Any]]],
    may_pass: dict[str, dict[str, str]],
    kind: str,
) -> None:
    listed, passed, tried = may_pass.get(kind, {}), set(), 0
    known: set[object] = set()
    for reason, judged, reads in not_passing(kind):
        for path, less in unlike_earlier_ones(judged, reason, taken(judged.evidence), known):
            tried += 1
            if not (is_long() or reads.of(judged.evidence, path)):  # its verdict is that of the whole evidence
                continue
            with changed(judged.evidence, path, less):
                if judged.verdict().status is Status.PASS:
                    name = name_of(path)
                    passed.add(next((each for each in listed if name.endswith(f".{each}") or name == each), name))
    assert passed == set(listed)
    assert tried > 20


@functools.cache
def not_passing(kind: str) -> list[tuple[str, Judged, Reads]]:
    """The reason of each case of one unit that does not pass, the unit, and what its judge reads."""
    found = []
    with pytest.MonkeyPatch.context() as patch:
        for case in EVERYTHING[kind]:
            judged = None if case.reason in ("held", "judge_error") else recorded(case, patch)
            if judged is not None:
                found.append((case.reason, judged, _read_by(judged, patch)))
    return found


READ = {
    "its attribute": lambda run: run.timing.blocks,
    "a copy of the run": lambda run: replace(run, run_id="other").timing.blocks,
    "a copy of what holds it": lambda run: run.timing.model_copy(),
    "what holds it, written": lambda run: run.timing.model_dump_json(),
    "what holds it, compared": lambda run: run.timing == run.timing.model_copy(deep=True),
}


@pytest.mark.parametrize("way", READ)
def test_every_way_of_reading_evidence_is_recorded_as_a_read(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    evidence: list[Any] = [timed_run(0, [0.01] * 4, [0.012] * 4)]
    with reads_noted(monkeypatch) as reads:
        READ[way](evidence[0])
    reads.found_in(evidence)
    assert reads.of(evidence, (0, "timing", "blocks"))
    assert reads.of(evidence, (0, "timing", "blocks", 0, "seconds")) == (way.startswith(("a copy of what", "what")))
    assert not reads.of(evidence, (0, "arms", "graphed", 0, "series"))


def _read_by(judged: Judged, monkeypatch: pytest.MonkeyPatch) -> Reads:
    """What the judge reads of the whole evidence, of which it does not say PASS."""
    with reads_noted(monkeypatch) as reads:
        verdict = judged.verdict()
    assert verdict.status is not Status.PASS
    reads.found_in(judged.evidence)
    return reads
