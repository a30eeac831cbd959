"""What raises when the search for state asks it something has no state that can be seen, and ends no run."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from harness.system.built import StepFunction
from harness.system.replay.found_state import found_state
from harness.system.replay.reachable import reach
from harness.system.replay.snapshots import HostChanges, Snapshot
from harness.system.replay.state import StateGuard
from harness.system.step_function_run import StepFunctionRun


class RefusedError(Exception):
    """What the objects of this file raise; no error that Python or torch knows a meaning for."""


def refuse(*_args: Any, **_keywords: Any) -> Any:
    raise RefusedError("not now")


class WithoutAnswers:
    __len__ = __iter__ = __eq__ = __hash__ = __bool__ = __repr__ = __str__ = refuse
    __dir__ = __sizeof__ = __getattr__ = refuse


class Everything:
    """As a proxy of a request that is over."""

    __getattribute__ = refuse


class Class:
    __class__ = property(refuse)


class WithoutDict:
    __dict__ = property(refuse)


class HoldsProxies:
    """A class whose data and functions are asked for by name."""

    proxy: ClassVar[Any] = Everything()
    lazy: ClassVar[Any] = WithoutAnswers()
    late = property(refuse)


class ClosedList(list[Any]):
    __iter__ = __len__ = refuse


class ClosedDict(dict[Any, Any]):
    items = keys = values = __iter__ = refuse


class ClosedSet(set[Any]):
    __iter__ = __eq__ = copy = refuse
    __hash__ = None


class Key:
    """A key whose hash was known once."""

    known = True

    def __hash__(self) -> int:
        return 1 if self.known else refuse()

    __eq__ = refuse


class WithoutBase(nn.Module):
    def __init__(self) -> None:
        pass


class LazyOptimizer(torch.optim.SGD):
    param_groups = property(refuse)


class Unwrapped(torch.optim.SGD):
    optimizer = property(refuse)


class WithoutStateDict(LambdaLR):
    state_dict = refuse


class Rate(float):
    __repr__ = refuse


def dead() -> Any:
    class Thing:
        pass

    return weakref.proxy(Thing())


def forgetful() -> dict[Any, Any]:
    key = Key()
    found = {key: 1}
    key.known = False
    return found


def parameters() -> list[Tensor]:
    return [nn.Parameter(torch.zeros(2))]


def scheduled() -> LRScheduler:
    return WithoutStateDict(torch.optim.SGD(parameters(), 0.1), lambda _: 1.0)


def closed() -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(parameters(), 0.1)
    optimizer.__class__ = LazyOptimizer
    return optimizer


def with_odd_rate() -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(parameters(), 0.1)
    optimizer.param_groups[0]["odd"] = [Rate(0.5), Everything()]
    return optimizer


SHY: dict[str, Callable[[], Any]] = {
    "a disabled scaler": lambda: torch.amp.GradScaler("cpu", enabled=False),
    "operators": WithoutAnswers,
    "every attribute": Everything,
    "its class": Class,
    "its dictionary": WithoutDict,
    "its class's data": HoldsProxies,
    "a class": lambda: HoldsProxies,
    "a list": lambda: ClosedList([1]),
    "a dictionary": lambda: ClosedDict(a=1),
    "a set": lambda: ClosedSet({1}),
    "a key": forgetful,
    "a module before its init": WithoutBase,
    "param_groups": closed,
    "a wrapper's optimizer": lambda: Unwrapped(parameters(), 0.1),
    "state_dict": scheduled,
    "settings": with_odd_rate,
    "a dead weak reference": dead,
    "the system's entropy": random.SystemRandom,
    "a number's text": lambda: Rate(0.5),
}


@pytest.fixture(params=SHY)
def shy(request: pytest.FixtureRequest) -> Any:
    return SHY[request.param]()


class Holder:
    def __init__(self, value: Any, average: Tensor) -> None:
        self.value, self.average, self.many = value, average, [value]


def test_tensors_next_to_an_object_that_raises_are_still_found(shy: Any) -> None:
    average, other = torch.zeros(2), torch.ones(3)
    holder = Holder(shy, average)

    def step() -> tuple[Any, ...]:
        return shy, holder, other

    assert {average.data_ptr(), other.data_ptr()} <= {each.data_ptr() for each in reach(step).tensors.values()}
    loose = found_state(step)["tensors"].values()
    assert {average.data_ptr(), other.data_ptr()} <= {each.data_ptr() for each in loose}


def test_a_trial_step_is_undone_even_if_an_object_raises_when_inspected(shy: Any) -> None:
    holder = Holder(shy, torch.zeros(2))

    def step() -> None:
        assert holder.many is not None
        holder.average.add_(1)
        holder.average = holder.average + 1

    before = holder.average
    with StateGuard(dict, [step]) as guard:
        with guard.first_execution():
            step()
        guard.restore(keep_created=True)
    assert holder.average is before
    assert before.tolist() == [0.0, 0.0]


def test_a_host_change_next_to_an_object_that_raises_is_found(shy: Any) -> None:
    holder = Holder(shy, torch.zeros(2))
    holder.count = 0  # type: ignore[attr-defined]
    step = lambda: holder
    changes = HostChanges([step], of_device=True)
    holder.count += 1  # type: ignore[attr-defined]
    assert [each for each in changes.found(changes.kept_up({})) if "count" in each]
    assert not Snapshot(reach(step).places).changed()


def test_a_training_with_an_object_that_raises_when_inspected_is_captured(shy: Any) -> None:
    holder = Holder(shy, torch.zeros(2))

    def step(batch: dict[str, Tensor]) -> Tensor:
        loss: Tensor = ((model(batch["x"]) - 1) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        holder.average.add_(1)
        return loss if shy is not None else loss + 1

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    function = StepFunction(
        step, lambda index: {"x": torch.full((2, 4), float(index))}, lambda: dict(model.named_parameters())
    )
    with StepFunctionRun(function, capture="step", layers=0) as training:
        for index in range(3):
            training.step(index)
        record = training.capture_record()
    assert (record.captured, record.failure) == (True, None)
    assert holder.average.tolist() == [3.0, 3.0]
