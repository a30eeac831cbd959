"""Gradients as the backward pass makes them, whatever the step does to them before it ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from claims_in_process import ARMS, CLAIM, STEPS, judged
from torch import Tensor, nn

from harness.evidence.arm_records import Gradients, TensorReduction
from harness.execution.watchers.made_gradients import MadeGradients
from harness.judging.sheet import Settled
from harness.judging.verdict import Status
from harness.kinds.gradients.compared_gradients import compared_tensors

Step = Callable[[nn.Module, Tensor, torch.optim.Optimizer], Any]


class WritesIntoGradients(torch.optim.Optimizer):
    """As Muon's momentum does."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if closure is not None:
            with torch.enable_grad():
                closure()
        for parameter in self.param_groups[0]["params"]:
            momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
            momentum.lerp_(parameter.grad, 0.1)
            parameter.sub_(parameter.grad.lerp_(momentum, 0.9), alpha=self.param_groups[0]["lr"])


def gradients(model: nn.Module) -> list[Tensor]:
    return [each.grad for each in model.parameters() if each.grad is not None]


def norm(model: nn.Module) -> Tensor:
    return torch.stack([each.square().sum() for each in gradients(model)]).sum().sqrt()


def clipped(model: nn.Module, loss: Tensor, _: Any) -> None:
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), 1e-2)


def by_value(model: nn.Module, loss: Tensor, _: Any) -> None:
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_value_(model.parameters(), 1e-4)


def divided_by_its_norm(model: nn.Module, loss: Tensor, _: Any) -> None:
    loss.backward()  # type: ignore[no-untyped-call]
    whole = norm(model)
    for each in gradients(model):
        each.div_(whole)


def replaced(model: nn.Module, loss: Tensor, _: Any) -> None:
    loss.backward()  # type: ignore[no-untyped-call]
    whole = norm(model)
    for each in model.parameters():
        assert each.grad is not None
        each.grad = each.grad * (1e-2 / whole)


def scaled_back(model: nn.Module, loss: Tensor, _: Any) -> None:
    (loss * 1024).backward()  # type: ignore[no-untyped-call]
    for each in gradients(model):
        each.div_(1024)
    nn.utils.clip_grad_norm_(model.parameters(), 1e-2)


def under_a_loss_scale(model: nn.Module, loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1e-2)
    scaler.step(optimizer)


def in_two_halves(model: nn.Module, loss: Tensor, _: Any) -> None:
    (loss / 2).backward(retain_graph=True)  # type: ignore[no-untyped-call]
    (loss / 2).backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), 1e-2)


def added_by_hand(model: nn.Module, loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    (loss / 2).backward(retain_graph=True)  # type: ignore[no-untyped-call]
    first = [each.clone() for each in gradients(model)]
    optimizer.zero_grad()
    (loss / 2).backward()  # type: ignore[no-untyped-call]
    for each, half in zip(gradients(model), first, strict=True):
        each.add_(half)
    nn.utils.clip_grad_norm_(model.parameters(), 1e-2)


def clipped_in_a_closure(model: nn.Module, loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """As Lightning makes a whole step."""

    def closure() -> Tensor:
        clipped(model, loss, None)
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]


def clipped_by_helpers(model: nn.Module, loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """Functions that take the optimizer are none of its methods."""

    def step(optimizer: torch.optim.Optimizer) -> None:
        nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1e-2)

    loss.backward()  # type: ignore[no-untyped-call]
    step(optimizer)


def logged(model: nn.Module, loss: Tensor, _: Any) -> None:
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), 1e-2).item()


def clipped_on_the_host(model: nn.Module, loss: Tensor, _: Any) -> None:
    loss.backward()  # type: ignore[no-untyped-call]
    scale = 1e-2 / norm(model).item()
    for each in gradients(model):
        each.mul_(scale)


def clipped_by_a_kernel_of_its_own(model: nn.Module, loss: Tensor, _: Any) -> None:
    loss.backward()  # type: ignore[no-untyped-call]
    for each in gradients(model):
        each.numpy()[...] *= 0.5


def watched(step: Step, of: Callable[..., torch.optim.Optimizer]) -> tuple[MadeGradients, dict[str, Tensor], bool]:
    """The watch of one step; the gradients of its loss, and whether those it says are equal to them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU6(), nn.Linear(16, 4))
    optimizer, watch = of(model.parameters(), lr=1e-2), MadeGradients(dict(model.named_parameters()))
    loss = nn.functional.mse_loss(model(torch.randn(32, 8)), torch.randn(32, 4))
    loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    expected = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    optimizer.zero_grad()
    with watch:
        step(model, loss, optimizer)
        optimizer.step()
    left = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    equal = all(torch.equal(each, expected[name]) for name, each in {**left, **watch.copies}.items())
    return watch, expected, equal


MADE = [
    clipped,
    by_value,
    divided_by_its_norm,
    replaced,
    scaled_back,
    under_a_loss_scale,
    in_two_halves,
    added_by_hand,
    clipped_in_a_closure,
    clipped_by_helpers,
]


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, WritesIntoGradients])
@pytest.mark.parametrize("step", [*MADE, logged])
def test_watched_gradients_equal_the_backward_pass(step: Step, optimizer: Callable[..., torch.optim.Optimizer]) -> None:
    watch, expected, equal = watched(step, optimizer)
    assert (watch.is_sure(), watch.copies.keys(), equal) == (True, expected.keys(), True)
    assert watch.written == (expected.keys() if optimizer is WritesIntoGradients else set())


@pytest.mark.parametrize("fused", [False, True])
def test_gradients_scaled_by_a_gradient_scaler_are_compared_unscaled(*, fused: bool) -> None:
    def step(_: nn.Module, loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)

    watch, _, equal = watched(step, lambda parameters, lr: torch.optim.AdamW(parameters, lr=lr, fused=fused))
    assert (watch.is_sure(), watch.copies, equal) == (True, {}, True)


@pytest.mark.parametrize("step", [clipped_on_the_host, clipped_by_a_kernel_of_its_own])
def test_a_gradient_written_without_an_operator_makes_the_gradient_watch_unsure(step: Step) -> None:
    assert not watched(step, torch.optim.SGD)[0].is_sure()


def test_gradients_of_the_previous_step_do_not_count_as_gradients_of_this_step() -> None:
    used, idle = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    optimizer, watch = torch.optim.SGD([used, idle], lr=0.1), MadeGradients({"used": used, "idle": idle})
    (used + idle).square().sum().backward()  # type: ignore[no-untyped-call]
    with watch:
        optimizer.zero_grad(set_to_none=False)
        used.square().sum().backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_([used, idle], 0.1)
        optimizer.step()
    assert {name: copy.tolist() for name, copy in watch.copies.items()} == {"used": [2.0] * 3, "idle": [0.0] * 3}
    assert watch.written == set()


def test_gradients_that_no_claim_reads_are_not_copied() -> None:
    parameter = nn.Parameter(torch.ones(3))
    watch = MadeGradients({"p": parameter})
    watch.copying = False
    with watch:
        parameter.square().sum().backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_([parameter], 0.1)
    assert watch.copies == {}
    assert watch.record().acted


def test_an_extra_gradient_in_a_control_arm_does_not_fail_the_claim() -> None:
    reduction = TensorReduction(name="expert", digest="d", elements=3, max_abs=1.0)
    record = Gradients(arm="nudged", replica=0, step=0, baseline="plain", tensors=[reduction], groups=[], without=[])
    baseline: Any = SimpleNamespace(gradients=[SimpleNamespace(step=0, without=["expert"], written=None)])
    part: Any = SimpleNamespace(candidate="nudged", baseline="plain", steps=[0])
    assert list(compared_tensors(part, [record], baseline, of_control=True)) == []
    with pytest.raises(Settled, match="expert has a gradient of up to 1 in nudged"):
        list(compared_tensors(part, [record], baseline))


def test_a_failing_gradient_watch_is_unsure_and_raises_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MadeGradients, "_keep", lambda *_: 1 / 0)
    assert not watched(clipped, torch.optim.SGD)[0].is_sure()


GRADIENTS: dict[str, Any] = {name: CLAIM[name] for name in ("id", "title", "why", "if_fails", "judged_on")} | {
    "kind": "gradient_match",
    "candidate": "captured",
    "baseline": "plain",
    "steps": [0, 1],
    "equality": "within",
    "max_relative_difference": 1e-3,
}


CONTROLLED = ARMS | {"nudged": {"capture": "none"}}


def test_late_gradients_within_the_rounding_of_a_control_are_undecided(tmp_path: Path) -> None:
    late = GRADIENTS | {"steps": [0, STEPS - 1]}
    alone = judged("near_ends_systems:Chaotic", tmp_path / "alone", late, arms=CONTROLLED)
    assert alone.reason == "exceeds_tolerance", alone.message
    beside = judged("near_ends_systems:Chaotic", tmp_path / "beside", late | {"control": "nudged"}, arms=CONTROLLED)
    assert (beside.status, beside.reason) == (Status.INCONCLUSIVE, "gradients_undecided"), beside.message


def test_a_control_does_not_excuse_a_loss_scaled_by_a_captured_step(tmp_path: Path) -> None:
    found = judged("clipped_systems:FourTimes", tmp_path, GRADIENTS | {"control": "nudged"}, arms=CONTROLLED)
    assert (found.status, found.reason) == (Status.FAIL, "exceeds_tolerance"), found.message


def test_clipping_does_not_hide_a_loss_scaled_by_a_captured_step(tmp_path: Path) -> None:
    found = judged("clipped_systems:FourTimes", tmp_path, GRADIENTS)
    assert (found.status, found.reason) == (Status.FAIL, "exceeds_tolerance"), found.message
    norms = [found.figures[name].value for name in ("norm_before_clip", "baseline_norm_before_clip")]
    assert norms == pytest.approx([46.198462, 11.549616], rel=1e-6)  # processors add in other orders
    assert "before the clip, the norm of all gradients is" in found.message


def test_a_captured_step_has_the_gradients_of_the_plain_step(tmp_path: Path) -> None:
    found = judged("clipped_systems:Clipped", tmp_path, GRADIENTS | {"equality": "bitwise"})
    assert (found.status, found.reason) == (Status.PASS, "held"), found.message
    assert found.figures["norm_before_clip"].value == found.figures["baseline_norm_before_clip"].value
