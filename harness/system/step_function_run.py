"""Train with a step function, uncaptured or captured."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from harness.errors import HarnessError
from harness.evidence.arm_records import CAPTURES_ITSELF, RESUMES
from harness.system.adapter_checks import (
    require_kept,
    require_loss,
    require_metrics,
    require_parameters,
    require_same_parameters,
    require_state,
    require_updated,
)
from harness.system.batches import require_batch, structure_of
from harness.system.built import StepFunction
from harness.system.protocol import CaptureRecord, GradientWatch, NotAvailable, Scalar
from harness.system.users_code import innermost_frame

if TYPE_CHECKING:
    from torch import Tensor

    from harness.system.replay.captured_step import CapturedStep
    from harness.system.replay.traced import TracedStep


# The kinds of outputs that a captured step has in addition to its loss.
BUFFERS, GRADIENTS, MADE, METRICS, STATE = "buffer", "gradient", "made", "metric", "state"


class _Shape:
    """The static buffers for batches of one shape, and the captured step that reads these buffers, if it exists."""

    def __init__(self, batch: Mapping[str, Tensor], device: Any) -> None:
        self.static = {name: tensor.detach().to(device).clone() for name, tensor in batch.items()}
        self.require_gradients = {name for name, tensor in batch.items() if tensor.requires_grad}
        self.captured: CapturedStep | TracedStep | None = None
        self.gradients: Mapping[str, Tensor] = {}
        self.watch: GradientWatch | None = None  # observed the gradients while the step was recorded; or None


class StepFunctionRun:
    """A training with a step function, uncaptured or captured: as a CUDA graph on a GPU, as a recording on a CPU."""

    def __init__(self, function: StepFunction, *, capture: str, layers: int, warm_steps: int = 0) -> None:
        """Start a run from the functions that `build` returned. warm_steps: number of plain steps before a capture.

        Raise `NotAvailable` if there are warm steps and the step makes its capture by itself.
        """
        self._requested, self._layers, self._warm_steps = capture != "none", layers, warm_steps
        if warm_steps and function.captured is not None:
            raise NotAvailable(
                "this step makes its capture by itself, so `warm_steps` has no effect; remove `warm_steps` from the arm"
            )
        # Names of the tensors that belonged to no module and no optimizer when the state was first read. None: the
        # state was not read yet.
        self._first_found: set[str] | None = None
        self._captures_itself = function.captured is not None
        self._shapes: dict[tuple[object, ...], _Shape] = {}
        self._metrics_are_kept = False
        self._failure: str | None = None
        self._captures = self._replays = self._uncaptured = self._warm = 0
        self._stream: Any = None
        self._watch_of: Callable[[Mapping[str, Tensor]], GradientWatch] | None = None
        self._begin(function)

    def _begin(self, function: StepFunction) -> None:
        """Check the functions that `build` returned, and read the parameters and the first batch from them."""
        from harness.system.replay.reachable import reach
        from harness.system.replay.snapshots import Snapshot

        self._function = function
        self._parameters = _trained_parameters(function)
        found = reach(function.step, function.parameters, function.after)
        require_updated(self._parameters, found.optimizers, function.parameters)
        self._shared = Snapshot(each for each in found.places if each.is_shared)
        self._device = next(iter(self._parameters.values())).device
        try:
            first = function.batch(0)
        except Exception as error:
            # a function of another name may be in the wrong place of what `build` returned
            if (own_name := getattr(function.batch, "__name__", "batch")) != "batch":
                error.add_note(
                    f"the harness called `{own_name}` with the index 0, because build returned it as `batch`"
                )
            raise
        self._current = self._select(require_batch(first, 0, function.batch))
        self._structure = structure_of(first)

    def step(self, index: int) -> Tensor:
        batch = self._batch(index)
        self._current = self._select(batch)
        for name, buffer in self._current.static.items():
            source = batch[name].detach() if batch[name].requires_grad else batch[name]
            on_host = self._device.type == "cuda" and source.device.type == "cpu"
            buffer.copy_(source.pin_memory() if on_host else source, non_blocking=True)
        ours = self._requested and not self._captures_itself
        is_warm = ours and self._warm < self._warm_steps
        if ours and not is_warm and self._failure is None and self._current.captured is None:
            self._capture(self._current)
        if self._current.captured is None:
            self._warm += is_warm
            self._uncaptured += not is_warm
            loss = self._uncaptured_step()
        else:
            self._replays += 1
            loss = self._current.captured.replay()
            for name, gradient in _of_kind(GRADIENTS, self._current.captured.outputs).items():
                # Set `.grad`, because the replay of a CUDA graph sets it, too.
                self._parameters[name].grad = gradient
        from harness.devices.host_waits import after_the_step

        with self._as_on_a_device(), after_the_step():
            self._function.after()
        return loss

    def _as_on_a_device(self) -> AbstractContextManager[None]:
        from harness.system.replay.cpu_as_device import as_on_a_device

        return as_on_a_device() if self._device.type == "cpu" else nullcontext()

    def _uncaptured_step(self) -> Tensor:
        """Execute a step without a capture and return its loss.

        If the step raises an error after a capture has failed, and the two errors are different, a note on the step's
        error gives the reason of the failed capture. A failed capture may leave a library in an unusable state.
        """
        try:
            return self.step_body()().detach().clone()
        except HarnessError:
            raise
        except Exception as error:
            if self._failure is not None and not self._is_told_by(self._failure, error):
                error.add_note(f"the capture of this step had failed before: {self._failure}")
            raise

    def _is_told_by(self, failure: str, error: Exception) -> bool:
        """Return True if the failed capture and the step's error have the same message or, on a CPU, the same line of
        code.

        On a CPU the capture runs on fake tensors, so the messages of the same error differ.
        """
        frame = innermost_frame(error)
        at_its_line = frame is not None and f"{Path(frame.file).name}:{frame.line}" in failure
        return (at_its_line and self._device.type == "cpu") or str(error).strip().partition("\n")[0] in failure

    def save(self, path: Path) -> None:
        """Save with the `save` of the step function. Raise `NotAvailable` if the step function has no `save`."""
        self._function.given("save")(path)

    def load(self, path: Path) -> None:
        """Load with the `load` of the step function. Drop all captures, because the load may have replaced tensors that
        the captures use."""
        self._function.given("load")(path)
        self.forget_captures()
        self._parameters = _trained_parameters(self._function)

    def evaluate(self) -> Mapping[str, float]:
        """Call the `evaluate` of the step function, and return its numbers by name.

        Raise `NotAvailable` if there is no such function, and `AdapterError` if its result is neither numbers nor None.
        """
        from harness.system.adapter_checks import require_values

        evaluate = self._function.given("evaluate")
        return require_values(evaluate(), evaluate)

    def _batch(self, index: int) -> dict[str, Tensor]:
        """Return the batch of a step. The work that creates the batch does not count as work of the step."""
        from harness.devices.host_waits import not_of_the_step

        with not_of_the_step():
            given = self._function.batch(index)
        return require_batch(given, index, self._function.batch, self._structure)

    def step_body(self) -> Callable[[], Tensor]:
        copied, step = self._copied_batch(), self._function.step

        def body() -> Tensor:
            batch = copied()
            with self._as_on_a_device():
                return require_loss(step(batch), step, "step(batch)")

        return body

    def _copied_batch(self) -> Callable[[], Any]:
        """Return a function that creates the batch for a step, in the structure of `batch(index)`.

        The tensors are copies of the static buffers, so that the step cannot change the buffers in place.
        """
        static, structure, asked = self._current.static, self._structure, self._current.require_gradients
        if not asked:
            return lambda: structure.filled({name: tensor.clone() for name, tensor in static.items()})
        return lambda: structure.filled(
            {name: tensor.clone().requires_grad_(name in asked) for name, tensor in static.items()}
        )

    def facts(self) -> Mapping[str, Scalar]:
        known: dict[str, Scalar] = {
            "device": str(self._device),
            "layers": self._layers,
            "trainable_parameters": sum(parameter.numel() for parameter in self._parameters.values()),
        }
        resumes = self._function.save is not None and self._function.load is not None
        # If the step makes its capture by itself, its first step may create buffers for the capture that a plain step
        # does not have.
        itself = self._requested and self._captures_itself
        return known | ({CAPTURES_ITSELF: True} if itself else {}) | ({RESUMES: True} if resumes else {})

    def inputs(self) -> Mapping[str, Tensor]:
        return self._current.static

    def parameters(self) -> Mapping[str, Tensor]:
        require_same_parameters(self._function.parameters, self._parameters)
        return self._parameters

    def frozen(self) -> Mapping[str, Tensor]:
        return {}

    def state_roots(self) -> list[object]:
        return [self._function.step]

    def state_tensors(self) -> Mapping[str, Tensor]:
        return {**self._named_state(), **self._parameters}

    def _named_state(self) -> dict[str, Tensor]:
        return require_state(self._function.state(), self._function.state)

    def state(self) -> Mapping[str, Mapping[str, Tensor]]:
        """Return the state that the harness found from the step, and the further state that `build` named."""
        from harness.system.replay.found_state import state_of
        from harness.system.replay.holders import LOCALS
        from harness.system.replay.reachable import reach

        found = reach(self._function.step, self._function.parameters, self._function.after)
        found.generators |= reach(self._function.batch).generators
        state = state_of(found, self._parameters)
        loose = state["tensors"]
        self._first_found = set(loose) if self._first_found is None else self._first_found
        # The variables of a generator function include the last batch and loss. These are not state, so leave them out.
        lasting = {name: each for name, each in loose.items() if name in self._first_found or LOCALS not in name}
        return {**state, "tensors": {**lasting, **self._named_state()}}

    def gradients(self) -> Mapping[str, Tensor]:
        """Return the gradients of the last step: from the outputs of a recording's replay, otherwise from `.grad`."""
        current = self._current
        if current.captured is None:
            return self._leaf_gradients()
        return _of_kind(GRADIENTS, current.captured.outputs) or current.gradients

    def record_under(self, watch: Callable[[Mapping[str, Tensor]], GradientWatch]) -> None:
        """Store the function that makes a `GradientWatch`, which observes the gradients while a step is recorded on a
        CPU. A CUDA graph is captured without a `GradientWatch`, because replays would repeat the copies that it
        makes."""
        self._watch_of = watch

    def made_gradients(self) -> tuple[Mapping[str, Tensor], Collection[str]] | None:
        """Return copies of those gradients that the recorded step changed after the backward pass, with their values
        from before the change. Also return the names of the gradients that the optimizer overwrote. Return None if the
        values are not certain."""
        captured, watch = self._current.captured, self._current.watch
        if captured is None or watch is None or not watch.is_sure():
            return None
        return _of_kind(MADE, captured.outputs), watch.written

    def metrics(self) -> Mapping[str, Tensor]:
        """Return the metrics of the last step. A replay writes to the metric tensors of the captured step."""
        captured = self._current.captured
        return self._named_metrics() if captured is None else _of_kind(METRICS, captured.outputs)

    def forget_captures(self) -> None:
        """Drop every capture, so that the next step with any shape of batches is captured again."""
        for shape in self._shapes.values():
            getattr(shape.captured, "release", lambda: None)()
            if shape.gradients:  # gradients in the memory pool of the graph would keep the pool alive
                for parameter in self._parameters.values():
                    parameter.grad = None
            shape.captured, shape.gradients, shape.watch = None, {}, None

    def capture_record(self) -> CaptureRecord:
        if self._captures_itself:
            record: CaptureRecord = self._function.given("captured")()
            return record
        captured = self._current.captured
        steps = [shape.captured for shape in self._shapes.values() if shape.captured is not None]
        mechanism: Literal["cuda_graph", "traced"] = "cuda_graph" if self._device.type == "cuda" else "traced"
        return CaptureRecord(
            mechanism=mechanism if self._requested else None,
            requested=self._requested,
            captured=bool(steps) and self._failure is None,
            failure=self._failure,
            captures=self._captures,
            warmup_steps=sum(getattr(step, "warmup_steps", 0) for step in steps),
            replays=self._replays,
            uncaptured_steps=self._uncaptured,
            recorded_operations=sum(getattr(step, "operations", 0) for step in steps),
            fake_pass_clean=getattr(captured, "fake_pass_clean", None),
            graphs={
                f"{number}.{label}": handle
                for number, step in enumerate(steps)
                for label, handle in getattr(step, "raw_graphs", dict)().items()
            },
            static_buffers={} if captured is None else captured.buffers.seen(),
            captured_addresses={} if captured is None else captured.buffers.captured,
            host_changes=[] if captured is None else captured.host_changes,
            host_numbers=None if captured is None else captured.host_numbers,
            asked_whether_captured=getattr(captured, "asked_whether_captured", []),
            as_written=getattr(captured, "as_written", []),
            warm_steps=self._warm,
            unseen_operators=getattr(captured, "unseen_operators", []),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.forget_captures()
        self._shapes.clear()
        self._shared.restore()  # the next arm in this process must start as this arm did

    def _select(self, batch: Mapping[str, Tensor]) -> _Shape:
        key = tuple((name, tuple(each.shape), each.dtype, each.requires_grad) for name, each in sorted(batch.items()))
        if key not in self._shapes:
            self._shapes[key] = _Shape(batch, self._device)
        return self._shapes[key]

    def _named_metrics(self) -> dict[str, Tensor]:
        function = self._function.metrics
        metrics = require_metrics(function(), function)
        if not self._metrics_are_kept:
            require_kept(metrics, require_metrics(function(), function), function)
            self._metrics_are_kept = True
        return metrics

    def _kept_results(self) -> Callable[[], Mapping[str, Tensor]]:
        """Return a function. Called after a step, it returns the tensors that the step stored for later use.

        These tensors are of three kinds: metric tensors, tensors that the step assigned to registered buffers of a
        module, and tensors with which the step replaced other tensors in the state of an optimizer. If the step is
        captured, each replay computes new values of the tensors that the function returned in the capture.
        """
        before, kept = self._registered_buffers(), self._kept_by_optimizers()

        def results() -> Mapping[str, Tensor]:
            now = self._registered_buffers()
            bound = {name: each for name, each in now.items() if each is not before.get(name)}
            other = self._kept_by_optimizers()
            anew = {name: each for name, each in other.items() if kept.get(name, each) is not each}
            left = {**_named(BUFFERS, bound), **_named(STATE, anew)}
            # Leave out tensors on other devices, to which no replay writes.
            left = {name: each for name, each in left.items() if each.device == self._device}
            return {**left, **_named(METRICS, self._named_metrics())}

        return results

    def _registered_buffers(self) -> dict[str, Tensor]:
        from harness.system.replay.places import joined
        from harness.system.replay.reachable import reach

        modules = reach(*self.state_roots()).modules
        return {joined(path, name): each for path, module in modules.items() for name, each in module.named_buffers()}

    def _kept_by_optimizers(self) -> dict[str, Tensor]:
        from harness.system.replay.reachable import reach
        from harness.system.replay.snapshots import Snapshot

        return {slot.name: each for slot, each in Snapshot(reach(*self.state_roots()).of_optimizers).tensors()}

    def _leaf_gradients(self) -> dict[str, Tensor]:
        return {name: p.grad for name, p in self._parameters.items() if p.grad is not None}

    def _capture(self, shape: _Shape) -> None:
        """Capture the step with the buffers of `shape`. If the capture fails, store the error and train uncaptured."""
        from harness.system.replay.fake_step import FakeTensorsLeftError

        static = lambda: {**shape.static, **self._parameters}
        capture = self._capture_graph if self._device.type == "cuda" else self._record_trace
        try:
            capture(shape, static)
        # This error must end the arm. Otherwise the training would continue with fake tensors.
        except FakeTensorsLeftError:
            raise
        except HarnessError as error:
            self._failure = str(error)
            return
        self._captures += 1

    def _record_trace(self, shape: _Shape, static: Callable[[], Mapping[str, Tensor]]) -> None:
        from harness.system.replay.traced import TracedStep

        watch = None if self._watch_of is None else self._watch_of(self._parameters)
        kept = self._kept_results()

        def outputs() -> Mapping[str, Tensor]:
            made = {} if watch is None else _named(MADE, watch.copies)
            return {**_named(GRADIENTS, self._leaf_gradients()), **made, **kept()}

        traced = TracedStep(
            self.step_body(),
            self.state_tensors,
            outputs,
            static=static,
            roots=self.state_roots(),
            under=lambda: watch or nullcontext(),
        )
        traced.record()
        shape.captured, shape.watch = traced, watch

    def _capture_graph(self, shape: _Shape, static: Callable[[], Mapping[str, Tensor]]) -> None:
        from harness.devices.graphs import new_stream
        from harness.system.replay.captured_step import CapturedStep

        self._stream = self._stream or new_stream()
        captured = CapturedStep(
            self.step_body(),
            self.state_tensors,
            static,
            self._kept_results(),
            roots=self.state_roots(),
            stream=self._stream,
        )
        captured.capture()
        shape.captured, shape.gradients = captured, self._leaf_gradients()


def _named(kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{kind} {name}": tensor for name, tensor in tensors.items()}


def _of_kind(kind: str, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name[len(kind) + 1 :]: tensor for name, tensor in outputs.items() if name.startswith(f"{kind} ")}


def _trained_parameters(function: StepFunction) -> dict[str, Tensor]:
    """Return the parameters that `build` named and that are trained. The other named tensors are watched as state.

    Registered buffers are left out, because only a forward pass changes them. Frozen tensors are left out if other
    tensors require gradients.
    """
    from harness.system.replay.found_state import same
    from harness.system.replay.reachable import reach

    parameters = require_parameters(function.parameters(), function.parameters)
    found = reach(function.step, function.parameters)
    buffers = {same(tensor) for module in found.modules.values() for tensor in module.buffers()}
    trained = {name: tensor for name, tensor in parameters.items() if same(tensor) not in buffers}
    return {name: tensor for name, tensor in trained.items() if tensor.requires_grad} or trained
