"""Open one arm of a run, plant a fault if the run requests one, and limit the number of steps.

A trainer plans its learning-rate schedule and its data for a number of steps. One more step would change the training,
or raise an error. Therefore the harness announces to each arm the largest number of steps that the harness may make
with this arm. Until the arm's end is recorded, every step beyond this number raises an error.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from harness.commits.import_path import in_use
from harness.devices.torch_settings import deterministic_algorithms
from harness.errors import UsageError
from harness.evidence.plan_records import PlannedArm, Run
from harness.execution import rank_seat
from harness.execution.watchers.loose_watch import LOOSE
from harness.execution.watchers.state_watch import named_parameters, watched_state
from harness.kinds import probe_named
from harness.kinds import resolve as resolve_reference
from harness.system.adapter_checks import AdapterError, describe_value, names
from harness.system.protocol import TrainingRun, TrainingSystem
from harness.system.ranks import rank
from harness.system.resolve import resolve
from harness.system.sharded_tensors import local
from harness.system.users_code import return_place
from harness.system.wrappers import DECOY_GRAPH, HARNESS_FAULTS, SWAPPED_ARMS, FaultyRun, wrap

if TYPE_CHECKING:
    from torch import Tensor

    from harness.execution.watchers.capture_attempts import CaptureAttempts

# Number of steps that are made with each shape of the workload's batches. The second step of a shape must not need a
# kernel that the first step of this shape did not need.
ROUNDS = 2
# A run that tests memory after re-captures makes at least ROUNDS_PER_AFTER * `after` captures. `after` is a setting:
# the judge compares the last `after` memory samples with the `after` samples that follow the first `after` ones.
ROUNDS_PER_AFTER = 4
WARMUP_STEPS = 10  # number of warm-up steps of each arm of a timing
TIMED_WATCHED_STEPS = 5  # number of steps of each arm that are observed after the timed steps
# Number of rounds after a long run, in which the arm of the long run and a freshly opened arm take turns. The
# confidence interval of the median leaves out the five lowest and the five highest rounds.
REPLAY_ROUNDS = 24
REPLAY_BLOCK_STEPS = 10  # smallest number of steps in a block of a round after a long run
# a timing makes at most this multiple of the required number of rounds, to replace rounds that were disturbed
MOST_ROUNDS = 2


def announced_steps(run: Run) -> int | None:
    """Return how many steps the run may make at most with an opened arm; None if only a time limit ends the steps."""
    steps = probe_named(run.probe).steps
    return None if steps is None else max(resolve_reference(steps)(run), run.workload.steps)


def of_workload(run: Run) -> int:
    return run.workload.steps


def of_timing(run: Run) -> int:
    blocks = 2 * MOST_ROUNDS * (count_setting(run, "blocks") // 2)
    return WARMUP_STEPS + blocks * count_setting(run, "block_steps") + TIMED_WATCHED_STEPS


def of_long_replay(run: Run) -> int:
    return max(run.workload.steps, WARMUP_STEPS) + 2 * REPLAY_ROUNDS * replay_block_steps(run)


def replay_block_steps(run: Run) -> int:
    """Return the number of steps of one timed block after a long run. This number is a multiple of the number of input
    shapes, so that each shape occurs equally often in a block."""
    shapes = shapes_of(run)
    return shapes * -(-REPLAY_BLOCK_STEPS // shapes)


def of_captures(run: Run) -> int:
    return captures_of(run, shapes_of(run))


def of_shapes(run: Run) -> int:
    """Return the number of steps needed to warm up an arm and then execute every input shape `ROUNDS` times."""
    return shapes_of(run) * ROUNDS + max(planned.arm.warm_steps for planned in run.arms.values())


def shapes_of(run: Run) -> int:
    """Return the number of steps in which every input shape of the workload occurs once."""
    return len(run.workload.seq_len) if isinstance(run.workload.seq_len, list) else 1


def captures_of(run: Run, shapes: int) -> int:
    """Return how often a run that tests memory after re-captures makes a capture. This count is a multiple of the
    number of shapes, and at least `ROUNDS_PER_AFTER` times the setting `after`."""
    rounds = max(ROUNDS_PER_AFTER, -(-ROUNDS_PER_AFTER * count_setting(run, "after") // shapes))
    return rounds * shapes


def count_setting(run: Run, name: str) -> int:
    """Return the run's setting `name`, which must be a whole number. Raises TypeError if it is not."""
    value = run.settings[name]
    if not isinstance(value, int):
        raise TypeError(f"the setting {name!r} of a {run.probe} run must be a whole number, not {value!r}")
    return value


class UnannouncedStepError(Exception):
    """The harness made more steps with an arm than it had announced to the arm. This is a bug in the harness."""


class AnnouncedSteps(FaultyRun):
    """A wrapper around an opened arm. It raises an error for each step beyond the announced number of steps.

    The wrapper plants no fault. It also reports each step to the process that watches the ranks. When the arm loads a
    checkpoint or is restarted, the count of steps begins again at 0, because a trainer then begins its own count again.
    announced: None if the number of steps is not limited.
    """

    def __init__(self, inner: TrainingRun, announced: int | None) -> None:
        self._announced, self._begun = announced, 0
        super().__init__(inner, announced or 0)

    def _replace_capabilities(self) -> None:
        step = self._inner.step

        # because of `wraps`, messages show the line of the arm's own step function, and not of this function
        @functools.wraps(step)
        def counted(index: int) -> Tensor:
            self._begun += 1
            if self._announced is not None and self._begun > self._announced:
                raise UnannouncedStepError(
                    f"the harness announced {self._announced} steps, but asks for step {index}; this is a defect of "
                    "the harness, please report it"
                )
            rank_seat.note_step()
            return step(index)

        self.step = counted  # type: ignore[method-assign]
        for name in ("load", "restart"):
            if hasattr(self, name):
                setattr(self, name, self._anew(name))

    def once_more(self, index: int) -> Tensor:
        """Make one step more than announced, after the arm's end was recorded. This step may raise an error."""
        return self._inner.step(index)

    def _anew(self, name: str) -> object:
        begin = getattr(self._inner, name)

        @functools.wraps(begin)
        def begin_anew(start: Path | int) -> None:
            begin(start)
            self._begun = 0

        return begin_anew


# The code below changes (nudges) an arm's parameters slightly before it starts, to measure how far rounding alone
# changes its training. Each nudged element is multiplied by 1 + e or 1 - e. The parameter's name and the element's
# position determine the sign, so that all processes and ranks use the same sign. In float32 and in more precise types
# every element is nudged, and e is 8 epsilons of float32 (2^-20, about 1e-6). Such a change is about as large as the
# rounding errors of a few steps. In less precise types about every 16th element is nudged, and e is one epsilon of the
# type. If all elements of such a type were nudged, the change would be larger than the rounding errors of a step. If an
# optimizer updates copies of a more precise type (master weights), the copies are nudged, and the parameters are set
# from the copies.

FLOAT32_EPSILONS = 8
OF_COARSE = 16


def nudge(training: TrainingRun) -> None:
    """Change each trainable parameter in place by about one rounding error. Integers, 8-bit floats and zeros are not
    changed."""
    parameters = {name: local(tensor) for name, tensor in named_parameters(training).items()}
    state = watched_state(training)
    held = [local(each) for name in (LOOSE, "optimizer") for each in state.get(name, {}).values()]
    others = [each for each in held if _epsilon(each.dtype) is not None]
    with torch.no_grad():
        for name, tensors in _alike(parameters, others):
            _multiply(name, tensors)


def _multiply(name: str, tensors: list[Tensor]) -> None:
    finest = min(tensors, key=lambda tensor: _epsilon(tensor.dtype) or 1.0)
    finest.mul_(_factors(name, finest))
    for tensor in tensors:
        # `reshape` copies the data only if the memory layout does not allow a view
        tensor.copy_(finest.reshape(tensor.shape))


def _alike(parameters: Mapping[str, Tensor], others: Iterable[Tensor]) -> Iterator[tuple[str, list[Tensor]]]:
    """Yield each parameter's name, with a list of the parameter and those tensors of `others` that are copies of it.

    If one flat tensor in `others` holds copies of all parameters, the parameter's part of this tensor counts as a copy
    too. A parameter whose elements are all equal is skipped if it seems to have copies, because every tensor that
    contains only this value looks like a copy of the parameter.
    """
    floating = {name: part for name, part in parameters.items() if _epsilon(part.dtype) is not None}
    elements = sum(part.numel() for part in floating.values())
    flat = [each.view(-1) for each in others if each.numel() == elements and each.is_contiguous()]
    at = 0
    for name, part in floating.items():
        size = part.numel()
        found = [each for each in others if each.numel() == size and each.is_contiguous()]
        found += [each[at : at + size] for each in flat if len(floating) > 1]
        at += size
        copies = [each for each in found if _is_copy(each, part)]
        # a tensor of ones looks like a copy of any other tensor of ones, so skip parameters whose elements are all
        # equal
        if not (copies and _is_constant(part)):
            yield name, [part, *copies]


def _is_constant(tensor: Tensor) -> bool:
    return tensor.numel() == 0 or bool((tensor == tensor.flatten()[0]).all())


def _is_copy(tensor: Tensor, of: Tensor) -> bool:
    apart = tensor.data_ptr() != of.data_ptr() and tensor.device == of.device
    return apart and torch.equal(tensor.view_as(of).to(of.dtype), of)


def _epsilon(dtype: torch.dtype) -> float | None:
    """Return the machine epsilon of a data type; None for a type whose tensors `nudge` does not change."""
    if not (dtype.is_floating_point or dtype.is_complex) or dtype.itemsize == 1:
        return None
    return float(torch.finfo(dtype).eps)


def _factors(name: str, part: Tensor) -> Tensor:
    """Return a tensor of factors by which the elements of `part` are multiplied. Each factor is 1 + e, 1 - e or 1, for
    a small e.

    The signs are random numbers with `name` as their seed. The factors have a data type that can represent 1 + e, which
    may be more precise than the type of `part`.
    """
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    signs = torch.randint(0, 2, part.shape, generator=generator, dtype=torch.int8) * 2 - 1
    epsilon, fine = torch.finfo(part.dtype).eps, torch.finfo(torch.float32).eps
    if epsilon > fine:
        signs = signs * (torch.randint(0, OF_COARSE, part.shape, generator=generator, dtype=torch.int8) == 0)
    wide = torch.float64 if part.dtype in (torch.float64, torch.complex128) else torch.float32
    return 1 + max(FLOAT32_EPSILONS * fine, epsilon) * signs.to(part.device, wide)


@contextmanager
def opened(run: Run, arm: str) -> Iterator[TrainingRun]:
    """Open the arm and yield its training run for the `with` block. Afterwards, close the training run and return its
    memory to the device.

    Before the arm is opened, the random generators of this process are set to the workload's seed. The arm therefore
    does not depend on random numbers that an earlier arm or import drew. Each rank adds its number to the seed, so that
    random values which a system does not seed itself differ between ranks. Captures within the `with` block are counted
    (`attempts_of`). If the system knows the run's fault, the system plants it; otherwise the harness plants it. Raises
    `UsageError` for an unknown fault, or if the arm has another commit than this process. Raises `NotAvailable` if the
    system raises it.
    """
    planned = _planned(run, arm)
    at_commit = in_use()
    here = at_commit.commit if at_commit is not None else None
    if planned.commit != here:
        one_commit_per_process = (
            f"this process can open only arms of its commit, {here[:12] if here else 'the working tree'}"
        )
        raise UsageError(one_commit_per_process, where=arm, got=planned.commit or "the working tree's")
    system = resolve(planned.system)
    fault = run.fault if arm in run.fault_arms else None
    # import late, because `capture_attempts` imports torch
    from harness.execution.watchers.capture_attempts import CaptureAttempts

    settings = deterministic_algorithms() if planned.arm.deterministic else nullcontext()
    with rank_seat.together(run, arm), settings, CaptureAttempts() as attempts:
        yield from _opened_here(run, planned, system, fault, attempts)


def _opened_here(
    run: Run, planned: PlannedArm, system: TrainingSystem, fault: str | None, attempts: CaptureAttempts
) -> Iterator[TrainingRun]:
    from harness.system.replay.generators import (
        keep_imports_undrawn,
        seed_all,  # imports torch
    )

    keep_imports_undrawn()
    seed_all(run.workload.seed + rank())
    own = fault is not None and _planted_by_harness(system, fault, planned.system)
    announced = announced_steps(run)
    training = system.open(
        run.workload if announced is None else run.workload.model_copy(update={"steps": announced}),
        planned.arm,
        fault=None if own else fault,
        data=run.data,
        model_directory=run.model_directory,
    )
    _require_run(training, system)
    if own and fault is not None and fault != SWAPPED_ARMS:
        training = wrap(training, fault, steps=run.workload.steps)
    with AnnouncedSteps(training, announced) as entered:
        attempts.training = entered
        if planned.nudged:
            nudge(entered)
        yield entered
        if (at_commit := in_use()) is not None:
            # check the imported modules again, because user code may have imported more modules within the `with` block
            at_commit.require(planned.system)
    attempts.training = None
    del training, entered
    release_memory()


def _require_run(opened: object, system: TrainingSystem) -> None:
    missing = [name for name in ("step", "facts", "__enter__", "__exit__") if not hasattr(opened, name)]
    if missing:
        raise AdapterError(
            "open() must return a training run: a context manager with the methods step(index) and facts()",
            where=return_place(system.open),
            got=f"{describe_value(opened)} without {names(missing)}",
            remedy="see `TrainingRun` in harness/system/protocol.py",
        )


def _planned(run: Run, arm: str) -> PlannedArm:
    if run.fault == DECOY_GRAPH and arm in run.fault_arms:
        planned = run.arms[arm]
        return planned.model_copy(update={"arm": planned.arm.model_copy(update={"capture": "none", "warm_steps": 0})})
    if run.fault != SWAPPED_ARMS or arm not in run.fault_arms:
        return run.arms[arm]
    others = [other for other in run.fault_arms if other != arm]
    # If the claim is about only one arm, swap this arm with an arm that captures another part of the step.
    others += [name for name, planned in run.arms.items() if planned.arm.capture != run.arms[arm].arm.capture]
    return run.arms[others[0]] if others else run.arms[arm]


def _planted_by_harness(system: TrainingSystem, fault: str, name: str) -> bool:
    offered = system.describe().faults
    if fault in offered:
        return False
    if fault not in HARNESS_FAULTS:
        raise UsageError(
            "neither the system nor the harness offers this fault",
            where=name,
            got=fault,
            remedy=f"name one of {', '.join(sorted({*offered, *HARNESS_FAULTS}))}",
        )
    return True


def release_memory() -> None:
    """Return unused memory to the device. Raises torch's error if the device has become unusable."""
    import gc

    from harness.devices.device import synchronize
    from harness.devices.device_memory import empty_cache

    gc.collect()
    synchronize()
    empty_cache()
