"""A clip is known by what becomes of gradients, whatever functions it is written with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from harness.evidence.arm_records import Clip
from harness.execution.watchers.made_gradients import ClipWatch

Parameters = list[nn.Parameter]


def _norm(parameters: Parameters) -> torch.Tensor:
    return torch.sqrt(torch.stack([_gradient(each).square().sum() for each in parameters]).sum())


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


def by_hand(parameters: Parameters, bound: float) -> None:
    scale = torch.minimum(torch.ones(()), bound / (_norm(parameters) + 1e-6))
    for each in parameters:
        _gradient(each).mul_(scale)


def replaced(parameters: Parameters, bound: float) -> None:
    norm = _norm(parameters)
    scale = torch.where(norm > bound, bound / norm, 1.0)
    for each in parameters:
        each.grad = _gradient(each) * scale


def one_by_one(parameters: Parameters, bound: float) -> None:
    nn.utils.clip_grad_norm_(parameters, bound, foreach=False)


def on_the_host(parameters: Parameters, bound: float) -> None:
    norm = _norm(parameters).item()
    if norm > bound:
        for each in parameters:
            _gradient(each).mul_(bound / norm)


def scaled(parameters: Parameters, bound: float) -> None:
    for each in parameters:
        _gradient(each).mul_(0.5)


def watched(
    clip: Callable[[Parameters, float], Any], bound: float, optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW
) -> Clip:
    """What is seen in three steps of a model whose forward pass saturates, too."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU6(), nn.Linear(16, 4))
    update, watch = optimizer(model.parameters(), lr=1e-2), ClipWatch(dict(model.named_parameters()))  # type: ignore[call-arg]
    for _ in range(3):
        found, wanted = torch.randn(32, 8), torch.randn(32, 4)
        with watch:
            update.zero_grad()
            nn.functional.mse_loss(model(found), wanted).backward()  # type: ignore[no-untyped-call]
            clip(list(model.parameters()), bound)
            update.step()
    return watch.record()


CLIPS = [nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_, one_by_one, by_hand, replaced]


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize(("bound", "acted"), [(30.0, False), (1e-3, True)])
def test_a_gradient_clip_is_recorded_with_whether_it_changed_a_gradient(
    clip: Callable[[Parameters, float], Any], bound: float, *, acted: bool
) -> None:
    seen = watched(clip, bound)
    assert (seen.seen, seen.acted) == (True, acted)


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
@pytest.mark.parametrize("unclipped", [lambda *_: None, scaled])
def test_a_step_without_a_clip_records_none(
    unclipped: Callable[[Parameters, float], Any], optimizer: type[torch.optim.Optimizer]
) -> None:
    assert watched(unclipped, 30.0, optimizer).seen is False


def test_gradients_read_by_the_host_leave_the_clip_watch_undecided() -> None:
    assert watched(on_the_host, 30.0).seen is None


def test_a_hook_in_the_backward_pass_may_be_a_clip() -> None:
    parameter = nn.Parameter(torch.ones(3))
    parameter.register_hook(lambda gradient: gradient.clamp(-1, 1))  # type: ignore[no-untyped-call]
    watch = ClipWatch({"weight": parameter})
    with watch:
        (parameter * 2).sum().backward()  # type: ignore[no-untyped-call]
        torch.optim.SGD([parameter], lr=0.1).step()
    assert watch.record().seen is None
