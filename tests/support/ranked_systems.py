"""A small system for several ranks, whose last rank fails in its third step if an arm requests it."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import torch
from sockets import write_to_sockets
from step_function_systems import Descending
from torch import Tensor, nn

from harness.contract.schema import Arm, Workload
from harness.system.ranks import rank, world_size

FAILING_STEP = 2


def misbehave(how: str) -> None:
    if how in {"stopped", "hangs"} and "RANKS_THAT_HANG" in os.environ:
        with Path(os.environ["RANKS_THAT_HANG"]).open("a", encoding="utf-8") as hanging:
            hanging.write(f"{os.getpid()}\n")
    match how:
        case "raises":
            raise ValueError("this rank is broken")
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "hangs":
            threading.Event().wait()  # the line at which it hangs: HANGS
        case "garbles":
            write_to_sockets(b"...\n")
            threading.Event().wait()
        case "leaves":
            os._exit(0)


class Ranked(Descending):
    """last_rank: how the last rank fails. note: a file to which every rank adds its process id."""

    name = "ranked"
    arm_options = {"learning_rate": float, "last_rank": str, "note": str}  # noqa: RUF012 - as in adapters

    def build(self, workload: Workload, arm: Arm) -> tuple[Any, Any, Any]:
        settings = arm.settings()
        trains, batch, parameters = super().build(workload, arm)
        steps = iter(range(workload.steps))
        if "note" in settings:
            with Path(str(settings["note"])).open("a", encoding="utf-8") as note:
                note.write(f"{os.getpid()}\n")

        def step(batch: Any) -> Any:
            if next(steps) == FAILING_STEP and rank() == world_size() - 1:
                misbehave(str(settings.get("last_rank", "trains")))
            return trains(batch)

        return step, batch, parameters

    def before_update(self, loss: Tensor, model: nn.Module) -> None:
        """Average the gradients of all ranks by hand, because DistributedDataParallel imports torch._dynamo."""
        for parameter in model.parameters() if world_size() > 1 else ():
            assert parameter.grad is not None
            torch.distributed.all_reduce(parameter.grad)
            parameter.grad.div_(world_size())
