"""What a watch of a step's operators leaves as it is: compiled code stays compiled, tensors stay where they are."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch.overrides import _get_current_function_mode_stack

from harness.execution.watchers.made_gradients import ClipWatch
from harness.execution.watchers.sync_detectors import DispatchWatch
from harness.system.replay.cpu_as_device import Waits, as_on_a_device
from harness.system.replay.ledger import Ledger
from harness.system.replay.operations import LossTerms, OperatorWatch

LEAVE = {"clips": lambda: ClipWatch({}), "ledger": Ledger, "terms": LossTerms, "operators": OperatorWatch}
STAND_IN = {"waits": lambda: Waits(torch.device("cpu")), "syncs": lambda: DispatchWatch("cpu")}


@pytest.mark.parametrize(
    ("watches", "stands_in"),
    [*(([watch], False) for watch in LEAVE.values()), (list(LEAVE.values()), False)]
    + [([LEAVE["ledger"], watch], True) for watch in STAND_IN.values()],
)
def test_only_watchers_that_separate_host_and_device_intercept_a_step(watches: Any, stands_in: bool) -> None:
    with ExitStack() as entered:
        for watch in watches:
            entered.enter_context(watch())
        with as_on_a_device():
            assert bool(_get_current_function_mode_stack()) == stands_in  # type: ignore[no-untyped-call]
