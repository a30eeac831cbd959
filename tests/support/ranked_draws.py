"""The loop of examples/ranks with random numbers: masks, and the steps that leave out what the model reads."""

from __future__ import annotations

import importlib
from typing import Any

from harness.contract.schema import Arm, Workload
from harness.system.ranks import data_parallel, rank
from harness.system.step_function import StepFunctionSystem


class Draws(StepFunctionSystem):
    """Each rank has masks of its own, and all leave out the same steps' points."""

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
    """Every rank draws the masks of the others: the seed does not know the rank."""

    def seed_masks(self, seed: int) -> None:
        import torch

        torch.manual_seed(seed)


class UnseededMasks(Draws):
    """Nobody seeds the masks: processes of torchrun draw different ones."""

    def seed_masks(self, seed: int) -> None:
        """Leave the process's generator as it is."""


class DepthApart(Draws):
    """Every rank chooses by itself in which steps it leaves out its points."""

    def depth_seed(self, seed: int) -> int:
        return seed + rank()


class NothingDrawn(Draws):
    def build(self, workload: Workload, arm: Arm) -> tuple[Any, ...]:
        train: Any = importlib.import_module("examples.ranks.ddp_loop.train")
        model, optimizer = train.make_training(workload.seed)
        replica = data_parallel(model)
        batch = lambda index: train.make_batch(index, workload.seed, workload.batch_size)
        return (lambda b: train.train_step(replica, optimizer, b)), batch, lambda: dict(model.named_parameters())
