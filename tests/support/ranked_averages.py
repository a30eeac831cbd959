"""The loop of examples/ranks with DistributedDataParallel, averages of the weights, and a statistic."""

from __future__ import annotations

import importlib
from typing import Any

from harness.contract.schema import Arm, Workload
from harness.system.ranks import data_parallel, world_size
from harness.system.step_function import StepFunctionSystem


class Averages(StepFunctionSystem):
    """Keep averages of the model's weights, and a buffer with the norm of one weight."""

    name = "averages"
    updated_by_ranks: tuple[str, ...] = ("averages", "statistic")
    told: str | None = None

    def build(self, workload: Workload, arm: Arm) -> tuple[Any, ...]:
        import torch

        train: Any = importlib.import_module("examples.ranks.ddp_loop.train")  # written as its users write it
        settings = {"learning_rate": 1e-2, **arm.settings()}
        model, optimizer = train.make_training(workload.seed, learning_rate=settings["learning_rate"])
        model[1].register_buffer("seen", torch.ones(()))
        averages = [parameter.detach().clone() for parameter in model.parameters()]
        replica = data_parallel(model)
        updated = self.updated_by_ranks if world_size() > 1 else Averages.updated_by_ranks

        def step(batch: Any) -> Any:
            loss = train.train_step(replica, optimizer, batch)
            with torch.no_grad():
                if "statistic" in updated:
                    model[1].seen.lerp_(model[1].up.weight.norm(), 0.1)
                for average, parameter in zip(averages, model.parameters(), strict=True):
                    average.lerp_(parameter, 0.1 if "averages" in updated else 0.0)
            return loss

        batch = lambda index: train.make_batch(index, workload.seed, workload.batch_size)
        return step, batch, lambda: dict(model.named_parameters())


class StaleAverages(Averages):
    """Update the averages in one process alone, but not with ranks."""

    updated_by_ranks = ("statistic",)
    told = "tensors averages.0"


class StaleStatistic(Averages):
    """Never update the buffer with ranks; DistributedDataParallel calls it `module.1.seen`."""

    updated_by_ranks = ("averages",)
    told = "buffers 1.seen"
