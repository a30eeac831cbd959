"""The loop of examples/ranks with random numbers: dropout masks, and steps that leave out the model's input."""

from __future__ import annotations

import importlib
from typing import Any

from harness.contract.schema import Arm, Workload
from harness.system.ranks import data_parallel, rank
from harness.system.step_function import StepFunctionSystem


class Draws(StepFunctionSystem):
    """Draw different masks in each rank, but leave out the input in the same steps."""

    name = "draws"

    def build(self, workload: Workload, arm: Arm) -> tuple[Any, ...]:
        import torch

        train: Any = importlib.import_module("examples.ranks.ddp_loop.train")  # written as its users write it
        with torch.random.fork_rng():
            model, optimizer = train.make_training(workload.seed)
        replica = data_parallel(model)
        self.seed_masks(workload.seed)
        depth = torch.Generator().manual_seed(self.depth_seed(workload.seed))

        def step(batch: Any) -> Any:
            kept = (torch.rand((), generator=depth) < 0.8).float()
            points = torch.nn.functional.dropout(batch["points"], 0.1)
            return train.train_step(replica, optimizer, {**batch, "points": kept * points})

        batch = lambda index: train.make_batch(index, workload.seed, workload.batch_size)
        return step, batch, lambda: dict(model.named_parameters())

    def seed_masks(self, seed: int) -> None:
        import torch

        torch.manual_seed(seed + rank())

    def depth_seed(self, seed: int) -> int:
        return seed


class SharedMasks(Draws):
    """Draw the same masks in every rank, because the seed does not depend on the rank."""

    def seed_masks(self, seed: int) -> None:
        import torch

        torch.manual_seed(seed)


class UnseededMasks(Draws):
    """Seed no masks, so that processes of torchrun draw different ones."""

    def seed_masks(self, seed: int) -> None:
        """Leave the process's generator as it is."""


class DepthApart(Draws):
    """Let every rank choose for itself in which steps it leaves out its input."""

    def depth_seed(self, seed: int) -> int:
        return seed + rank()


class NothingDrawn(Draws):
    def build(self, workload: Workload, arm: Arm) -> tuple[Any, ...]:
        train: Any = importlib.import_module("examples.ranks.ddp_loop.train")
        model, optimizer = train.make_training(workload.seed)
        replica = data_parallel(model)
        batch = lambda index: train.make_batch(index, workload.seed, workload.batch_size)
        return (lambda b: train.train_step(replica, optimizer, b)), batch, lambda: dict(model.named_parameters())
