"""Recorded evidence with one defect: the possible defects, by shared check.

A change alters recorded values everywhere that a recorder would have written them. It builds no record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from recorded_evidence import Recorded

from harness.contract.schema import parts_of
from harness.evidence.arm_records import NOT_FINITE, State
from harness.evidence.base import Record
from harness.evidence.run_evidence import ArmEvidence, RunEvidence, Series
from harness.kinds.checks import ROLES

OTHER = "another"  # ends a digest of other bits


class Place(NamedTuple):
    """The place of one execution in the evidence: run, rank, arm and repetition."""

    run: int
    rank: int
    arm: str
    repetition: int

    def __str__(self) -> str:
        return f"{self.arm} {self.repetition} of run {self.run}" + (f", rank {self.rank}" if self.rank else "")


class Changed(NamedTuple):
    """Evidence with one defect, the name of the defect, and the role of the execution that has it."""

    what: str
    role: str
    runs: list[RunEvidence]


Change = Callable[[ArmEvidence], ArmEvidence | None]  # None: nothing of the kind was recorded there


@dataclass(frozen=True)
class Way:
    """A kind of defect, for each execution that `of` selects alone, or for all of them together.

    role: the role that the change gives to an execution; None: it keeps its role.
    """

    name: str
    change: Change
    of: Callable[[Recorded, Place, ArmEvidence], bool]
    alone: bool = True
    together: bool = False
    role: str | None = None


def places(base: Recorded) -> dict[Place, ArmEvidence]:
    """Return every execution of the arms that the claim names, at each rank of an arm."""
    named = {arm for part in parts_of(base.claim) for arm in part.arms().values()}
    return {
        Place(number, rank, arm, index): execution
        for number, run in enumerate(base.runs)
        for rank, view in enumerate((run, *run.ranks))
        for arm, executions in view.arms.items()
        if arm in named and rank < base.contract.arms[arm].ranks
        for index, execution in enumerate(executions)
    }


def changed_evidence(base: Recorded, check: str) -> Iterator[Changed]:
    """Yield the evidence with each kind of defect of `check`; nothing if no recorder wrote what it is about."""
    with recorded_only():
        found = [*_changed(base, check)]
    yield from found


def _changed(base: Recorded, check: str) -> Iterator[Changed]:
    for way in WAYS[check]:
        found = {
            place: other
            for place, execution in places(base).items()
            if way.of(base, place, execution) and (other := way.change(execution)) is not None
        }
        if way.alone:
            for place, other in found.items():
                role = role_of(base, place) if way.role is None else way.role
                yield Changed(f"{way.name}: {place}", role, _with(base.runs, {place: other}))
        if (way.together and len(found) > 1) or (found and not way.alone):
            yield Changed(f"{way.name}: all", "", _with(base.runs, found))


def _with(runs: list[RunEvidence], others: Mapping[Place, ArmEvidence]) -> list[RunEvidence]:
    def view(number: int, rank: int, run: RunEvidence) -> RunEvidence:
        arms = {
            arm: [others.get(Place(number, rank, arm, index), each) for index, each in enumerate(executions)]
            for arm, executions in run.arms.items()
        }
        return replace(run, arms=arms)

    whole = []
    for number, run in enumerate(runs):
        ranks = tuple(view(number, rank, each) for rank, each in enumerate(run.ranks, 1))
        whole.append(replace(view(number, 0, run), ranks=ranks))
    return whole


@contextmanager
def recorded_only() -> Iterator[None]:
    """Refuse to build records inside the `with`, because evidence that no recorder wrote proves nothing."""

    def refuse(record: Record, **_: Any) -> None:
        raise AssertionError(f"a {type(record).__name__} was built by hand")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Record, "__init__", refuse)
        yield


# --- whose executions a change is about --------------------------------------------------------------------------


def every(_base: Recorded, _place: Place, _execution: ArmEvidence) -> bool:
    return True


def captured(_base: Recorded, _place: Place, execution: ArmEvidence) -> bool:
    return execution.capture is not None and execution.capture.captured


def declared_plain(base: Recorded, place: Place, _execution: ArmEvidence) -> bool:
    """Return True for an arm declared uncaptured next to a captured one, or judged alone."""
    arms = {arm for part in parts_of(base.claim) for arm in part.arms().values()}
    candidates = {part.arms()[part.candidate_path] for part in parts_of(base.claim)}
    by_name = candidates if any(part.mechanism or base.claim.mechanism for part in parts_of(base.claim)) else set()
    by_setting = {arm for arm in arms if base.contract.arms[arm].capture != "none"}
    alone = not any(part.baseline_path in part.arms() for part in parts_of(base.claim))
    return place.arm not in by_name | by_setting and bool(by_name | by_setting or alone)


def trained(base: Recorded, place: Place, execution: ArmEvidence) -> bool:
    """Return True if the arm is meant to train; a control with learning rate 0 is not."""
    return execution.end is not None and execution.end.trainable_digest != execution.start.trainable_digest


def in_bits(base: Recorded, _place: Place, _execution: ArmEvidence) -> bool:
    """Return True if the claim, or the trajectory that it names, requires equal bits."""
    named = {getattr(part, "trajectory", None) for part in parts_of(base.claim)}
    claims = [base.claim, *(each for each in base.contract.claims if each.id in named)]
    return not any(getattr(part, "equality", "bitwise") != "bitwise" for claim in claims for part in parts_of(claim))


def guarded(field: str) -> Callable[[Recorded, Place, ArmEvidence], bool]:
    """Return a function that returns True if the claim has this guard."""

    def has(base: Recorded, _place: Place, _execution: ArmEvidence) -> bool:
        found = [getattr(part, "guards", part) for part in parts_of(base.claim)]
        return any(getattr(guards, field, None) for guards in found)

    return has


def is_control(base: Recorded, place: Place, _execution: ArmEvidence) -> bool:
    return role_of(base, place) == "control"


def role_of(base: Recorded, place: Place) -> str:
    """Return the role of an execution that the claim does not compare directly, one of `ROLES`, else ""."""
    [part, *_] = [part for part in parts_of(base.claim) if place.arm in part.arms().values()]
    path = next(path for path, arm in part.arms().items() if arm == place.arm)
    if path == part.baseline_path and place.repetition and getattr(part, "equality", "noise") != "noise":
        return "repetition"
    if base.runs[place.run].probe in ("resume", "resumed_seeds") and path == part.candidate_path:
        return "half"
    name = path.removesuffix(".arm").rpartition(".")[2]
    return name if name in ROLES else ""


# --- the ways --------------------------------------------------------------------------------------------------


def _of(record: Any, **changed: Any) -> Any:
    return None if record is None else record.model_copy(update=changed)


def _end(execution: ArmEvidence, **changed: Any) -> ArmEvidence:
    return replace(execution, end=_of(execution.end, **changed))


def _start(execution: ArmEvidence, **changed: Any) -> ArmEvidence:
    return replace(execution, start=_of(execution.start, **changed))


def _series(execution: ArmEvidence, **changed: Any) -> ArmEvidence:
    return replace(execution, series=replace(execution.series, **changed))


def _state(state: State | None, category: str, change: Callable[[str], str]) -> State | None:
    """Return the state with the first digest of the category changed; None if there is none."""
    if state is None or not state.digests.get(category):
        return None
    named = dict(state.digests[category])
    first = next(iter(named))
    named[first] = change(named[first])
    changed: State = _of(state, digests={**state.digests, category: named})
    return changed


def never_captured(execution: ArmEvidence) -> ArmEvidence | None:
    end, capture = execution.end, execution.capture
    if end is None or capture is None:
        return None
    none = {"captured": False, "captures": 0, "replays": 0, "uncaptured_steps": end.steps_called, "nodes": []}
    syncs = _of(execution.syncs, replayed=False)
    seen = {"observed_graph_launches": 0 if capture.observed_graph_launches is not None else None}
    return replace(execution, capture=_of(capture, **none, **seen), syncs=syncs)


def captures_itself(execution: ArmEvidence) -> ArmEvidence | None:
    """Count one more capture, as every recorder counts today; the oldest published runs have no count."""
    end = execution.end
    if end is None:
        return None
    return _end(execution, capture_attempts=(end.capture_attempts or 0) + len(end.capture_errors or ()) + 1)


def half_watched(execution: ArmEvidence) -> ArmEvidence | None:
    capture = execution.capture
    if capture is None or capture.every_step is None:
        return None
    return replace(execution, capture=_of(capture, every_step=_of(capture.every_step, steps=1)))


def blind_watch(execution: ArmEvidence) -> ArmEvidence | None:
    """Change the watch to what it records if each step captures again."""
    capture = execution.capture
    if capture is None or capture.every_step is None:
        return None
    none = _of(capture.every_step, steps=0, fewest_operations=0, most_operations=0, busiest_step=0)
    seen = {"observed_steps": 0, "observed_replayed_operations": None} if capture.mechanism == "traced" else {}
    return replace(execution, capture=_of(capture, every_step=none, **seen))


def unwatched(execution: ArmEvidence) -> ArmEvidence | None:
    capture = execution.capture
    if capture is None or capture.every_step is None:
        return None
    return replace(execution, capture=_of(capture, every_step=None))


def other_work_of_the_device(execution: ArmEvidence) -> ArmEvidence | None:
    capture = execution.capture
    if capture is None or capture.device_work is None:
        return None
    work = capture.device_work
    return replace(
        execution, capture=_of(capture, device_work=_of(work, outside_kernel_seconds=9 * work.launched_seconds + 1))
    )


def not_a_number(execution: ArmEvidence) -> ArmEvidence | None:
    loss = execution.series.loss.copy()
    if not len(loss):
        return None
    loss[len(loss) // 2] = np.nan
    long = execution.long_replay
    if long is not None:
        at = len(long.blocks) // 2
        block = _of(long.blocks[at], first_non_finite=long.blocks[at].first_step, losses=OTHER)
        long = _of(long, blocks=[*long.blocks[:at], block, *long.blocks[at + 1 :]])
    return replace(_series(execution, loss=loss), long_replay=long)


def another_batch(execution: ArmEvidence) -> ArmEvidence | None:
    digests = list(execution.series.batch_digest)
    if not digests:
        return None
    at = len(digests) // 2
    digests[at] += OTHER
    ranked, long = execution.rank_steps, execution.long_replay
    if ranked is not None:
        rows = [[f"{row}{OTHER}" for row in each] if step == at else each for step, each in enumerate(ranked.rows)]
        ranked = _of(ranked, rows=rows)
    if long is not None:
        long = _of(long, blocks=[*long.blocks[:at], _of(long.blocks[at], batches=OTHER), *long.blocks[at + 1 :]])
    return replace(_series(execution, batch_digest=digests), rank_steps=ranked, long_replay=long)


def fewer_tokens(execution: ArmEvidence) -> ArmEvidence | None:
    """Reduce the tokens, so that the batch differs, too."""
    other, tokens = another_batch(execution), execution.series.tokens.copy()
    if other is None or tokens[len(tokens) // 2] < 1:
        return None
    tokens[len(tokens) // 2] -= 1
    return _series(other, tokens=tokens)


def last_step_missing(execution: ArmEvidence) -> ArmEvidence | None:
    return _cut(execution, len(execution.series.loss) - 1)


def other_parameters(execution: ArmEvidence) -> ArmEvidence:
    start = execution.start
    state = _state(start.state, "parameters", lambda digest: digest + OTHER)
    ranked = execution.rank_steps
    if ranked is not None:
        ranked = _of(ranked, parameters=[ranked.parameters[0] + OTHER, *ranked.parameters[1:]])
    rounded = None if start.rounded_digest is None else start.rounded_digest + OTHER
    other = _start(
        execution, trainable_digest=start.trainable_digest + OTHER, state=state or start.state, rounded_digest=rounded
    )
    return replace(other, rank_steps=ranked)


def other_frozen(execution: ArmEvidence) -> ArmEvidence | None:
    """Change the frozen tensors at the start and at the end alike, so that they stay constant."""
    start, end = execution.start, execution.end
    if end is None:
        return None
    return _end(_start(execution, frozen_digest=start.frozen_digest + OTHER), frozen_digest=end.frozen_digest + OTHER)


def other_generator(execution: ArmEvidence) -> ArmEvidence | None:
    state = _state(execution.start.state, "generators", lambda digest: digest + OTHER)
    return None if state is None else _start(execution, state=state)


def one_batch(execution: ArmEvidence) -> ArmEvidence | None:
    digests = list(execution.series.batch_digest)
    if not digests:
        return None
    long = execution.long_replay
    if long is not None:
        blocks = [_of(block, batches=f"one batch {block.steps} times") for block in long.blocks]
        long = _of(long, distinct_batches=1, blocks=blocks)
    return replace(_series(execution, batch_digest=[digests[0]] * len(digests)), long_replay=long)


def as_low_as_trained(execution: ArmEvidence) -> ArmEvidence | None:
    """Return a control whose later losses are far below the candidate's."""
    loss = execution.series.loss.copy()
    loss[1:] -= 10
    return _series(execution, loss=loss)


def inactive_clip(execution: ArmEvidence) -> ArmEvidence | None:
    active = execution.series.clip_active_groups
    if not (active > 0).any():
        return None
    return _series(execution, clip_active_groups=np.zeros_like(active))


def untrained(execution: ArmEvidence) -> ArmEvidence | None:
    start, end = execution.start, execution.end
    if end is None:
        return None
    state = end.state
    if state is not None and start.state is not None and "parameters" in state.digests:
        state = _of(state, digests={**state.digests, "parameters": start.state.digests["parameters"]})
    return _end(execution, trainable_digest=start.trainable_digest, state=state)


def frozen_moved(execution: ArmEvidence) -> ArmEvidence | None:
    end = execution.end
    return None if end is None else _end(execution, frozen_digest=end.frozen_digest + OTHER)


def skipped(execution: ArmEvidence) -> ArmEvidence:
    return _end(execution, skipped_steps=1)


def constant_loss(execution: ArmEvidence) -> ArmEvidence | None:
    loss = execution.series.loss
    if len(loss) < 2:
        return None
    long = execution.long_replay
    if long is not None:
        long = _of(long, blocks=[_of(block, losses=f"one {block.steps}") for block in long.blocks])
    return replace(_series(execution, loss=np.full_like(loss, loss[0])), long_replay=long)


def not_finite_at_the_end(execution: ArmEvidence) -> ArmEvidence | None:
    end = execution.end
    state = None if end is None else _state(end.state, "parameters", lambda digest: digest.rstrip("!") + NOT_FINITE)
    if state is None:
        return None
    assert end is not None
    ranked = execution.rank_steps
    return replace(_end(execution, state=state, trainable_digest=end.trainable_digest + "of NaN"), rank_steps=ranked)


def other_end(execution: ArmEvidence) -> ArmEvidence | None:
    end = execution.end
    state = None if end is None else _state(end.state, "parameters", lambda digest: OTHER + digest)
    if state is None:
        return None
    assert end is not None
    return _end(execution, state=state, trainable_digest=end.trainable_digest + OTHER)


def other_optimizer(execution: ArmEvidence) -> ArmEvidence | None:
    end = execution.end
    state = None if end is None else _state(end.state, "optimizer", lambda digest: OTHER + digest)
    return None if state is None else _end(execution, state=state)


def without_start(execution: ArmEvidence) -> ArmEvidence | None:
    return None if execution.start.state is None else _start(execution, state=None)


def without_end(execution: ArmEvidence) -> ArmEvidence | None:
    return None if execution.end is None or execution.end.state is None else _end(execution, state=None)


def one_step(execution: ArmEvidence) -> ArmEvidence | None:
    return _cut(execution, 1)


def _cut(execution: ArmEvidence, rows: int) -> ArmEvidence | None:
    """Return the execution ended after `rows` rows of its series, in all its records."""
    series, capture, end = execution.series, execution.capture, execution.end
    if end is None or not 0 < rows < len(series.loss):
        return None
    kept = Series(
        series.loss[:rows],
        series.batch_digest[:rows],
        series.clip_active_groups[:rows],
        series.tokens[:rows],
        {name: each[:rows] for name, each in series.metrics.items()},
    )
    long, ranked = execution.long_replay, execution.rank_steps
    steps = end.steps_called - (len(series.loss) - rows)
    if long is not None:
        blocks = long.blocks[:rows]
        steps = sum(block.steps for block in blocks)
        long = _of(long, blocks=blocks, distinct_batches=min(steps, long.distinct_batches))
    if capture is not None:
        which = "replays" if capture.captured else "uncaptured_steps"
        capture = _of(capture, **{which: min(steps, getattr(capture, which))})
    if ranked is not None:
        shorter = {"rows": ranked.rows[:rows], "collectives": ranked.collectives[:rows]}
        ranked = _of(ranked, parameters=ranked.parameters[: rows + 1], **shorter)
    return replace(
        _end(execution, steps_called=steps),
        series=kept,
        capture=capture,
        long_replay=long,
        rank_steps=ranked,
        memory=[_of(each, samples=each.samples[:rows]) for each in execution.memory],
        compared_steps=execution.compared_steps[:rows],
        evaluations=[each for each in execution.evaluations if each.steps <= steps],
    )


WAYS: Mapping[str, tuple[Way, ...]] = {
    "captured": (Way("never captured", never_captured, captured),),
    "uncaptured": (Way("a plain arm captures", captures_itself, declared_plain),),
    "watched": (
        Way("one step was watched", half_watched, captured),
        Way("no step was seen by the watch", blind_watch, captured),
        Way("no step was watched", unwatched, captured, role="older"),
        Way("the device worked outside the graphs", other_work_of_the_device, captured),
    ),
    "finite": (Way("a loss is NaN", not_a_number, every, together=True),),
    "comparable": (
        Way("another batch", another_batch, every),
        Way("fewer tokens", fewer_tokens, every),
        Way("the last step is missing", last_step_missing, every),
    ),
    "equal_start": (Way("other trainable parameters", other_parameters, every),),
    "equal_frozen": (Way("other frozen parameters", other_frozen, every),),
    "equal_state": (Way("another generator", other_generator, every),),
    "guards": (
        Way("one batch at every step", one_batch, guarded("distinct_batches"), alone=False),
        Way("no clip was active", inactive_clip, guarded("clip_active_steps"), alone=False),
        Way("the control ends lower", as_low_as_trained, is_control),
    ),
    "trained": (
        Way("parameters unchanged", untrained, trained, together=True),
        Way("frozen parameters moved", frozen_moved, every, together=True),
        Way("an update was left out", skipped, trained, together=True),
        Way("a constant loss", constant_loss, trained, together=True),
    ),
    "finite_end": (Way("a parameter ended as NaN", not_finite_at_the_end, every, together=True),),
    "equal_ends": (
        Way("a parameter ended otherwise", other_end, in_bits),
        Way("the optimizer ended otherwise", other_optimizer, in_bits),
    ),
    "recorded": (
        Way("no state at the start", without_start, every, together=True),
        Way("no state at the end", without_end, every, together=True),
    ),
    "enough_steps": (Way("cut off after one step", one_step, every, alone=False),),
}
