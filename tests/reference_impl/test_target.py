"""For which GPU kernels are chosen: one that is named, else the one at hand, else Hopper; never by an interpreter."""

from __future__ import annotations

import threading

import pytest
import torch

from reference_impl.kernels import target
from reference_impl.kernels.target import hopper, planning_for


@pytest.fixture(autouse=True)
def asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process was told before is kept from a test, and the other way round."""
    monkeypatch.setattr(target, "_here", target._here.__wrapped__)


def on_device(monkeypatch: pytest.MonkeyPatch, *capability: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(capability))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)


@pytest.mark.parametrize(("capability", "found"), [((9, 0), True), ((8, 0), False), ((12, 0), False), ((), True)])
def test_the_device_capability_determines_whether_hopper_kernels_are_used(
    capability: tuple[int, ...], found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_device(monkeypatch, *capability)
    assert hopper() == found


def test_a_planning_target_replaces_the_device_only_in_its_own_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    on_device(monkeypatch, 8, 0)
    elsewhere: list[bool] = []
    with planning_for("sm_90a"):
        with planning_for("sm_120"):
            assert not hopper()
        assert hopper()
        thread = threading.Thread(target=lambda: elsewhere.append(hopper()))
        thread.start()
        thread.join()
    assert (elsewhere, hopper()) == ([False], False)


def test_an_invalid_planning_target_is_refused() -> None:
    with pytest.raises(ValueError, match="'hopper' is not a PTX target"), planning_for("hopper"):
        pass


def test_the_triton_interpreter_uses_hopper_kernels_only_for_a_named_target(monkeypatch: pytest.MonkeyPatch) -> None:
    on_device(monkeypatch, 9, 0)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert not hopper()
    with planning_for("sm_90"):
        assert hopper()
