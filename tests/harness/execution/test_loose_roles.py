"""Which loose tensors of a training are state, tables, averages or logs: small steps with the role that each gets."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness.evidence.arm_records import Loose
from harness.execution.watchers.loose_watch import FollowedSteps
from harness.execution.watchers.state_watch import StateWatch
from harness.system.built import StepFunction
from harness.system.step_function_run import StepFunctionRun

STEPS, LONG = 6, 211


class Trainer:
    """A linear model under SGD. `kept` is what a case keeps; `factor` is in the loss."""

    def __init__(self, case: Callable[[Trainer], None]) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(4, 3)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.kept: dict[str, Any] = {}
        self.settings = {"decay": torch.tensor(0.9)}
        self.dataset = torch.randn(8, 4)
        self.number, self.case = 0, case
        self.lowest = float("inf")
        self.factor = torch.ones(())
        self.results: tuple[Tensor, Tensor] | None = None  # output and loss of the step

    def step(self, batch: dict[str, Tensor]) -> Tensor:
        self.number += 1
        self.x, self.y = batch["x"], batch["y"]
        self.factor = torch.ones(())
        self.results = None
        self.optimizer.zero_grad()
        self.case(self)
        loss = self.evaluated()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.results = None
        return loss.detach()

    def forward(self) -> tuple[Tensor, Tensor]:
        """Return output and loss of the step, computed once."""
        if self.results is None:
            out = self.model(self.x)
            self.results = out, self.factor * nn.functional.mse_loss(out, self.y)
        return self.results

    def evaluated(self) -> Tensor:
        return self.forward()[1]

    @property
    def weight(self) -> Tensor:
        return self.model.weight.detach()


def run_of(trainer: Trainer, capture: str = "none") -> StepFunctionRun:
    def batch(index: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(index)
        return {"x": torch.randn(5, 4, generator=generator), "y": torch.randn(5, 3, generator=generator)}

    parameters = lambda: dict(trainer.model.named_parameters())
    return StepFunctionRun(StepFunction(trainer.step, batch, parameters), capture=capture, layers=1)


def followed(case: Callable[[Trainer], None], steps: int = STEPS, capture: str = "none") -> Loose:
    return watch_of(run_of(Trainer(case), capture), steps)


def watch_of(run: StepFunctionRun, steps: int, evaluate: Callable[[], object] | None = None) -> Loose:
    watch = StateWatch(run, follows=True)
    watch.at_start()
    assert watch.steps is not None
    for index in range(steps):
        left = steps - 1 - index
        with watch.steps.step(left=left):
            loss = run.step(index)
        watch.steps.stepped(loss, left=left)
        if index == 0:
            watch.after_first_step()
        if evaluate is not None:
            with watch.steps.evaluation():
                evaluate()
    watch.at_end()
    assert watch.loose is not None
    return watch.loose


def kept(found: Loose) -> dict[str, str]:
    """Roles of what the case keeps: its trainer has attributes, too."""
    return {name: role for name, role in (found.roles or {}).items() if name.startswith("kept.")}


def late_average(t: Trainer) -> None:
    if t.number >= 3:
        t.kept.setdefault("ema", t.weight.clone()).lerp_(t.weight, 0.1)


def average_by_a_setting(t: Trainer) -> None:
    decay = t.settings["decay"]
    t.kept["ema"] = t.kept["ema"] * decay + t.weight * (1 - decay) if t.number > 1 else t.weight.clone()


def average_by_data(t: Trainer) -> None:
    t.kept.setdefault("ema", t.weight.clone())
    t.kept["ema"].data = 0.9 * t.kept["ema"] + 0.1 * t.weight


def average_of_parameters(t: Trainer) -> None:
    average = t.kept.setdefault("ema", [copy.deepcopy(each) for each in t.model.parameters()])
    for mine, each in zip(average, t.model.parameters(), strict=True):
        mine.data.lerp_(each.data, 0.1)


def snapshots(t: Trainer) -> None:
    if t.number % 2:
        t.kept.setdefault("shots", []).append([each.detach().clone() for each in t.model.parameters()])


def best_weights(t: Trainer) -> None:
    loss = t.evaluated().detach()
    lowest, best = t.kept.setdefault("lowest", loss + 1), t.kept.setdefault("best", t.weight.clone())
    better = loss < lowest
    best.copy_(torch.where(better, t.weight, best))
    lowest.copy_(torch.where(better, loss, lowest))


def list_of_losses(t: Trainer) -> None:
    t.kept.setdefault("losses", []).append(t.evaluated().detach())


def window_of_losses(t: Trainer) -> None:
    t.kept.setdefault("recent", deque(maxlen=3)).append(t.evaluated().detach())


def sum_of_losses(t: Trainer) -> None:
    total = t.kept.setdefault("total", torch.zeros(()))
    total += t.evaluated().detach()
    t.kept["mean"] = total / t.number


def running_mean(t: Trainer) -> None:
    loss = t.evaluated().detach()
    t.kept["mean"] = 0.9 * t.kept["mean"] + 0.1 * loss if "mean" in t.kept else loss


def mean_that_scales(t: Trainer) -> None:
    if "mean" in t.kept:
        t.factor = 1 / (1 + t.kept["mean"])
    running_mean(t)


def mean_that_the_host_reads(t: Trainer) -> None:
    if "mean" in t.kept and float(t.kept["mean"]) > 0.5:
        t.optimizer.param_groups[0]["lr"] *= 0.99
    running_mean(t)


def log_from_the_front(t: Trainer) -> None:
    t.kept.setdefault("log", torch.full((9,), torch.nan))[t.number] = t.evaluated().detach()


def accuracy(t: Trainer) -> None:
    t.kept["accuracy"] = (t.forward()[0].argmax(1) == t.y.argmax(1)).float().mean()


def last_output(t: Trainer) -> None:
    t.kept["out"] = t.forward()[0].detach()


def norm_of_the_weights(t: Trainer) -> None:
    t.kept["norm"] = t.weight.norm()


def row_of_the_weights(t: Trainer) -> None:
    t.kept["row"] = t.model.weight.data[0]


def table_of_constants(t: Trainer) -> None:
    t.x = t.x * t.kept.setdefault("table", torch.linspace(0.5, 1.5, 4))


def table_of_data(t: Trainer) -> None:
    t.x = t.x + t.kept.setdefault("table", t.dataset[t.dataset[:, 0] > 0].mean(0))


def teacher(t: Trainer) -> None:
    if t.number >= 3:
        mine = t.kept.setdefault("teacher", t.weight.clone())
        t.factor = 1 + 0.01 * (t.model.weight - mine).square().mean()


def velocity(t: Trainer) -> None:
    speed = t.kept.setdefault("speed", torch.zeros(3, 4))
    t.model.weight.data.add_(speed, alpha=0.01)
    speed.mul_(0.9).sub_(t.x.mean(0))


def batch_for_the_next_step(t: Trainer) -> None:
    before = t.kept.get("before", t.x)
    t.kept["before"] = t.x
    t.x = t.x + 0.1 * before


def recurrent(t: Trainer) -> None:
    hidden = t.kept.get("hidden", torch.zeros(5, 4))
    t.kept["hidden"] = torch.tanh(t.x + hidden)
    t.x = t.kept["hidden"]


def counter(t: Trainer) -> None:
    t.kept.setdefault("count", torch.zeros((), dtype=torch.int64)).add_(1)


def average_from_zeros(t: Trainer) -> None:
    t.kept.setdefault("ema", torch.zeros_like(t.x, dtype=t.weight.dtype)[:3]).lerp_(t.weight, 0.1)


def log_of_rates(t: Trainer) -> None:
    t.kept.setdefault("rates", []).append(torch.tensor(0.1 / t.number))


def scratch(t: Trainer) -> None:
    t.x = t.kept.setdefault("scratch", torch.empty(5, 4)).copy_(t.x) * 1.0


def noise_of_gradients(t: Trainer) -> None:
    loss = t.evaluated()
    [gradient] = torch.autograd.grad(loss, t.model.weight, retain_graph=True)
    t.kept.setdefault("noise", torch.zeros(3, 4)).lerp_(gradient.square(), 0.1)


def changed_by_numpy(t: Trainer) -> None:
    t.kept.setdefault("values", torch.zeros(3)).numpy()[:] += 1


def array_of_numpys(t: Trainer) -> None:
    array = t.kept.setdefault("array", t.weight.numpy().copy())
    array *= 0.9


def validation_scores(t: Trainer) -> None:
    """A vector of the step's own data that nobody reads, filled by views."""
    t.kept.setdefault("scores", torch.zeros(9)).narrow(0, t.number, 1).copy_(t.evaluated().detach().reshape(1))


CASES: list[tuple[Callable[[Trainer], None], dict[str, str]]] = [
    (late_average, {"kept.ema": "derived"}),
    (average_by_a_setting, {"kept.ema": "derived"}),
    (average_by_data, {"kept.ema": "derived"}),
    (average_of_parameters, {"kept.ema.0": "state", "kept.ema.1": "state"}),
    (snapshots, {f"kept.shots.{shot}.{each}": "derived" for shot in range(3) for each in range(2)}),
    (best_weights, {"kept.best": "derived", "kept.lowest": "state"}),
    (list_of_losses, {f"kept.losses.{index}": "log" for index in range(STEPS)}),
    (window_of_losses, {"kept.recent.0": "log", "kept.recent.1": "log", "kept.recent.2": "left"}),
    (sum_of_losses, {"kept.total": "log", "kept.mean": "left"}),
    (running_mean, {"kept.mean": "log"}),
    (mean_that_scales, {"kept.mean": "state"}),
    (mean_that_the_host_reads, {"kept.mean": "state"}),
    (log_from_the_front, {"kept.log": "log"}),
    (validation_scores, {"kept.scores": "log"}),
    (accuracy, {"kept.accuracy": "left"}),
    (last_output, {"kept.out": "left"}),
    (norm_of_the_weights, {"kept.norm": "left"}),
    (row_of_the_weights, {"kept.row": "left"}),
    (table_of_constants, {"kept.table": "table"}),
    (table_of_data, {"kept.table": "table"}),
    (teacher, {"kept.teacher": "state"}),
    (velocity, {"kept.speed": "state"}),
    (batch_for_the_next_step, {"kept.before": "state"}),
    (recurrent, {"kept.hidden": "state"}),
    (counter, {"kept.count": "log"}),
    (average_from_zeros, {"kept.ema": "derived"}),
    (log_of_rates, {f"kept.rates.{index}": "log" for index in range(STEPS)}),
    (scratch, {"kept.scratch": "log"}),
    (noise_of_gradients, {"kept.noise": "mixed"}),
    (changed_by_numpy, {"kept.values": "state"}),
    (array_of_numpys, {"kept.array": "state"}),
]


@pytest.mark.parametrize(("case", "roles"), CASES, ids=[case.__name__ for case, _ in CASES])
def test_what_reads_a_loose_tensor_determines_its_role(case: Callable[[Trainer], None], roles: dict[str, str]) -> None:
    """A loose tensor belongs to no module and to no optimizer."""
    found = followed(case)
    assert found.failure is None
    assert kept(found) == roles


def average_from_step_150(t: Trainer) -> None:
    """An average that a list in a dictionary holds."""
    if t.number >= 150:
        t.kept.setdefault("averages", [t.weight.clone()])[0].lerp_(t.weight, 0.1)


def average_bound_anew_from_step_150(t: Trainer) -> None:
    if t.number >= 150:
        t.kept["ema"] = 0.9 * t.kept.get("ema", t.weight) + 0.1 * t.weight


def snapshots_at_tens(t: Trainer) -> None:
    if t.number % 10 == 9:
        t.kept.setdefault("shots", []).append(t.weight.clone())


def snapshots_at_fifties(t: Trainer) -> None:
    if t.number % 50 == 0:
        t.kept.setdefault("shots", {})[f"step {t.number}"] = t.weight.clone()


def weights_of_lower_losses(t: Trainer) -> None:
    """Copies that are bound anew wherever the loss has fallen."""
    loss = t.evaluated().item()
    if loss < t.lowest:
        t.lowest = loss
        t.kept["best"] = t.weight.clone()


def weights_written_at_sixties(t: Trainer) -> None:
    best = t.kept.setdefault("best", torch.zeros(3, 4))
    if t.number % 60 == 0:
        best.copy_(t.weight)


def ring_of_losses(t: Trainer) -> None:
    t.kept.setdefault("recent", deque(maxlen=8)).append(t.evaluated().detach())


def losses_at_fifties(t: Trainer) -> None:
    if t.number % 50 == 0:
        t.kept.setdefault("losses", []).append(t.evaluated().detach())


def histogram_of_gradients(t: Trainer) -> None:
    [gradient] = torch.autograd.grad(t.evaluated(), t.model.weight, retain_graph=True)
    t.kept.setdefault("counts", torch.zeros(8)).add_(torch.histc(gradient, 8, -1, 1))


def table_at_step_30(t: Trainer) -> None:
    if t.number >= 30:
        t.x = t.x * t.kept.setdefault("table", torch.linspace(0.5, 1.5, 4))


def teacher_from_step_100(t: Trainer) -> None:
    """Read by later steps, and changed by none."""
    if t.number >= 100:
        mine = t.kept.setdefault("teacher", t.weight.clone())
        t.factor = 1 + 0.01 * (t.model.weight - mine).square().mean()


def copy_at_step_120(t: Trainer) -> None:
    """A single copy: no step that was followed made one like it."""
    if t.number == 120:
        t.kept["copy"] = t.weight.clone()


LATE: list[tuple[Callable[[Trainer], None], dict[str, str]]] = [
    (average_from_step_150, {"kept.averages.0": "derived"}),
    (average_bound_anew_from_step_150, {"kept.ema": "derived"}),
    (snapshots_at_tens, {f"kept.shots.{each}": "derived" for each in range(21)}),
    (snapshots_at_fifties, {f"kept.shots.step {each}": "derived" for each in (50, 100, 150, 200)}),
    (weights_of_lower_losses, {"kept.best": "derived"}),
    (weights_written_at_sixties, {"kept.best": "derived"}),
    (ring_of_losses, {f"kept.recent.{each}": "left" if each == 7 else "log" for each in range(8)}),
    (list_of_losses, {f"kept.losses.{each}": "log" for each in range(LONG)}),
    (log_of_rates, {f"kept.rates.{each}": "log" for each in range(LONG)}),
    (losses_at_fifties, {f"kept.losses.{each}": "log" for each in range(4)}),
    (histogram_of_gradients, {"kept.counts": "mixed"}),
    (table_at_step_30, {"kept.table": "table"}),
    (teacher_from_step_100, {"kept.teacher": "table"}),
    (copy_at_step_120, {"kept.copy": "unseen"}),
    (array_of_numpys, {"kept.array": "state"}),
    (changed_by_numpy, {"kept.values": "state"}),
]


@pytest.mark.parametrize(("case", "roles"), LATE, ids=[case.__name__ for case, _ in LATE])
def test_tensor_roles_of_a_long_training_come_from_the_steps_that_were_followed(
    case: Callable[[Trainer], None], roles: dict[str, str]
) -> None:
    found = followed(case, steps=LONG)
    assert found.failure is None
    assert kept(found) == roles


@pytest.mark.parametrize(
    ("case", "roles"),
    [
        (table_of_constants, {"kept.table": "table"}),
        (table_of_data, {"kept.table": "table"}),
        (scratch, {"kept.scratch": "log"}),
    ],
    ids=["table_of_constants", "table_of_data", "scratch"],
)
def test_tensor_roles_are_followed_through_replays_of_a_recorded_step(
    case: Callable[[Trainer], None], roles: dict[str, str]
) -> None:
    found = followed(case, capture="step")
    assert (found.failure, kept(found)) == (None, roles)


def test_a_training_observed_at_some_steps_ends_with_the_bits_of_an_unobserved_training() -> None:
    observed, unobserved = Trainer(snapshots_at_tens), Trainer(snapshots_at_tens)
    watch_of(run_of(observed), LONG)
    run = run_of(unobserved)
    for index in range(LONG):
        run.step(index)
    assert torch.equal(observed.model.weight, unobserved.model.weight)


@pytest.mark.parametrize(("unexplained", "number"), [(False, 7), (True, 7 + LONG // 2)])
def test_tensor_roles_are_followed_for_few_steps_unless_a_tensor_is_unexplained(unexplained: bool, number: int) -> None:
    steps = FollowedSteps(LONG)
    steps.wait(unexplained=unexplained)
    assert sum(steps.is_followed(index) for index in range(LONG)) == number


def test_a_tensor_restored_by_a_load_counts_as_present_from_the_start() -> None:
    trainer = Trainer(late_average)
    run = run_of(trainer)
    watch = StateWatch(run, follows=True)
    watch.at_start()
    trainer.number, trainer.kept["ema"] = 5, torch.ones(3, 4)
    watch.after_load()
    assert watch.steps is not None
    with watch.steps.step(left=0):
        loss = run.step(0)
    watch.steps.stepped(loss, left=0)
    assert "kept.ema" in watch.at_end().digests["tensors"]


def test_a_tensor_read_only_by_the_evaluation_is_state() -> None:
    trainer, read = Trainer(noise_of_gradients), list[float]()

    def evaluate() -> None:
        read.append(trainer.kept["noise"].mean().item())
        trainer.kept["score"] = trainer.model(torch.ones(1, 4)).detach()

    assert kept(followed(noise_of_gradients)) == {"kept.noise": "mixed"}
    assert kept(watch_of(run_of(trainer), LONG, evaluate)) == {"kept.noise": "state", "kept.score": "left"}
    assert len(read) == LONG


def test_loose_tensors_have_no_roles_if_the_last_step_was_unannounced() -> None:
    """A loose tensor belongs to no module and to no optimizer."""
    run = run_of(Trainer(late_average))
    watch = StateWatch(run, follows=True)
    watch.at_start()
    assert watch.steps is not None
    with watch.steps.step(left=1):
        loss = run.step(0)
    watch.steps.stepped(loss, left=1)
    watch.at_end()
    assert watch.loose == Loose(
        roles=None,
        unread={},
        failure="RuntimeError: the training ended before the last step that the harness announced; "
        "steps that were made: 1",
    )


def test_a_tensor_taken_over_by_the_optimizer_is_compared_under_the_optimizers_name() -> None:
    """A trainer may keep the state that it has loaded until the first step, and then give it to its optimizer."""

    def starts(trainer: Trainer) -> None:
        if trainer.number == 1:
            trainer.optimizer.load_state_dict({"state": trainer.kept["state"], "param_groups": trainer.kept["groups"]})

    trainer = Trainer(starts)
    momenta = {index: {"momentum_buffer": torch.zeros_like(p)} for index, p in enumerate(trainer.model.parameters())}
    trainer.kept = {"state": momenta, "groups": trainer.optimizer.state_dict()["param_groups"], "mine": torch.ones(3)}
    found = watch_of(run_of(trainer), STEPS)
    assert found.roles is not None
    momentum = [name for name in found.roles if "momentum" in name]
    assert [found.roles[name] for name in momentum] == ["left", "left"]
    assert {*momentum} <= found.unread.keys()
    assert not any("mine" in name for name in found.roles)
