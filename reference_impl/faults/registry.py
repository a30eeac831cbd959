"""The list of planted faults, the decorator that registers a fault, and the function that plants one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from harness.system.protocol import Expectation, FaultDescription
from reference_impl.errors import ReferenceImplError

if TYPE_CHECKING:
    from reference_impl.between_steps import BetweenSteps
    from reference_impl.cuda_graph import CapturingTrainer
    from reference_impl.kernel_table import KernelTable
    from reference_impl.prewarm import RunKernels
    from reference_impl.trainer import Trainer

Changed = TypeVar("Changed")


@dataclass(frozen=True)
class Hook(Generic[Changed]):
    """A point of a run at which a planted fault gets an object of the trainer, whose methods or attributes it may
    replace."""

    name: str


STEP: Hook[Trainer] = Hook("step")
"""Faults of what a step computes. They are planted in the opened trainer, before anything is captured."""
REPLAY: Hook[CapturingTrainer] = Hook("replay")
"""Faults of how steps are captured, kept and replayed. They are planted after the faults of `STEP`."""
BETWEEN: Hook[BetweenSteps] = Hook("between")
"""Faults of checkpoints and evaluations between steps. They are planted in the opened trainer."""
KERNELS: Hook[KernelTable] = Hook("kernels")
"""Faults of the kernels' arithmetic. They are planted in a table that `kernel_match` or a trainer uses."""
PLAN: Hook[RunKernels] = Hook("plan")
"""Faults of how kernels are planned, named and read. They are planted before a prewarm, on any machine."""


@dataclass(frozen=True)
class Fault:
    """A fault: its description for the harness, and the function `change`, which changes the object that the fault's
    hook passes to `change`."""

    description: FaultDescription
    hook: Hook[Any]
    change: Callable[[Any], None]


FAULTS: dict[str, Fault] = {}


def fault(
    hook: Hook[Changed],
    summary: str,
    breaks: Mapping[str, Expectation],
    *,
    plant_in: Literal["candidate", "baseline", "both"] = "candidate",
    needs: Literal["any", "cuda"] = "any",
) -> Callable[[Callable[[Changed], None]], Callable[[Changed], None]]:
    """Return a decorator that registers a function as a fault. The function gets the hook's object and changes it.

    `summary`: a description for readers. `breaks`: claim id or kind -> the verdict that the claim's judge must give.
    `plant_in`: the arms that get the fault. `needs`: "cuda" if the fault has an effect only on a GPU. Raises ValueError
    if another fault has the function's name.
    """

    def register(change: Callable[[Changed], None]) -> Callable[[Changed], None]:
        name = change.__name__
        if name in FAULTS:
            raise ValueError(
                f"two faults are named {name!r}, in {FAULTS[name].change.__module__} and here; rename one of them"
            )
        FAULTS[name] = Fault(FaultDescription(name, summary, plant_in, breaks, needs), hook, change)
        return change

    return register


def change_of(name: str | None, hook: Hook[Changed]) -> Callable[[Changed], None] | None:
    """Return the function `change` of the fault `name`, or None if `name` is None or the fault belongs to another hook.

    Raises `ReferenceImplError` for an unknown name.
    """
    if name is None:
        return None
    if name not in FAULTS:
        raise ReferenceImplError("fault", f"got {name!r}", f"choose one of {', '.join(FAULTS)}")
    return FAULTS[name].change if FAULTS[name].hook is hook else None


def plant(name: str | None, hook: Hook[Changed], target: Changed) -> None:
    """Apply the fault `name` to `target`, the object of `hook`. Do nothing if `change_of` returns None."""
    change = change_of(name, hook)
    if change is not None:
        change(target)
