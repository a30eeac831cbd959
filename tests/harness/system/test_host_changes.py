"""What a step changes on the host, which no replay does again: named with its path, and nothing else is."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from harness.system.replay.snapshots import HostChanges
from harness.system.replay.state import StateGuard
from harness.system.replay.traced import NotTraceableError, TracedStep


class Trainer:
    def __init__(self) -> None:
        self.weight = torch.ones(2)
        self.count, self.rate, self.largest = 0, 0.5, None
        self.log: list[Tensor] = []
        self.moments = [torch.zeros(2)]
        self.priorities = np.zeros(2)
        self.generator = random.Random(0)
        self.draws = np.random.default_rng(0)

    def step(self) -> Tensor:
        self.weight.mul_(0.9)
        return self.weight.sum()


def counts(trainer: Trainer) -> None:
    trainer.count += 1


def lowers_its_rate(trainer: Trainer) -> None:
    trainer.rate *= 0.1 * 1.1  # 0.05500000000000001


def binds_anew(trainer: Trainer) -> None:
    trainer.moments[0] = trainer.moments[0] + 1
    trainer.largest = trainer.weight.max()  # type: ignore[assignment]


def logs(trainer: Trainer) -> None:
    trainer.log.append(trainer.weight.sum())


def draws(trainer: Trainer) -> None:
    trainer.rate = 0.5 + 0 * trainer.generator.random() + 0 * trainer.draws.random()


def changes_in_place(trainer: Trainer) -> None:
    trainer.moments[0].add_(torch.rand(2))


def changes_an_array(trainer: Trainer) -> None:
    trainer.priorities[0] += 1


CHANGES: list[tuple[Callable[[Trainer], None], list[str]]] = [
    (counts, ["Trainer.count (0, then 1)"]),
    (lowers_its_rate, ["Trainer.rate (0.5, then 0.055)"]),
    (binds_anew, ["Trainer.largest (None, then a Tensor)", "moments.0 (another Tensor)"]),
    (logs, ["log (0 entries, then 1)"]),
    (draws, ["generator (numbers drawn on the host)", "draws (numbers drawn on the host)"]),
    (changes_in_place, []),
    (changes_an_array, ["priorities (ndarray, changed in place)"]),
]


@pytest.mark.parametrize(("change", "named"), CHANGES)
def test_each_change_on_the_host_is_named_and_undone(change: Callable[[Trainer], None], named: list[str]) -> None:
    trainer = Trainer()

    def body() -> Tensor:
        change(trainer)
        return trainer.step()

    traced = TracedStep(body, dict, roots=[trainer, body])
    traced.record()
    assert traced.host_changes == named
    assert (trainer.count, trainer.largest, trainer.log) == (0, None, [])
    assert trainer.priorities.tolist() == [0, 0]


def test_memory_assigned_to_a_tensor_by_the_step_is_named_as_a_host_change() -> None:
    layer = nn.Linear(2, 1)

    def by_hand() -> Tensor:
        loss: Tensor = layer(torch.ones(1, 2)).sum()
        for parameter, gradient in zip(
            layer.parameters(), torch.autograd.grad(loss, [*layer.parameters()]), strict=True
        ):
            parameter.data = parameter.data - gradient
        return loss.detach()

    traced = TracedStep(by_hand, dict, roots=[by_hand])
    traced.record()
    assert traced.host_changes == [
        f"layer.{name} (other memory, by an assignment to `.data`)" for name in ("weight", "bias")
    ]
    with pytest.raises(NotTraceableError, match=r"in place, with `copy_`, .* assignment to their `\.data`"):
        TracedStep(lambda: by_hand() + by_hand(), dict, roots=[by_hand]).record()


def test_a_counter_in_a_closure_is_named_by_its_variable() -> None:
    weight, steps = torch.ones(2), 0

    def body() -> Tensor:
        nonlocal steps
        steps += 1
        return weight.mul_(0.9).sum()

    traced = TracedStep(body, dict, roots=[body])
    traced.record()
    assert traced.host_changes == ["steps (0, then 1)"]


class ByParameter:
    """Momentum by hand, in dictionaries that are keyed by the parameters."""

    def __init__(self) -> None:
        self.parameters: list[Tensor] = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))]
        self.gradients: dict[Tensor, Tensor] = {}
        self.velocities = {parameter: torch.zeros(2) for parameter in self.parameters}

    def step(self) -> Tensor:
        loss = torch.stack([parameter.square().sum() for parameter in self.parameters]).sum()
        self.gradients = dict(zip(self.parameters, torch.autograd.grad(loss, self.parameters), strict=True))
        for parameter, gradient in self.gradients.items():
            self.velocities[parameter] = self.velocities.pop(parameter) + gradient
        return loss.detach()

    def outputs(self) -> dict[str, Tensor]:
        return {f"{number}": each for number, each in enumerate(self.gradients.values())}


def test_host_changes_keyed_by_a_parameter_are_named_by_the_parameters_position() -> None:
    trainer = ByParameter()
    traced = TracedStep(trainer.step, dict, trainer.outputs, roots=[trainer])
    traced.record()
    assert traced.host_changes == [
        "ByParameter.gradients (another dict)",
        "velocities.0 (another Tensor)",
        "velocities.1 (another Tensor)",
    ]
    assert [*map(id, trainer.velocities)] == [*map(id, trainer.parameters)]


def test_results_stored_under_a_parameter_are_updated_by_each_replay() -> None:
    trainer = ByParameter()

    def step() -> Tensor:
        loss = torch.stack([parameter.square().sum() for parameter in trainer.parameters]).sum()
        for parameter, gradient in zip(trainer.parameters, torch.autograd.grad(loss, trainer.parameters), strict=True):
            trainer.gradients[parameter] = gradient
        return loss.detach()

    traced = TracedStep(step, dict, trainer.outputs, roots=[step])
    traced.record()
    assert traced.host_changes == []
    traced.replay()
    assert [each.tolist() for each in trainer.gradients.values()] == [[2.0, 2.0], [2.0, 2.0]]


def test_an_attribute_that_replays_update_is_not_reported_as_a_host_change() -> None:
    trainer = Trainer()

    def body() -> Tensor:
        trainer.largest = trainer.weight.max()  # type: ignore[assignment]
        return trainer.step()

    traced = TracedStep(body, dict, lambda: {"largest": trainer.largest}, roots=[body])  # type: ignore[dict-item]
    traced.record()
    assert traced.host_changes == []


OF_THE_CAPTURE = ["moments.0 (replaced by another tensor: each replay reads the tensor of the capture)"]


@pytest.mark.parametrize(("reads", "named"), [(True, OF_THE_CAPTURE), (False, [])])
def test_state_updated_by_replays_is_named_only_if_replays_read_its_old_value(reads: bool, named: list[str]) -> None:
    trainer = Trainer()

    def body() -> Tensor:
        trainer.moments[0] = 0.9 * (trainer.moments[0] if reads else trainer.weight)
        return trainer.step()

    traced = TracedStep(body, dict, lambda: {"moment": trainer.moments[0]}, roots=[trainer, body])
    traced.record()
    assert traced.host_changes == named


def test_a_result_that_a_step_appends_to_a_log_is_named_and_does_not_prevent_replays() -> None:
    trainer = Trainer()

    def body() -> Tensor:
        trainer.log.append(trainer.step())
        return trainer.log[-1]

    traced = TracedStep(body, dict, lambda: {"last": trainer.log[-1]}, roots=[body])
    traced.record()
    assert traced.host_changes == ["trainer.log (0 entries, then 1)"]
    assert [round(traced.replay().item(), 2) for _ in range(2)] == [1.8, 1.62]
    assert (trainer.log, round(traced.outputs["last"].item(), 2)) == ([], 1.62)


class Warming(torch.optim.SGD):
    """Keeps its rate in a tensor on the host, and raises it with each step."""

    def __init__(self, parameters: list[Tensor]) -> None:
        super().__init__(parameters, lr=torch.tensor(0.1))
        for parameter in parameters:
            self.state[parameter]["raised"] = torch.zeros(())

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["lr"].mul_(1.1)
            for parameter in group["params"]:
                self.state[parameter]["raised"].add_(1)


def test_a_tensor_on_the_host_that_a_captured_step_changes_in_place_is_named() -> None:
    """A CUDA graph does not contain this change. A recording of the step's operators contains it."""
    model = nn.Linear(2, 2)
    model.register_buffer("seen", torch.zeros(()))
    optimizer, scale, unchanged = Warming([model.weight]), torch.ones(2), torch.ones(2)

    def body() -> None:
        scale.mul_(unchanged)
        optimizer.step()
        model.seen.add_(1)  # type: ignore[operator]

    in_graph, recorded = (HostChanges([body], of_device=device) for device in (True, False))
    body()
    assert in_graph.found([]) == [
        f"{path} (a tensor on the host, changed in place)"
        for path in (
            "scale",
            "model.seen",
            "optimizer.group0.lr",
            "optimizer.state.0.raised",
        )
    ]
    assert recorded.found([]) == []


class CountingSGD(torch.optim.SGD):
    """An optimizer of one's own, which counts its updates by a number."""

    def __init__(self, parameters: list[Tensor]) -> None:
        super().__init__(parameters, lr=0.1)
        self.updates = 0
        self.mean = torch.zeros(2)

    def update(self) -> None:
        self.updates += 1
        self.mean.add_(1.0)
        self.step()


def test_a_trial_step_leaves_a_custom_optimizer_unchanged() -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = CountingSGD([parameter])

    def body() -> Tensor:
        optimizer.zero_grad()
        loss = parameter.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.update()
        return loss.detach()

    with StateGuard(dict, [body]) as guard:
        body()
        guard.restore()
    assert (optimizer.updates, optimizer.mean.tolist()) == (0, [0.0, 0.0])
    traced = TracedStep(body, dict, roots=[body])
    traced.record()
    assert traced.host_changes == ["optimizer.updates (0, then 1)"]


def test_a_generator_whose_state_a_recorded_step_sets_is_named() -> None:
    """`checkpoint` repeats the dropout of the first pass by setting the state. A replay would draw new numbers."""
    weight, values = torch.ones(8, requires_grad=True), torch.ones(8)

    def body() -> Tensor:
        weight.grad = None
        dropped = checkpoint(lambda x: nn.functional.dropout(x * weight, 0.5), values, use_reentrant=False)
        loss: Tensor = dropped.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    before = torch.random.set_rng_state
    step = TracedStep(body, lambda: {"weight": weight})
    step.record()
    [told] = step.host_changes
    assert re.fullmatch(
        r"torch's generator \(its state is set at \S*test_host_changes\.py:\d+, as torch\.utils\.checkpoint does\)",
        told,
    )
    assert (torch.random.set_rng_state, torch.set_rng_state) == (before, before)


def test_a_generator_that_a_recorded_step_seeds_is_named() -> None:
    weight = torch.ones(8)

    def body() -> Tensor:
        torch.manual_seed(0)
        return weight.mul_(torch.rand(8)).sum()

    before = torch.manual_seed, torch.random.manual_seed
    step = TracedStep(body, lambda: {"weight": weight})
    step.record()
    [told] = step.host_changes
    assert re.fullmatch(r"torch's generator \(it is seeded at \S*test_host_changes\.py:\d+\)", told)
    assert (torch.manual_seed, torch.random.manual_seed) == before
