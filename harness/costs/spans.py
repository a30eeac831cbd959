"""List what one worker spent its time on, span after span, by its machine's clock or since its own start."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from math import isfinite
from typing import NamedTuple

from harness.costs.kinds import Kind, kind_of
from harness.evidence.plan_records import SPENT
from harness.evidence.worker_times import ProcessTimes, WorkerTimes


class Span(NamedTuple):
    """From `began` to `ended`, in seconds."""

    phase: str
    kind: Kind
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began


def spans(worker: WorkerTimes, controls: Collection[str] = ()) -> list[Span]:
    """Return the worker's time without a gap: each phase lasts until the next begins.

    Without the times of its process the worker's start and end are not known: if it died, its last phase gets no time.
    Times that make no sense (damaged evidence) are left out.
    """
    if not worker.clocked or worker.process is None:
        marks = [(phase.name, kind_of(phase.name, controls), phase.seconds) for phase in worker.phases]
        if worker.complete is not None:
            marks.append(("", Kind.END, worker.complete.seconds))
        return list(_until_the_next(marks))
    marks = list(_before_the_run(worker.process))
    spent = worker.run.settings.get(SPENT)
    if marks and isinstance(spent, int | float) and spent > 0:  # of whose evidence nothing is kept
        marks.insert(0, ("earlier executions", Kind.LOCATING, marks[0][2] - spent))
    marks += [(phase.name, kind_of(phase.name, controls), phase.began or 0.0) for phase in worker.phases]
    if worker.complete is not None and worker.phases:
        first = worker.phases[0]
        recorder_began = (first.began or 0.0) - first.seconds
        marks.append(("end of the process", Kind.END, recorder_began + worker.complete.seconds))
    marks.append(("", Kind.END, worker.process.ended))
    return list(_with_stops(_until_the_next(marks), worker.process.stopped))


def on_gpu(worker: WorkerTimes, spent: Iterable[Span]) -> list[Span]:
    """Return the spans in which the worker, whose process was recorded, held its GPU and could use it."""
    process = worker.process
    if process is None or process.gpu is None:
        return []
    held_from = process.started if process.given_run is None else process.given_run
    return [span for span in spent if span.kind is not Kind.WAITING and span.began >= held_from]


def _before_the_run(process: ProcessTimes) -> Iterator[tuple[str, Kind, float]]:
    if process.asked_for_gpu is not None and process.asked_for_gpu < process.started:
        yield "wait for the GPU", Kind.WAITING, process.asked_for_gpu
    yield "start of the interpreter", Kind.IMPORTS, process.started
    if process.ready is not None:
        yield "wait for a run", Kind.WAITING, process.ready
    if process.given_run is not None:
        yield "start", Kind.IMPORTS, process.given_run


def _until_the_next(marks: Iterable[tuple[str, Kind, float]]) -> Iterator[Span]:
    for (phase, kind, began), (_, _, ended) in pairwise(marks):
        if isfinite(began) and isfinite(ended) and began < ended:
            yield Span(phase, kind, began, ended)


def _with_stops(spent: Iterable[Span], stopped: Iterable[tuple[float, float]]) -> Iterator[Span]:
    """Yield the same time, with spans of their own for what passed while the process was stopped."""
    stops = sorted((began, ended) for began, ended in stopped if began < ended)
    for span in spent:
        at = span.began
        for began, ended in stops:
            stop, go_on = max(began, at), min(ended, span.ended)
            if stop < go_on:
                yield from [span._replace(began=at, ended=stop)] if at < stop else []
                yield Span("stopped", Kind.WAITING, stop, go_on)
                at = go_on
        yield from [span._replace(began=at)] if at < span.ended else []
