"""Record the training state at the start and at the end of one execution, as digests by category and name.

Categories are, for example, parameters, buffers and optimizer. The category `LOOSE` has the loose tensors: those that
the step can reach and that belong to no module or optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median_low

import torch
from torch import Tensor

from harness.devices.device import synchronize
from harness.evidence.arm_records import COMPARED, FROZEN, NOT_FINITE, EndDifference, Loose, MovedApart, Sketch, State
from harness.execution.watchers.loose_watch import LOOSE, LooseWatch
from harness.execution.watchers.reductions import (
    digests,
    holding_nan,
    largest_difference,
    made_of,
    not_finite,
    real,
    sketches,
)
from harness.system.protocol import HasParameters, HasState, TrainingRun
from harness.system.replay import generators
from harness.system.replay.found_state import StateByCategory, found_state, is_text, number_of, plain_name
from harness.system.sharded_tensors import whole
from harness.system.wrappers import FaultyRun

# Random generators are not compared here. If the generators of two arms draw different numbers, the trained tensors
# differ, too.
LEFT_OUT = ("generators",)
OPTIMIZER = "optimizer"
STEP = "step"  # name of an optimizer's count of updates, which is judged separately
# Name of BatchNorm's count of batches. It is judged separately, because a recomputed forward pass may change it.
COUNT = "num_batches_tracked"
SAMPLED = 65_536  # of a larger tensor, 65,536 to 131,071 evenly spaced elements are read to measure its movement
MOVES = "moves"  # the name under which an arm stores the movements of its tensors, for arms of another commit


def movable(state: StateByCategory) -> dict[str, Tensor]:
    """Return the tensors whose movement (end minus start) is compared, by `category name`. Tensors of integers and
    flags are included.

    Of an optimizer's state, only tensors with the shape of a parameter are included: averages, slow weights and
    moments. The name of such a tensor contains its data type, unless it is float32.
    """
    shapes = {tensor.shape for tensor in state.get("parameters", {}).values()}
    return {
        f"{category} {name}": tensor
        for category, tensors in state.items()
        if category not in (*LEFT_OUT, OPTIMIZER)
        for name, tensor in tensors.items()
        if name.rpartition(".")[2] != COUNT
    } | {
        f"{OPTIMIZER} {name}{_format(tensor)}": tensor
        for name, tensor in state.get(OPTIMIZER, {}).items()
        if tensor.is_floating_point() and tensor.shape in shapes and name.rpartition(".")[2] != STEP
    }


def _format(tensor: Tensor) -> str:
    return "" if tensor.dtype == torch.float32 else f" ({str(tensor.dtype).removeprefix('torch.')})"


def watched(state: StateByCategory) -> set[str]:
    """Return the names (`category name`) of all tensors of the state that are compared at the end. Of an optimizer's
    state, only the tensors that `movable` returns are included."""
    others = {name: each for name, each in state.items() if name not in (*LEFT_OUT, OPTIMIZER)}
    return {f"{category} {name}" for category, tensors in others.items() for name in tensors} | movable(state).keys()


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of tensors in the host's memory, with complex numbers as pairs of real numbers. Tensors that are
    sharded over ranks are gathered first."""
    return {name: real(tensor).detach().to("cpu", copy=True) for name, tensor in tensors.items()}


def moved(start: Mapping[str, Tensor], end: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, float]]:
    """Return, for each name, the movement `end` - `start` of the tensor and the L2 norm of the tensor at the end. The
    movement is a float32 tensor in the host's memory."""
    found = {}
    for name, tensor in end.items():
        ours = real(tensor).detach().double()
        before = start.get(name)
        alike = before is not None and before.shape == ours.shape
        change = _from(before.to(ours.device).double(), ours) if before is not None and alike else ours
        found[name] = (change.to("cpu", torch.float32, copy=True), float(ours.norm()))
    return found


def _from(before: Tensor, now: Tensor) -> Tensor:
    """Return the change `now` - `before` of each element. A value in `before` that is not finite, and that has changed,
    counts as 0, because, for example, a running minimum starts at infinity.

    The change of an element that is NaN in `before` and in `now` is 0. An example is an entry of a log that was not
    written yet.
    """
    change = _less(now, torch.where(before.isfinite() | (before == now), before, torch.zeros_like(before)))
    return torch.where(before.isnan() & now.isnan(), torch.zeros_like(change), change)


def _less(ours: Tensor, theirs: Tensor) -> Tensor:
    """Return the difference `ours` - `theirs`. The difference of two equal infinities, as in a mask, is 0."""
    return torch.where(ours == theirs, torch.zeros((), dtype=ours.dtype, device=ours.device), ours - theirs)


def sampled(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies, in the host's memory, of evenly spaced elements of each floating-point tensor: at least `SAMPLED`
    and fewer than 2 * `SAMPLED` elements, or all elements of a smaller tensor."""
    plain = {name: real(tensor).detach() for name, tensor in made_of(tensors).items() if not tensor.is_meta}
    return {
        name: each.reshape(-1)[:: max(1, each.numel() // SAMPLED)].to("cpu", torch.float64, copy=True)
        for name, each in plain.items()
        if each.is_floating_point()
    }


def median_moved(start: Mapping[str, Tensor], end: Mapping[str, Tensor]) -> float | None:
    """Return |end - start| / |start| (L2 norms), as the median over the tensors. Tensors that were 0 at the start are
    left out. Return None if no tensor is left."""
    moved = [
        float((end[name] - before).norm() / before.norm())
        for name, before in start.items()
        if name in end and end[name].shape == before.shape and before.any()
    ]
    return median_low(moved) if moved else None


@dataclass
class Moves:
    """The tensors' movements (end minus start) in each arm's first execution in one run, if a claim compares them."""

    _kept: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def apart(self, made: Mapping[str, tuple[Tensor, float]], watched: set[str]) -> list[MovedApart]:
        """Compare the movements (end minus start) of this execution with the kept movements of each other arm. Return
        the differences, one record for each arm.

        made: the result of `moved` for this execution. watched: the names of all tensors of this execution's state. The
        result also names the tensors that are not compared.
        """
        return [self._apart(arm, kept, made, watched) for arm, kept in self._kept.items()]

    def _apart(
        self, arm: str, kept: Mapping[str, Tensor], made: Mapping[str, tuple[Tensor, float]], watched: set[str]
    ) -> MovedApart:
        common = sorted(name for name in made.keys() & kept.keys() if kept[name].shape == made[name][0].shape)
        return MovedApart(
            arm=arm,
            tensors={
                name: (
                    float(_less(made[name][0].double(), kept[name].double()).norm()),
                    float(kept[name].double().norm()),
                    made[name][1],
                )
                for name in common
            },
            uncompared=sorted(watched - set(common)),
            missing=sorted(kept.keys() - set(common)),
        )

    def kept(self, arm: str) -> Mapping[str, Tensor]:
        """Return the kept movements (end minus start) of the tensors of `arm`, or an empty mapping if none are kept."""
        return self._kept.get(arm, {})

    def keep(self, made: Mapping[str, tuple[Tensor, float]], arm: str) -> None:
        """Keep `made`, the movements of the tensors of `arm`, unless movements of an earlier execution of the arm are
        kept."""
        self._kept.setdefault(arm, {name: movement for name, (movement, _) in made.items()})

    def forget(self, arm: str) -> None:
        """Forget the movements of an arm that failed, so that no other arm is compared with it."""
        self._kept.pop(arm, None)


_COUNTERS = ("step", "step_count")  # names of the update counters in torch's optimizers and in the reference trainer
BUFFER = "buffer "  # prefix of the names of buffers among the tensors at the end of an execution
# A difference in a buffer, for example in a mean near 0, counts as rounding if it is at most this number times the
# largest absolute value in all buffers of the arm that was executed earlier.
ROUNDING = 1e-6


class StateWatch:
    """Reads the state of one execution before its first step, after its first step, and after its last step.

    A loose tensor belongs to no module or optimizer. A loose tensor that existed before the first step is state. For a
    loose tensor that the steps created, `LooseWatch` decides whether it is state. If `LooseWatch` observes no step,
    such a tensor is not compared.
    """

    def __init__(
        self,
        training: TrainingRun,
        *,
        moves: bool = False,
        sketched: bool = False,
        follows: bool = False,
        lent: bool = False,
    ) -> None:
        """Prepare to read the state of `training`.

        moves: True to copy the state at the start into the host's memory, and to compute `moved` at the end. sketched:
        True to compute sketches (a few sums of elements) of the parameters at the start and of the whole state at the
        end. follows: True to record the operators of some steps, to decide which of the loose tensors that the steps
        create are state. lent: True to record only digests of these loose tensors, because the judge uses the roles
        that another arm's records show.
        """
        self._training, self._moves, self._sketched, self._lent = training, moves, sketched, lent
        self.start_sketches: dict[str, Sketch] | None = None
        self.end_sketches: dict[str, Sketch] | None = None
        self._start: dict[str, Tensor] = {}
        self.moved: dict[str, tuple[Tensor, float]] | None = None
        self.watched: set[str] = set()  # names (`category name`) of the tensors whose ends may be compared
        self.steps = LooseWatch(lambda: watched_state(training)) if follows else None
        self.loose: Loose | None = None
        self._loose_at_start: frozenset[str] = frozenset()
        # name of each loose tensor after the first step -> True if it contains no NaN
        self._numbers_later: dict[str, bool] = {}
        self.spoiled: list[str] | None = None
        self.updates: list[int] | None = None  # the amounts by which the update counters increased, each amount once
        self._counted: dict[str, float] = {}
        self._counted_later: dict[str, float] = {}
        self.end_buffers: dict[str, Tensor] = {}  # floating-point buffers at the end; the keys are BUFFER + name

    def at_start(self) -> State:
        """Return the state before the first step. Also store what `at_end` needs for its comparisons with the start."""
        state = watched_state(self._training)
        self._begin(state)
        self._counted = _update_counters(state)
        if self._moves:
            self._start = copied(movable(state))
        if self._sketched:
            self.start_sketches = sketched({"parameters": state["parameters"]})
        frozen = self._training.frozen() if isinstance(self._training, HasParameters) else {}
        more = {"numbers": numbers(state), "forms": _forms({**state, FROZEN: frozen})}
        return recorded(state).model_copy(update=more)

    def _begin(self, state: StateByCategory) -> None:
        self._loose_at_start = frozenset(state.get(LOOSE, {}))
        if self.steps is not None:
            self.steps.begin(state)

    def after_first_step(self) -> None:
        """Record which loose tensors (of no module or optimizer) exist after the first step, and which of them contain
        no NaN."""
        if isinstance(self._training, HasState):
            loose = {plain_name(name): tensor for name, tensor in self._training.state().get(LOOSE, {}).items()}
            bad = holding_nan(loose)
            self._numbers_later = {name: name not in bad for name in loose}

    def at_end(self) -> State:
        """Wait for the device, and return the state after the last step."""
        return self._at_end(watched_state(self._training))

    def _at_end(self, state: StateByCategory) -> State:
        synchronize()
        loose = state.get(LOOSE, {})
        if self.steps is not None:
            self.loose = self.steps.loose(state)
        elif self._lent:
            late = {name: tensor for name, tensor in loose.items() if name not in self._loose_at_start}
            self.loose = Loose(roles=None, unread=digests(late), lent=True)
        roles = (self.loose.roles if self.loose is not None else None) or {}
        came = {name: tensor for name, tensor in loose.items() if roles.get(name) in COMPARED}
        early = {name: each for name, each in loose.items() if name in self._loose_at_start and name not in roles}
        kept = early | came
        self.end_buffers = {
            f"{BUFFER}{name}": tensor for name, tensor in state["buffers"].items() if tensor.is_floating_point()
        }
        kept_state = {**state, LOOSE: kept}
        if self._sketched:
            self.end_sketches = sketched(kept_state)
        self.spoiled = sorted(name for name in holding_nan(came) if self._numbers_later.get(name))
        self._counted_later = _update_counters(state)
        self.updates = sorted({int(now - self._counted.get(name, 0)) for name, now in self._counted_later.items()})
        if self._moves:
            self.moved = moved(self._start, movable(kept_state))
            self.watched = watched(kept_state)
        more = {"numbers": numbers(kept_state), "optimizer_bytes": _bytes_by_type(state["optimizer"])}
        return recorded(kept_state).model_copy(update=more)

    def after_load(self) -> State:
        """Return the state right after a checkpoint was loaded. Updates are counted from this state."""
        state = watched_state(self._training)
        self._begin(state)
        ended = self._at_end(state)
        self._counted = self._counted_later
        return ended


def watched_state(training: TrainingRun) -> StateByCategory:
    """Return the training's current state, by category and name: parameters, buffers, optimizer, generators and loose
    tensors. The state contains what the opened arm itself names, and what the harness finds in the arm."""
    parameters = named_parameters(training)
    state: StateByCategory = {"parameters": {}, "buffers": {}, "optimizer": {}, "generators": {}, LOOSE: {}}
    for source in (_found(training, parameters), training.state() if isinstance(training, HasState) else {}):
        for category, tensors in source.items():
            state[category] = state.get(category, {}) | {plain_name(name): each for name, each in tensors.items()}
    state["parameters"] = {**state["parameters"], **parameters}
    drawn = generators.states(generators.global_generators())
    state["generators"] |= {name: generators.as_tensor(each) for name, each in drawn.items()}
    return state


def named_parameters(training: TrainingRun) -> dict[str, Tensor]:
    """Return the trainable parameters by name, without the prefixes that `torch.compile` adds to names. Return an empty
    mapping if the system shows no parameters."""
    if not isinstance(training, HasParameters):
        return {}
    return {plain_name(name): tensor for name, tensor in training.parameters().items()}


def _found(training: TrainingRun, parameters: Mapping[str, Tensor]) -> Mapping[str, Mapping[str, Tensor]]:
    """Return the state of the modules, optimizers and generators that the harness finds in an opened arm. Return
    nothing for a training whose class belongs to the harness, because such a training itself names all its state."""
    while isinstance(training, FaultyRun):
        training = training._inner
    if type(training).__module__.partition(".")[0] == "harness":
        return {}
    frozen = training.frozen() if isinstance(training, HasParameters) else {}
    found = found_state(training, parameters={**parameters, **frozen})
    return {category: tensors for category, tensors in found.items() if category != LOOSE}


def numbers(state: StateByCategory) -> dict[str, float]:
    """Return the values of all state tensors that are single finite numbers, such as step counts or a loss scale.
    Parameters and generators are left out."""
    found = {
        f"{category} {name}": number_of(tensor)
        for category, tensors in state.items()
        if category not in {"parameters", "generators"}
        for name, tensor in sorted(tensors.items())
    }
    return {name: value for name, value in found.items() if value is not None}


def _forms(state: Mapping[str, Mapping[str, Tensor]]) -> dict[str, str]:
    """Return each tensor's data type and shape, by `category name`. Generators and optimizer settings are left out."""
    return {
        f"{category} {plain_name(name)}": f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
        for category, tensors in state.items()
        for name, tensor in sorted(tensors.items())
        if category != "generators" and not (category == "optimizer" and tensor.dtype is torch.uint8)
    }


def _bytes_by_type(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Return how many bytes the tensors of each data type take, by name of the type. Tensors with one element are left
    out, and so are settings and counts that are stored as text."""
    found: dict[str, int] = {}
    for each in tensors.values():
        if each.numel() > 1 and not is_text(each):
            name = str(each.dtype).removeprefix("torch.")
            found[name] = found.get(name, 0) + each.numel() * each.element_size()
    return found


def _update_counters(state: StateByCategory) -> dict[str, float]:
    """Return the counts of updates, by name: the counters of the optimizers, and the loose tensor `updates` if there is
    one."""
    of_optimizers = {name: each for name, each in state["optimizer"].items() if name.rpartition(".")[2] in _COUNTERS}
    found = of_optimizers | {name: each for name, each in state[LOOSE].items() if name == "updates"}
    values = {name: number_of(tensor) for name, tensor in found.items() if tensor.numel() == 1}
    return {name: value for name, value in values.items() if value is not None}


def sketched(state: StateByCategory) -> dict[str, Sketch]:
    """Return the sketch (a few sums of elements) of each floating-point tensor of the state, by `category name`."""
    return sketches({f"{category} {name}": tensor for category, each in state.items() for name, tensor in each.items()})


def recorded(state: StateByCategory) -> State:
    by_category = {}
    for category, tensors in state.items():
        found, bad = digests(tensors), not_finite(tensors)
        by_category[category] = {
            name: digest + (NOT_FINITE if name in bad else "") for name, digest in sorted(found.items())
        }
    return State(digests=by_category, tensors=sum(map(len, by_category.values())))


@dataclass
class Ends:
    """The parameters and buffers at the end of each arm's first execution in one run, in the host's memory."""

    _kept: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    moves: Moves = field(default_factory=Moves)
    # name of an arm -> index of the execution that was kept; 0 if another process executed it
    _replicas: dict[str, int] = field(default_factory=dict)

    def differences(self, ended: Mapping[str, Tensor]) -> list[EndDifference]:
        """Compare the tensors `ended` with the kept end of each arm. Return the differences, one record for each arm.
        Only one kept tensor at a time is copied to the device.

        Every rank must take part in gathering sharded tensors, even a rank without a kept end. Otherwise the other
        ranks would wait for it.
        """
        apart: dict[str, dict[str, float]] = {arm: {} for arm in self._kept}
        for name, tensor in ended.items():
            ours = whole(tensor)
            for arm, kept in self._kept.items():
                if name in kept and kept[name].shape == ours.shape:
                    apart[arm][name] = largest_difference(ours, kept[name])
        return [_difference(arm, self._replicas.get(arm, 0), apart[arm], kept) for arm, kept in self._kept.items()]

    def kept(self, arm: str) -> Mapping[str, Tensor]:
        """Return the kept tensors of `arm`. Return an empty mapping if none are kept."""
        return self._kept.get(arm, {})

    def forget(self, arm: str) -> None:
        """Forget the end of an arm that failed, so that no other arm is compared with it."""
        self._kept.pop(arm, None)
        self._replicas.pop(arm, None)
        self.moves.forget(arm)

    def keep(self, ended: Mapping[str, Tensor], arm: str, replica: int = 0) -> None:
        """Keep the tensors `ended` of `arm`, if this is the arm's first execution in this process."""
        if arm not in self._kept:
            self._replicas[arm] = replica
            here = {name: tensor for name, tensor in ended.items() if not tensor.is_meta}
            self._kept[arm] = {name: whole(tensor).detach().to("cpu", copy=True) for name, tensor in here.items()}


def _difference(arm: str, replica: int, apart: Mapping[str, float], kept: Mapping[str, Tensor]) -> EndDifference:
    compared = {name: size for name, size in apart.items() if not name.startswith(BUFFER)}
    largest = {
        name: largest_difference(kept[name], torch.zeros_like(kept[name])) for name in apart.keys() - compared.keys()
    }
    rounding = ROUNDING * max((size for size in largest.values() if math.isfinite(size)), default=0.0)
    buffers = {name: _relative(apart[name], largest[name], rounding) for name in largest}
    worst, moved = _worst(compared), _worst(buffers)
    return EndDifference(
        arm=arm,
        replica=replica,
        tensors=len(compared),
        largest=None if worst is None else compared[worst],
        tensor=worst,
        buffers=len(buffers),
        buffers_relative=None if moved is None else buffers[moved],
        buffer=None if moved is None else moved.removeprefix(BUFFER),
    )


def _worst(sizes: Mapping[str, float]) -> str | None:
    """Return the name of the largest value in `sizes`. Return None if `sizes` is empty. NaN counts as larger than any
    number."""
    return max(sorted(sizes), key=lambda name: (sizes[name] != sizes[name], sizes[name]), default=None)


def _relative(apart: float, largest: float, rounding: float) -> float:
    """Return a buffer's largest difference `apart`, divided by the buffer's largest absolute value `largest`. Return 0
    if `apart` is at most `rounding`, else infinity if `largest` is 0."""
    if apart <= rounding:
        return 0.0
    return apart / largest if largest else math.inf
