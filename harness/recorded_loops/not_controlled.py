"""Name what two recordings do not show: what was not recorded in both, and in what else their machines differ."""

from __future__ import annotations

from collections.abc import Iterator

from harness.evidence.environment_records import Environment
from harness.judging.sheet import some
from harness.recorded_loops.first_differences import batches, common_steps, same_end, states
from harness.recorded_loops.recordings import Recording


def not_controlled(baseline: Recording, candidate: Recording) -> Iterator[str]:
    """Yield what may differ unseen between two runs."""
    pairs = [(baseline.ranks[rank], candidate.ranks[rank]) for rank in baseline.ranks]
    if not all(0 in states(one, other) for one, other in pairs):
        yield "start: the state before the first step was not recorded in both; give `model` to `harness.record`"
    if not all(len(batches(one, other)) == common_steps(one, other) for one, other in pairs):
        yield "batches: not recorded at every step of both; give `batch`"
    if not all(same_end(one, other) for one, other in pairs):
        yield "end: the last state was not recorded in both behind the same step"
    alone = sorted({name for one, other in pairs for name in one.quantities.keys() ^ other.quantities.keys()})
    if alone:
        yield f"{some(alone)}: recorded in one run alone"
    if len(baseline.ranks) < baseline.world_size:
        yield f"ranks: {len(baseline.ranks)} of {baseline.world_size} were recorded"
    here, there = (_machine(run.ranks[min(run.ranks)].header.environment) for run in (baseline, candidate))
    for name in sorted(here.keys() | there.keys()):
        if here.get(name) != there.get(name):
            yield f"{name}: {there.get(name)} in {candidate.name}, {here.get(name)} in {baseline.name}"
    yield "random numbers: generators are not recorded"
    yield f"horizon: nothing behind step {min(common_steps(*pair) for pair in pairs) - 1} was compared"


def _machine(found: Environment) -> dict[str, object]:
    """Return what a run's bits may depend on, by its name."""
    own = {"GPU": found.gpu.name, "driver": found.gpu.driver, "processor": found.cpu.model}
    return {**own, **found.versions, **found.variables}
