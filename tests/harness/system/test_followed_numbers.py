"""Numbers that a step changes in Python, and what it reads them for: what no replay does again."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from harness.system.replay.followed_numbers import HostNumber
from harness.system.replay.traced import TracedStep

THIS = "test_followed_numbers.py"


@dataclass
class Kept:
    """What a step keeps beside its model."""

    done: Any = 0
    first: bool = True
    rate: float = 0.1
    scale: Tensor = field(default_factory=lambda: torch.ones(()))
    log: list[int] = field(default_factory=list)


def recorded(changes: Callable[[Kept], object]) -> tuple[TracedStep, Kept]:
    """Record a step that calls `changes` before its update."""
    torch.manual_seed(0)
    model, kept, batch = nn.Linear(6, 1), Kept(), torch.randn(4, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> Tensor:
        changes(kept)
        optimizer.param_groups[0]["lr"] = kept.rate
        optimizer.zero_grad()
        loss: Tensor = (model(batch) * kept.scale).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss

    traced = TracedStep(step, lambda: dict(model.named_parameters()), roots=[step])
    traced.record()
    return traced, kept


def reading_of(changes: Callable[[Kept], object]) -> str | None:
    """Return what the step reads `kept.done` for."""
    traced, _ = recorded(changes)
    assert traced.host_numbers is not None
    return {each.name: each.read for each in traced.host_numbers}["kept.done"]


def counts(kept: Kept) -> None:
    kept.done += 1


def counts_by_tenths(kept: Kept) -> None:
    kept.done = round(kept.done + 0.1, 3) if kept.log else kept.done + 0.1


def prints(kept: Kept) -> None:
    kept.done += 1
    kept.log[:] = [len(f"{kept.done}: {kept.done / 10:.1%}" + "%d" % kept.done + str(kept.done))]  # noqa: UP031


def counts_by_one(kept: Kept) -> None:
    kept.done += 1
    if kept.done % 1 == 0:
        kept.first = False


@pytest.mark.parametrize("changes", [counts, counts_by_tenths, counts_by_one, prints])
def test_a_host_number_that_a_step_only_counts_or_prints_has_no_reader(changes: Callable[[Kept], object]) -> None:
    assert reading_of(changes) is None


def later(kept: Kept) -> None:
    kept.done += 1
    if kept.done > 500:
        kept.rate = 0.01


def every_thousandth(kept: Kept) -> None:
    kept.done += 1
    if not kept.done % 1000:
        kept.log.append(1)


def in_turns(kept: Kept) -> None:
    kept.done = not kept.done


def clamped(kept: Kept) -> None:
    kept.done += 1
    kept.scale.fill_(min(kept.done, 1000) / 1000)


def from_a_table(kept: Kept, rates: Any = (0.1,) * 9) -> None:
    kept.done += 1
    kept.rate = rates[kept.done]


def looked_up(kept: Kept) -> None:
    kept.done += 1
    kept.rate = {500: 0.01}.get(kept.done, kept.rate)


def repeated(kept: Kept) -> None:
    kept.done += 1
    for _ in range(kept.done // 500):
        kept.scale.mul_(0.5)


def interpolated(kept: Kept) -> None:
    kept.done += 1
    kept.log[:] = [int(np.interp(kept.done, [0, 1000], [0, 1]))]


def annealed(kept: Kept) -> None:
    kept.done += 1
    kept.rate = 0.1 * (1 + math.cos(math.pi * kept.done / 100))


def copied(kept: Kept) -> None:
    kept.done += 1
    kept.log[:] = [copy.deepcopy(kept.done) - kept.done]


def scaling(kept: Kept) -> None:
    kept.done += 1
    kept.scale.copy_(torch.ones(()) * (1 + 1e-9 * kept.done))


@pytest.mark.parametrize(
    ("changes", "read"),
    [
        (later, "compared"),
        (every_thousandth, "compared"),
        (in_turns, "compared"),
        (clamped, "compared"),
        (from_a_table, "converted to a plain number or an index"),
        (looked_up, "looked up"),
        (repeated, "converted to a plain number or an index"),
        (interpolated, "given to numpy"),
        (copied, "copied"),
        (scaling, "converted to a Tensor"),
    ],
)
def test_a_host_number_that_a_later_step_reads_is_named_with_the_line(
    changes: Callable[[Kept], object], read: str
) -> None:
    found = reading_of(changes)
    assert found is not None
    assert (found.startswith(f"{read} at "), THIS in found) == (True, True), found


def test_a_host_number_passed_to_c_code_counts_as_read() -> None:
    assert reading_of(annealed) == "given to code that takes only a plain number"


def built_once(kept: Kept) -> None:
    if kept.first:
        kept.first, kept.done = False, 3


def test_a_host_number_that_only_the_first_step_changes_is_not_followed() -> None:
    traced, _ = recorded(built_once)
    assert (len(traced.host_changes), traced.host_numbers) == (2, [])


def test_host_numbers_are_not_followed_if_several_ranks_train_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    traced, _ = recorded(later)
    assert (len(traced.host_changes), traced.host_numbers) == (1, None)


def test_following_numbers_leaves_no_proxy_in_the_users_objects() -> None:
    traced, kept = recorded(later)
    assert (kept.done, type(kept.done), kept.rate, traced.fake_pass_clean) == (0, int, 0.1, True)


def test_host_numbers_in_an_optimizers_state_are_followed() -> None:
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        optimizer.state[parameter]["step"] = 0

    def step() -> Tensor:
        for parameter in model.parameters():
            optimizer.state[parameter]["step"] += 1
        loss: Tensor = model(torch.ones(4, 6)).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss

    traced = TracedStep(step, lambda: dict(model.named_parameters()), roots=[step])
    traced.record()
    assert traced.host_numbers == [HostNumber(f"optimizer.state.{number}.step", None) for number in (0, 1)]


def test_a_count_inside_an_iterator_is_not_followed() -> None:
    """The page docs/what-a-verdict-proves.md states this limitation."""
    count: Iterator[int] = itertools.count()
    traced, _ = recorded(lambda kept: setattr(kept, "rate", 0.01 if next(count) > 500 else 0.1))
    assert traced.host_numbers == []
