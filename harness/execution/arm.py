"""Execute an arm once: open it, start it, make its steps and end it. Each of these stages is recorded as evidence.

A probe is the code that executes a run. Every probe executes its arms with `ArmLife`, so that every kind of claim gets
the same evidence. If a probe needs more facts about each step, it adds watchers to `ArmLife.watchers`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Self, cast

from torch import Tensor

from harness.devices.profiler import Watched
from harness.evidence.arm_records import ArmEnd, ArmStart, Clip, EndDifference, GhostReplay, MovedApart, StepWatch
from harness.evidence.plan_records import Run
from harness.evidence.run_records import Part
from harness.execution.opening import AnnouncedSteps, opened
from harness.execution.recorder import Recorder
from harness.execution.series_block import Parts, Rows, SeriesBlock
from harness.execution.watchers.capture_attempts import attempts_of
from harness.execution.watchers.capture_watch import CaptureWatch, DrawWatch, Watcher, capture_evidence, capture_record
from harness.execution.watchers.ghost_replay import ghost_replay
from harness.execution.watchers.reductions import digest_of_all, digest_of_rounded
from harness.execution.watchers.state_watch import Ends, StateWatch, median_moved, named_parameters, sampled
from harness.kinds import probe_named
from harness.system.protocol import CaptureRecord, CountsSkippedSteps, HasParameters, Scalar, TrainingRun
from harness.system.replay.found_state import plain_name
from harness.system.replay.operations import OperatorWatch

Digest = Callable[[Mapping[str, Tensor]], str]
# what was observed of an arm: graph launches and replayed work in a few steps, and numbers of operations in all steps
# (None if not every step was observed)
Seen = tuple[Watched, StepWatch | None]
_NO_WATCHER = nullcontext()
# `ghost_replay` compares the last step with an earlier step that replayed the same graphs on another batch. To find
# such a step, `ghost_replay` makes at most this many earlier steps again.
TRIED = 4


class ArmLife:
    """One execution of an arm: a context manager that opens the arm, and closes it at the end, so that its memory is
    free.

    Call the methods in this order: `start`, `steps`, `end`, `census`. Instead of `steps` you may call `begin`, and then
    `step` for each step. `train` makes all of these calls, and also observes the steps of a captured arm.
    """

    training: TrainingRun
    state: StateWatch

    def __init__(
        self,
        run: Run,
        arm: str,
        recorder: Recorder,
        replica: int | None = None,
        *,
        ends: Ends | None = None,
        facts: Mapping[str, Scalar] = MappingProxyType({}),
        digest: Digest = digest_of_all,
        follows: bool | None = None,
    ) -> None:
        """Prepare an execution of `arm`. `__enter__` opens the arm.

        replica: number of this execution; None if the arm is executed only once (the names of its phases then contain
        no number). ends: the final tensors of earlier executions, with which the final tensors of this execution are
        compared. facts: facts to record in addition to the system's facts. digest: computes the digest of the trainable
        parameters. follows: True to find out, for each tensor that the steps create, whether it is training state or,
        for example, a log. False to record only a digest of each such tensor, because the judge uses the roles that
        another arm's records show for these tensors. None means True if `ends` is given and the probe does not time the
        arm; otherwise nothing is recorded about such tensors.
        """
        self.run, self.arm, self.planned, self.recorder = run, arm, run.arms[arm], recorder
        self.replica, self._named = replica or 0, arm if replica is None else f"{arm}.{replica}"
        self._ends, self._facts, self._digest, self._follows = ends, facts, digest, follows
        self.parts = Parts(arm, self.replica, recorder)
        self.steps_called = 0
        self.input_names: list[str] | None = None  # names of the last step's inputs
        self.input_shapes: int | None = None
        self._drawing: DrawWatch | None = None
        # operators of an uncaptured arm's first step after the warm-up (which a captured arm captures); None before it
        self._first: OperatorWatch | None = None
        self.last_loss: Tensor | None = None
        self.loss_terms: float | None = None  # largest sum of the absolute values of a loss's terms; None: unknown
        self.clip: Clip | None = None  # what a watcher observed about gradient clipping
        # The watchers are nested: the first one in the list is called first before a step, and last after a step.
        self.watchers: list[Watcher] = []
        self._block: SeriesBlock | None = None
        self._announced = 0
        # index of a watched step -> the `id()` of each graph that the step replayed
        self._replays: dict[int, list[int]] = {}

    def __enter__(self) -> Self:
        self.phase("open")
        self._opened = opened(self.run, self.arm)
        self.training = self._opened.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        close = self._opened.__exit__
        self.recorder.failed_after = None if error is None else self.steps_called
        vars(self).clear()  # this frees the arm's memory even if a caller still holds this object
        close(kind, error, trace)

    def anew(self, replica: int, facts: Mapping[str, Scalar]) -> ArmLife:
        """Return an `ArmLife` for one more execution of this arm. The new object uses the arm that is open and does not
        open it again."""
        life = ArmLife(self.run, self.arm, self.recorder, replica, facts=facts, digest=self._digest)
        life.training = self.training
        return life

    def phase(self, name: str) -> None:
        """Record that this execution enters a phase, unless the execution or its worker is already in this phase."""
        if self.recorder.current_phase not in (name, f"{self._named}: {name}"):
            self.recorder.phase(f"{self._named}: {name}")

    def train(self, indices: range, after: Callable[[int], None] = lambda _steps: None) -> None:
        """Execute the whole arm: start it, make the steps `indices`, end it, and record its capture."""
        self.start()
        self.train_on(indices, after)

    def train_on(
        self, indices: range, after: Callable[[int], None] = lambda _steps: None, *, watched: bool = True
    ) -> CaptureWatch:
        """Make the steps of the started arm, end the arm, and record its capture. Return the observations of the steps.
        after: called after each step with the number of steps made so far. watched: False to observe no step."""
        with self.watched(indices, asked=watched) as watch:
            self.steps(indices, after)
        self.end()
        self.census(watch.seen)
        return watch

    @contextmanager
    def watched(self, indices: range, *, asked: bool = True) -> Iterator[CaptureWatch]:
        """Observe the steps `indices` in the `with` block, if the run's probe requires observed steps and `asked` is
        true. Yield the object that observes them."""
        of_arm = (self.run, self.planned, self.training, self.recorder, self.parts)
        probe = probe_named(self.run.probe)
        watches = asked and probe.watches_steps
        with CaptureWatch(*of_arm, indices, self.capture, watches=watches) as watch:
            self.watchers = watch.around(self.watchers)
            if watches and probe.arm_by_arm and self.replica == 0 and self.planned.arm.ranks == 1:
                attempts = attempts_of(self.training)
                self.watchers.insert(
                    0,
                    Watcher(
                        before=lambda _index: setattr(attempts, "replayed", []),
                        after=lambda index: self._replays.update({index: [*map(id, attempts.replayed or ())]}),
                    ),
                )
            yield watch

    def start(self) -> None:
        """Record the state from which this execution starts. Call this before the first step."""
        self.phase("start")
        moves = self.planned.moves and self.replica == 0
        compared = self._ends is not None and not probe_named(self.run.probe).timed
        follows = compared if self._follows is None else self._follows
        self.state = StateWatch(
            self.training, moves=moves, sketched=self.planned.sketches, follows=follows, lent=self._follows is False
        )
        parameters = named_parameters(self.training)
        self._sampled = sampled(parameters)
        trainable, frozen = digests_of(self.training, self._digest)
        rounded_to = self.planned.rounded_to
        self.recorder.write(
            ArmStart(
                arm=self.arm,
                replica=self.replica,
                trainable_digest=trainable,
                frozen_digest=frozen,
                trainable_tensors=len(parameters),
                facts={**self.training.facts(), **self._facts},
                state=self.state.at_start(),
                sketches=self.state.start_sketches,
                trainable_names=sorted(parameters),
                trainable_dtypes=sorted({str(tensor.dtype).removeprefix("torch.") for tensor in parameters.values()}),
                rounded_digest=None if rounded_to is None else digest_of_rounded(parameters, rounded_to),
            )
        )

    def steps(self, indices: range, after: Callable[[int], None] = lambda _steps: None) -> None:
        """Make and record the steps `indices`. After each step call `after` with the number of steps made so far."""
        self.phase("steps")
        block = self.begin(len(indices))
        for index in indices:
            self.step(index)
            after(index + 1)
        block.write()

    def begin(self, steps: int, rows: Rows | None = None) -> SeriesBlock:
        """Begin a series (a table with one row for each step) for `steps` steps. Return an object that collects the
        results of steps until they are written. rows: receives the rows instead of the arm's series file; None to write
        the rows into the file."""
        rows = self.recorder.series(self.arm, self.replica) if rows is None else rows
        self._announced = steps
        self._block = SeriesBlock(self.run, self.recorder, rows, self.training)
        return self._block

    def step(self, index: int, step: Callable[[int], Tensor] | None = None) -> Tensor:
        """Make one step while all watchers observe it. Add its loss, metrics and a digest of its inputs to the series,
        and return its loss. step: a function to call instead of the arm's own function `step`."""
        for watcher in self.watchers:
            self._ask(watcher, watcher.before, index)
        # List the operators that draw random numbers in the second step after the warm-up steps, because libraries have
        # prepared everything that they need by then. If there are too few steps, list those of the last step.
        warm = self.planned.arm.warm_steps
        is_second = self.steps_called == min(1 + warm, max(self._announced, 1) - 1)
        drawing = self.watch_of_draws(index) if is_second else None
        first = OperatorWatch() if self.steps_called == warm and self.planned.arm.capture == "none" else None
        self._first = first or self._first
        watching = self._watching(index) if self.watchers else _NO_WATCHER
        followed, left = self.state.steps, self._announced - self.steps_called - 1
        following = followed.step(left=left) if followed else _NO_WATCHER
        observing = drawing.watch if drawing else _NO_WATCHER
        with drawing or _NO_WATCHER, following, watching, observing, first or _NO_WATCHER:
            loss = (step or self.training.step)(index)
        if followed:
            followed.stepped(loss, left=left)
        self.steps_called += 1
        self.last_loss = loss
        if self._block is not None:
            self._block.add(index, loss)
        for watcher in reversed(self.watchers):
            self._ask(watcher, watcher.after, index)
        if self.steps_called == 1 < self._announced:
            self.state.after_first_step()
        return loss

    def watch_of_draws(self, index: int) -> DrawWatch:
        """Return a watcher that lists the operators which draw random numbers in step `index`. `end` records them."""
        self._drawing = DrawWatch(index)
        return self._drawing

    def end(self) -> None:
        """Write the table's remaining rows, let each watcher write its result, and record the arm's end state."""
        if self._block is not None:
            self._block.write()
            self.input_names, self.input_shapes = self._block.input_names, self._block.input_shapes
        for watcher in reversed(self.watchers):
            self._ask(watcher, watcher.at_end)
        self.phase("end")
        self.recorder.write(self._end_record())

    def _end_record(self) -> ArmEnd:
        """Return the record of the arm's end: its end state, differences from earlier executions, and captures."""
        state = self.state.at_end()
        trainable, frozen = digests_of(self.training, self._digest)
        differences, apart = self._from_other_arms()
        attempts, drawing = attempts_of(self.training), self._drawing
        uncaptured = drawing if self.planned.arm.capture == "none" else None
        operators = attempts.operators | (uncaptured.operators if uncaptured is not None else set())
        return ArmEnd(
            arm=self.arm,
            replica=self.replica,
            trainable_digest=trainable,
            frozen_digest=frozen,
            skipped_steps=self.training.skipped_steps() if isinstance(self.training, CountsSkippedSteps) else 0,
            steps_called=self.steps_called,
            capture_attempts=attempts.count,
            capture_errors=list(attempts.errors),
            state=state,
            differences=differences,
            moved_apart=apart,
            loose=self.state.loose,
            spoiled=self.state.spoiled,
            updates=self.state.updates,
            sketches=self.state.end_sketches,
            replays=attempts.replays,
            input_names=self.input_names,
            input_shapes=self.input_shapes,
            loss_terms=self.loss_terms,
            clip=self.clip,
            operators=sorted(operators) or None,
            first_operators=None if self._first is None else sorted(self._first.names),
            step_form=uncaptured and uncaptured.form,
            draws=drawing and drawing.record(attempts.draws),
            moved=median_moved(self._sampled, sampled(named_parameters(self.training))),
        )

    def _from_other_arms(self) -> tuple[list[EndDifference], list[MovedApart] | None]:
        """Compare this execution with earlier executions. Return the differences between their end states, and the
        differences between their movements (end minus start).

        This execution's end state and movement are kept for comparisons with later executions. The second result is
        None if movements are not compared.
        """
        ends, watch = self._ends, self.state
        if ends is None:
            return [], None
        ended = {**named_parameters(self.training), **watch.end_buffers}
        differences, apart = ends.differences(ended), None
        ends.keep(ended, self.arm, self.replica)
        if watch.moved is not None:
            apart = ends.moves.apart(watch.moved, watch.watched)
            ends.moves.keep(watch.moved, self.arm)
        return differences, apart

    def capture(self) -> CaptureRecord:
        """Ask the system about its capture, and return the system's report."""
        return capture_record(self.training, self.planned)

    def census(
        self,
        seen: Callable[[CaptureRecord], Seen] = lambda _record: (Watched(), None),
        record: CaptureRecord | None = None,
        *,
        asked: bool = False,
    ) -> None:
        """Record evidence about the arm's capture, if the arm's settings request a capture or `asked` is true.

        If an error occurs, the evidence's part `capture` is marked as failed, and the error is not raised. seen: a
        function that returns the observations of the steps. record: what the system reported about its capture; None to
        ask the system.
        """

        def recorded() -> None:
            said = record or self.capture()
            evidence = capture_evidence(self.training, self.arm, self.replica, said, *seen(said))
            # make this test last, because its steps may delete the graphs that `capture_evidence` reads
            ghost = self._ghost_replay() if said.captured else None
            self.recorder.write(evidence.model_copy(update={"ghost": ghost}))

        if asked or self.planned.arm.capture != "none":
            self.phase("census")
            self.parts.ask(recorded, "capture")

    def _ghost_replay(self) -> GhostReplay | None:
        """Test which outputs of the last step (loss and parameters) are computed by the replays in this step. Return
        the result, or None if no step was watched for replays."""
        if not self._replays:
            return None
        *earlier, last = self._replays
        others = [index for index in reversed(earlier) if self._replays[index] == self._replays[last]]
        training, attempts = cast("AnnouncedSteps", self.training), attempts_of(self.training)
        alive = self.recorder.heartbeat, self.run.heartbeat_s / 2
        return ghost_replay(training, attempts, last, others[:TRIED], *alive)

    def _ask(self, watcher: Watcher, question: Callable[..., object] | None, *given: int) -> None:
        if question is None:
            return
        if watcher.parts:
            self.parts.ask(partial(question, *given), *watcher.parts)
        else:
            question(*given)

    @contextmanager
    def _watching(self, index: int) -> Iterator[None]:
        with ExitStack() as stack:
            for watcher in self.watchers:
                if watcher.around is not None:
                    stack.enter_context(self._around(watcher.parts, partial(watcher.around, index)))
            yield

    @contextmanager
    def _around(self, parts: tuple[Part, ...], around: Callable[[], AbstractContextManager[object]]) -> Iterator[None]:
        """Let the context manager that `around` returns observe the `with` block.

        If observing fails, mark these `parts` of the evidence as failed, or raise the error if `parts` is empty. An
        error of the `with` block itself is always raised.
        """
        if not parts:
            with around():
                yield
            return

        def begun() -> AbstractContextManager[object]:
            watch = around()
            watch.__enter__()
            return watch

        watch = self.parts.ask(begun, *parts)
        if watch is None:
            yield
            return
        try:
            yield
        except BaseException:
            # raise the error of the `with` block, even if closing the watcher raises another error
            with suppress(BaseException):
                watch.__exit__(*sys.exc_info())
            raise
        self.parts.ask(partial(watch.__exit__, None, None, None), *parts)


def digests_of(training: TrainingRun, digest: Digest = digest_of_all) -> tuple[str, str]:
    """Return digests of the trainable and of the frozen tensors. Both are "" if the system shows no parameters."""
    if not isinstance(training, HasParameters):
        return "", ""
    frozen = {plain_name(name): tensor for name, tensor in training.frozen().items()}
    return digest(named_parameters(training)), digest_of_all(frozen)
