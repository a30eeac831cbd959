"""A wait within an operator of somebody's own is seen, also where the operator is registered for fake tensors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.execution.watchers.sync_detectors import by_dispatch_mode
from harness.system.replay.placement import executed
from harness.system.replay.traced import NotTraceableError, TracedStep

READS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x.sum() > 0),
    "mask": lambda x: x[x > 0],
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "array": np.asarray,
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "to index": lambda x: x.to("cpu:0"),
    "to device": lambda x: x.to(device=torch.device("cpu")),
}


def operator(name: str, read: Callable[[Tensor], object]) -> Callable[[Tensor], Tensor]:
    def doubled(values: Tensor) -> Tensor:
        read(values)
        return values * 2

    made = torch.library.custom_op(f"strangers_inside::{name}", doubled, mutates_args=())
    made.register_fake(torch.empty_like)
    return made


OPERATORS = {name: operator(f"reads_{name.replace(' ', '_')}", read) for name, read in READS.items()}
QUIETLY: dict[str, Callable[[Tensor], object]] = {
    "another type": lambda x: x.to(torch.float64).max(),
    "as another tensor": lambda x: x.to(torch.zeros(3, dtype=torch.float64)),
    "of another size": lambda x: x.new_empty(x.numel(), x.dim()),
}
QUIET = {name: operator(f"{name.replace(' ', '_')}_alone", do) for name, do in QUIETLY.items()}


def step_of(weight: Tensor, doubled: Callable[[Tensor], Tensor]) -> TracedStep:
    def body() -> Tensor:
        weight.mul_(2)
        return doubled(weight).sum()

    return TracedStep(body, lambda: {"weight": weight})


@pytest.mark.parametrize("name", READS)
def test_an_operator_that_reads_a_value_internally_is_a_sync_and_cannot_be_recorded(name: str) -> None:
    weight = torch.tensor([1.0, 2.0])
    named = f"strangers_inside.reads_{name.replace(' ', '_')}"
    with pytest.raises(
        NotTraceableError, match=f"{named}.default calls .*, which makes the host read a value that the step computes"
    ):
        step_of(weight, OPERATORS[name]).record()
    assert weight.tolist() == [1.0, 2.0]
    [sync] = by_dispatch_mode(lambda: OPERATORS[name](weight), "cpu")
    assert sync.operation.startswith(f"{named}, by ")
    assert sync.place.file.endswith("test_inside_operator.py")


@pytest.mark.parametrize("name", QUIET)
def test_an_operator_that_reads_nothing_on_the_host_is_recorded_without_a_sync(name: str) -> None:
    weight = torch.tensor([1.0, 2.0])
    step = step_of(weight, QUIET[name])
    assert [float(step.replay()) for _ in range(2)] == [12.0, 24.0]
    assert (step.unseen_operators, step.fake_pass_clean) == ([], True)
    assert not by_dispatch_mode(lambda: QUIET[name](weight), "cpu")


def test_an_operator_that_internally_reads_values_computed_from_constants_can_be_recorded() -> None:
    weight = torch.ones(2)

    def body() -> Tensor:
        weight.mul_(2)
        return weight.sum() + OPERATORS["item"](torch.arange(3.0)).sum()

    step = TracedStep(body, lambda: {"weight": weight})
    assert [float(step.replay()) for _ in range(2)] == [10.0, 14.0]


def test_operators_of_torch_are_executed_unchanged() -> None:
    values = torch.tensor([1.0, 2.0])
    assert executed(torch.ops.aten.nonzero.default, (values,), {})[1] == []
