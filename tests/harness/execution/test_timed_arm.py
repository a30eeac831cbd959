"""Both arms of a timing are open in one process: each block has what its own arm set, and nothing of the other's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from harness.devices.torch_settings import _SETTINGS, restore_torch_settings, torch_settings
from harness.execution.probes.timed_arm import TimedArm


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    known = torch_settings()
    yield
    restore_torch_settings(known)


class Training:
    """Notes torch's settings in each step."""

    def __init__(self) -> None:
        self.seen: list[dict[str, object]] = []

    def step(self, index: int) -> Tensor:
        self.seen.append(torch_settings())
        return torch.ones(())


def opened(training: Training) -> TimedArm:
    life = SimpleNamespace(training=training, steps_called=0)
    return TimedArm(life)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("deterministic", lambda: torch.use_deterministic_algorithms(True)),
        ("anomalies", lambda: torch.autograd.set_detect_anomaly(True)),
        ("gradients", lambda: torch.set_grad_enabled(False)),
        ("dtype", lambda: torch.set_default_dtype(torch.float64)),
        ("threads", lambda: torch.set_num_threads(torch.get_num_threads() + 1)),
        ("float32 products", lambda: torch.set_float32_matmul_precision("high")),
        ("cudnn benchmark", lambda: setattr(torch.backends.cudnn, "benchmark", True)),
        ("attention flash", lambda: torch.backends.cuda.enable_flash_sdp(enabled=False)),
    ],
)
def test_settings_made_by_the_candidate_at_opening_do_not_change_the_baselines_steps(
    name: str, change: Callable[[], object]
) -> None:
    baseline, candidate, before = Training(), Training(), torch_settings()
    first = opened(baseline)
    change()
    second = opened(candidate)
    for arm in (second, first, first, second):
        arm.block(2)
    assert baseline.seen == [before] * 4
    assert [seen[name] != before[name] for seen in candidate.seen] == [True] * 4


def test_settings_made_in_a_step_apply_only_to_its_own_arm() -> None:
    class SetsLater(Training):
        def step(self, index: int) -> Tensor:
            torch.use_deterministic_algorithms(index >= 1)
            return super().step(index)

    plain, later = Training(), SetsLater()
    arms = opened(plain), opened(later)
    for _ in range(2):
        for arm in arms:
            arm.block(1)
    assert [seen["deterministic"] for seen in plain.seen] == [(False, False)] * 2
    assert torch.are_deterministic_algorithms_enabled()
    assert [seen["deterministic"] for seen in later.seen] == [(False, False), (True, False)]


def test_a_torch_setting_that_cannot_be_read_is_not_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch refuses to read a setting by its old name after the setting was changed by its new name."""

    def refuses() -> object:
        raise RuntimeError("mix of the legacy and new APIs")

    known, set_to = torch_settings(), list[object]()
    monkeypatch.setitem(_SETTINGS, "float32 products", (refuses, set_to.append))
    assert "float32 products" not in torch_settings()
    restore_torch_settings(known)
    assert set_to == []
