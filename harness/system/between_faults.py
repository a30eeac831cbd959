"""Plant faults in what a system does between steps: what a checkpoint loses, what an evaluation leaves behind.

They change nothing until the system is saved, loaded or evaluated. Importing this needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

from harness.system.faulty_run import FaultyRun
from harness.system.protocol import Expectation, HasParameters, HasState
from harness.system.shards import local

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

MOMENTS = ("exp_avg", "momentum", "square_avg")
COUNTS = ("step",)
SCALE = 10.0
OTHER = 1.5


class CheckpointFault(FaultyRun):
    """Changes what is saved, or what is there after a load."""

    _loaded = False

    def _replace_capabilities(self) -> None:
        if hasattr(self._inner, "save") and hasattr(self._inner, "load"):
            self.save, self.load = self._save, self._load

    def _save(self, path: Path) -> None:
        cast("Any", self._inner).save(path)

    def _load(self, path: Path) -> None:
        cast("Any", self._inner).load(path)
        self._loaded = True
        self._after_load()

    def _after_load(self) -> None:
        """Change what was loaded."""

    def _parameters(self) -> list[Tensor]:
        inner = self._inner
        return list(map(local, inner.parameters().values())) if isinstance(inner, HasParameters) else []

    def _optimizer(self, begins: tuple[str, ...]) -> list[Tensor]:
        """Return the tensors of the optimizer's state whose own names begin with one of these texts."""
        state = self._inner.state().get("optimizer", {}) if isinstance(self._inner, HasState) else {}
        return [local(tensor) for name, tensor in state.items() if name.rpartition(".")[2].startswith(begins)]

    def _save_others(self, path: Path, values: list[Tensor]) -> None:
        """Save with these values instead of the parameters' own."""
        import torch

        parameters = self._parameters()
        with torch.no_grad():
            kept = [parameter.detach().clone() for parameter in parameters]
            torch._foreach_copy_(parameters, values)
            cast("Any", self._inner).save(path)
            torch._foreach_copy_(parameters, kept)


class IdleLoad(CheckpointFault):
    def _load(self, path: Path) -> None:
        """Change nothing."""


class EmptyCheckpoint(CheckpointFault):
    def _save(self, path: Path) -> None:
        """Write nothing."""

    def _load(self, path: Path) -> None:  # noqa: ARG002 - there is nothing at it
        """Change one parameter, so that something seems to have been loaded."""
        import torch

        with torch.no_grad():
            self._parameters()[0].add_(1.0)


class StaleCheckpoint(CheckpointFault):
    """The copy that is saved was made before the last step."""

    def step(self, index: int) -> Tensor:
        self._before = [parameter.detach().clone() for parameter in self._parameters()]
        return self._inner.step(index)

    def _save(self, path: Path) -> None:
        self._save_others(path, self._before)


class HalfCheckpoint(CheckpointFault):
    def _save(self, path: Path) -> None:
        self._save_others(path, [parameter.detach().half().to(parameter.dtype) for parameter in self._parameters()])


class ScaledCheckpoint(CheckpointFault):
    def _save(self, path: Path) -> None:
        self._save_others(path, [parameter.detach() * SCALE for parameter in self._parameters()])


class UnsavedParameter(CheckpointFault):
    """The last one that the checkpoint would have changed."""

    def _load(self, path: Path) -> None:
        import torch

        before = [parameter.detach().clone() for parameter in self._parameters()]
        super()._load(path)
        pairs = zip(self._parameters(), before, strict=True)
        changed = [(parameter, old) for parameter, old in pairs if not torch.equal(parameter, old)]
        if changed:
            parameter, old = changed[-1]
            with torch.no_grad():
                parameter.copy_(old)


class LostMoments(CheckpointFault):
    begins: tuple[str, ...] = MOMENTS

    def _after_load(self) -> None:
        import torch

        with torch.no_grad():
            torch._foreach_zero_(self._optimizer(self.begins))


class LostStepCount(LostMoments):
    begins = COUNTS


class LostGenerators(CheckpointFault):
    def _after_load(self) -> None:
        from harness.system.replay.generators import seed_all

        seed_all(271_828)


class RestartedData(CheckpointFault):
    """Batches begin anew with the first."""

    _first: int | None = None

    def step(self, index: int) -> Tensor:
        if self._loaded and self._first is None:
            self._first = index
        return self._inner.step(index - (self._first or 0))


class WeightsAlone(RestartedData, LostMoments):
    """Optimizer, generators and the place in the data are those of a fresh start."""

    begins = (*MOMENTS, *COUNTS)

    def _after_load(self) -> None:
        from harness.system.replay.generators import seed_all

        super()._after_load()
        seed_all(271_828)


class RepeatedBatch(CheckpointFault):
    shift = -1

    def step(self, index: int) -> Tensor:
        return self._inner.step(index + self.shift if self._loaded else index)


class SkippedBatch(RepeatedBatch):
    shift = 1


class DoubledFirstStep(CheckpointFault):
    def step(self, index: int) -> Tensor:
        if self._loaded:
            self._loaded = False
            self._inner.step(index)
        return self._inner.step(index)


class LostFirstUpdate(CheckpointFault):
    def step(self, index: int) -> Tensor:
        import torch

        if not self._loaded:
            return self._inner.step(index)
        self._loaded = False
        before = [parameter.detach().clone() for parameter in self._parameters()]
        loss = self._inner.step(index)
        with torch.no_grad():
            torch._foreach_copy_(self._parameters(), before)
        return loss


class EvaluationFault(FaultyRun):
    """Changes what an evaluation does, or returns."""

    def _replace_capabilities(self) -> None:
        if hasattr(self._inner, "evaluate"):
            self.evaluate = self._evaluate

    def _evaluate(self) -> Any:
        return cast("Any", self._inner).evaluate()


class IdleEvaluation(EvaluationFault):
    _first: Any = None

    def _evaluate(self) -> Any:
        self._first = super()._evaluate() if self._first is None else self._first
        return self._first


class NanEvaluation(EvaluationFault):
    def _evaluate(self) -> Mapping[str, float]:
        super()._evaluate()
        return {"loss": float("nan")}


class OtherEvaluation(EvaluationFault):
    def _evaluate(self) -> Mapping[str, float]:
        from harness.system.evaluated_values import require_values

        returned = require_values(super()._evaluate(), cast("Any", self._inner).evaluate)
        return {name: OTHER * value + 1.0 for name, value in returned.items()}


class TrainingEvaluation(EvaluationFault):
    def _evaluate(self) -> Any:
        returned = super()._evaluate()
        self._inner.step(0)
        return returned


class DrawingEvaluation(EvaluationFault):
    def _evaluate(self) -> Any:
        import torch

        returned = super()._evaluate()
        torch.rand(1)
        return returned


class ConsumingEvaluation(EvaluationFault):
    _taken = 0

    def _evaluate(self) -> Any:
        self._taken += 1
        return super()._evaluate()

    def step(self, index: int) -> Tensor:
        return self._inner.step(index + self._taken)


class _Row(NamedTuple):
    wrapper: type[FaultyRun]
    summary: str
    kind: str
    reason: str
    figures: Mapping[str, str]


def _lost(category: str) -> dict[str, str]:
    return {"not_restored": category}


_ROWS = {
    "idle_load": _Row(IdleLoad, "the load does nothing", "resume", "nothing_loaded", {}),
    "empty_checkpoint": _Row(
        EmptyCheckpoint,
        "the save writes nothing, and the load changes something",
        "resume",
        "vacuous_nothing_saved",
        {},
    ),
    "stale_checkpoint": _Row(
        StaleCheckpoint,
        "parameters are saved as they were a step before",
        "resume",
        "not_restored",
        _lost("parameters"),
    ),
    "half_checkpoint": _Row(
        HalfCheckpoint, "parameters are saved in half precision", "resume", "not_restored", _lost("parameters")
    ),
    "unsaved_parameter": _Row(
        UnsavedParameter, "one parameter is not in the checkpoint", "resume", "not_restored", _lost("parameters")
    ),
    "scaled_checkpoint": _Row(
        ScaledCheckpoint, f"parameters come back {SCALE:g} times as large", "resume", "exceeds_tolerance", {}
    ),
    "lost_moments": _Row(
        LostMoments, "the optimizer's moments are zero after the load", "resume", "not_restored", _lost("optimizer")
    ),
    "lost_step_count": _Row(
        LostStepCount,
        "the optimizer's count of steps is zero after the load: bias corrections restart",
        "resume",
        "not_restored",
        _lost("optimizer"),
    ),
    "lost_generators": _Row(
        LostGenerators, "random generators are seeded anew by the load", "resume", "not_restored", _lost("generators")
    ),
    "restarted_data": _Row(
        RestartedData, "after the load batches begin with the first", "resume", "unequal_batches", {}
    ),
    "weights_alone": _Row(
        WeightsAlone,
        "the load restores the weights alone: no optimizer, no generator, no place in the data",
        "resume",
        "unequal_batches",
        _lost("generators, optimizer"),
    ),
    "repeated_batch": _Row(
        RepeatedBatch, "after the load the last batch before it is read again", "resume", "unequal_batches", {}
    ),
    "skipped_batch": _Row(SkippedBatch, "the load leaves one batch out", "resume", "unequal_batches", {}),
    "doubled_first_step": _Row(
        DoubledFirstStep, "the first step after the load is executed twice", "resume", "differs", {}
    ),
    "lost_update_after_load": _Row(
        LostFirstUpdate, "the first update after the load is taken back", "resume", "differs", {}
    ),
    "idle_evaluation": _Row(
        IdleEvaluation, "nothing is evaluated but the first time", "evaluation", "vacuous_evaluations", {}
    ),
    "nan_evaluation": _Row(NanEvaluation, "evaluations return NaN", "evaluation", "evaluation_not_finite", {}),
    "other_evaluation": _Row(
        OtherEvaluation, "evaluations return other numbers", "evaluation", "evaluations_differ", {}
    ),
    "training_evaluation": _Row(
        TrainingEvaluation, "an evaluation trains on a batch", "evaluation", "evaluation_changed_state", {}
    ),
    "drawing_evaluation": _Row(
        DrawingEvaluation,
        "an evaluation draws from a generator of the training's",
        "evaluation",
        "evaluation_changed_state",
        {"changed": "generators"},
    ),
    "consuming_evaluation": _Row(
        ConsumingEvaluation, "an evaluation takes the next batch from the training", "evaluation", "unequal_batches", {}
    ),
}
WRAPPERS = {name: row.wrapper for name, row in _ROWS.items()}
SUMMARIES = {name: row.summary for name, row in _ROWS.items()}
# what a candidate that is saved and loaded with each seed is found out by; of other faults it need not end worse
_OVER_SEEDS = {
    "idle_load": "nothing_loaded",
    "empty_checkpoint": "vacuous_nothing_saved",
    "scaled_checkpoint": "worse",
    **dict.fromkeys(("restarted_data", "weights_alone", "repeated_batch", "skipped_batch"), "unequal_batches"),
}
BREAKS = {
    name: {row.kind: Expectation("FAIL", row.reason, row.figures)}
    | ({"not_worse": Expectation("FAIL", _OVER_SEEDS[name])} if name in _OVER_SEEDS else {})
    for name, row in _ROWS.items()
}
