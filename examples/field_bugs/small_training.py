"""Parts that many entries share: batches, a plain update, and checkpoints. An entry itself has only the buggy code.

Shapes: x [rows, width]; y [rows] or [rows, outputs]; tokens [rows, length].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Batch = dict[str, Tensor]
Batches = Callable[[int], Batch]


def drawn(seed: int, index: int, apart: int) -> torch.Generator:
    """Return the generator of one batch; the first batches of two seeds are `apart` indices apart."""
    return torch.Generator().manual_seed(apart * seed + index)


def normal_batches(seed: int, shape: Sequence[int], labels: Callable[[Tensor], Tensor], apart: int = 20_000) -> Batches:
    """Return batches of normal numbers `x` of a shape, and of what `labels` makes of them, `y`."""

    def batch(index: int) -> Batch:
        x = torch.randn(*shape, generator=drawn(seed, index, apart))
        return {"x": x, "y": labels(x)}

    return batch


def class_batches(seed: int, rows: int, width: int, classes: int) -> Batches:
    """Return batches of classes `y`, and of normal numbers `x` in which the class stands out by 2."""

    def batch(index: int) -> Batch:
        generator = drawn(seed, index, apart=1000)
        y = torch.randint(0, classes, (rows,), generator=generator)
        return {"x": torch.randn(rows, width, generator=generator) + 2 * functional.one_hot(y, width), "y": y}

    return batch


def token_batches(seed: int, rows: int, length: int, by: int = 3, apart: int = 20_000) -> Batches:
    """Return batches of rows that begin with any of 32 tokens and count on in steps of `by`."""

    def batch(index: int) -> Batch:
        start = torch.randint(32, (rows, 1), generator=drawn(seed, index, apart))
        return {"tokens": (start + by * torch.arange(length)) % 32}

    return batch


def update_by(optimizer: Any, loss_of: Callable[[Batch], Tensor]) -> Callable[[Batch], Tensor]:
    """Return the step that computes a loss, its gradients and one update."""

    def step(batch: Batch) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    return step


def next_token_loss(model: Callable[[Tensor], Tensor], tokens: Tensor) -> Tensor:
    """Return the cross entropy of each token given those before it in its row."""
    return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def checkpoints(*, generator: bool = False, **parts: Any) -> tuple[Callable[[Path], None], Callable[[Path], None]]:
    """Return `save` and `load` of what has a `state_dict`, and of torch's generator if it is asked for."""

    def save(path: Path) -> None:
        states = {name: part.state_dict() for name, part in parts.items()}
        torch.save(states | ({"generator": torch.get_rng_state()} if generator else {}), path)

    def load(path: Path) -> None:
        saved = torch.load(path, weights_only=False)
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        if generator:
            torch.set_rng_state(saved["generator"])

    return save, load
