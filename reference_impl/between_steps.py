"""Save, load and evaluate a run of the trainer between its steps.

A checkpoint is one safetensors file with the parameters, Adam's moments and step counts, and the learning rate. Model
shape and settings are not saved, so the run that loads the file must have the same shape and settings. No random state
is saved, because a step draws no random number. A step's batch and learning rate depend only on its index.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from reference_impl.cuda_graph import CapturingTrainer
from reference_impl.errors import ReferenceImplError

HELD_OUT_BATCHES = 2


class BetweenSteps:
    """The saving, loading and evaluation of one opened trainer, captured or not, between its steps."""

    def __init__(self, capturing: CapturingTrainer) -> None:
        self.capturing, self.trainer = capturing, capturing.trainer

    def state(self) -> dict[str, Tensor]:
        """Return a checkpoint's tensors by name: every tensor through which earlier steps affect later steps."""
        optimizer = self.trainer.optimizer
        return {
            "parameters": self.trainer.trainable.flat,
            **optimizer.state_tensors(),
            "learning_rate": optimizer.learning_rate,
        }

    def save(self, path: Path) -> None:
        """Write the state to the file `path`. When the method returns, the data has been flushed to disk."""
        save_file({name: tensor.detach().cpu() for name, tensor in self.state().items()}, path)
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

    @torch.no_grad()
    def load(self, path: Path) -> None:
        """Copy the state from the file `path` into the existing tensors of the trainer, whose addresses captured graphs
        contain.

        Raises `ReferenceImplError` if the checkpoint's names or shapes differ from the trainer's.
        """
        loaded, state = load_file(path), self.state()
        shapes = [{name: tensor.shape for name, tensor in tensors.items()} for tensors in (loaded, state)]
        if shapes[0] != shapes[1]:
            found = (
                ", ".join(sorted(loaded))
                if loaded.keys() != state.keys()
                else "tensors whose shapes differ from the step's"
            )
            raise ReferenceImplError(
                "checkpoint",
                f"{path.name} holds {found}",
                "load it in a run with the model and settings of the saved run",
            )
        for name, tensor in state.items():
            tensor.copy_(loaded[name])

    @torch.no_grad()
    def evaluate(self) -> Tensor:
        """Return the mean loss (0-d) of the last two batches of the text. Buffers of the training are not changed."""
        trainer, shape = self.trainer, self.trainer.static.shape
        last = trainer.data.distinct(trainer.mean_over // shape.seq_len, shape.seq_len)
        losses = []
        for index in range(last - HELD_OUT_BATCHES, last):
            tokens, targets = (each.to(trainer.device) for each in trainer.batch(index))
            loss, _ = trainer.model.forward(tokens, targets, shape)
            losses.append(loss)
        return torch.stack(losses).mean()
