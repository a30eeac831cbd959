"""A user's trainer that processes its batch in micro-batches: correctly, and with known mistakes of other trainers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from harness.contract.schema import Arm, Workload
from harness.system.step_function import StepFunction, StepFunctionSystem

PARTS, IGNORED, WORDS, MAX_NORM = 4, -100, 11, 0.05


class Step:
    """One update of a small model; `wrong` names the mistake in its accumulation."""

    def __init__(self, rate: float, parts: int, wrong: str, *, clips: bool, optimizer: Any) -> None:
        self.model = nn.Sequential(nn.Embedding(WORDS, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, WORDS))
        self.optimizer = optimizer(self.model.parameters(), lr=torch.tensor(rate), fused=True)
        self.parts, self.wrong, self.clips = parts, wrong if parts > 1 else "", clips

    def __call__(self, batch: dict[str, Tensor]) -> Tensor:
        counted = (batch["labels"] != IGNORED).sum()
        if self.wrong != "kept":
            self.optimizer.zero_grad()
        if self.parts == 1:
            loss = self.loss_of(batch["tokens"], batch["labels"], counted)
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            loss = self.accumulate(batch, counted)
        if self.clips:
            self.clip()
        self.optimizer.step()
        return loss.detach()

    def loss_of(self, tokens: Tensor, labels: Tensor, counted: Tensor) -> Tensor:
        logits = self.model(tokens).flatten(0, -2)
        total = nn.functional.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED, reduction="sum")
        if self.wrong == "mean of means":
            return total / (labels != IGNORED).sum() / self.parts
        return total / counted * (self.parts if self.wrong == "undivided" else 1)

    def accumulate(self, batch: dict[str, Tensor], counted: Tensor) -> Tensor:
        losses = []
        for number in range(self.parts - (self.wrong == "dropped")):
            if self.wrong == "overwritten":
                self.optimizer.zero_grad()
            source = {"used twice": max(number, 1), "the first for all": 0}.get(self.wrong, number)
            losses.append(self.loss_of(batch["tokens"][source], batch["labels"][source], counted))
            losses[-1].backward()  # type: ignore[no-untyped-call]
            if self.wrong == "clipped each":
                self.clip()
            if self.wrong == "updated each" and number < self.parts - 1:
                self.optimizer.step()
                self.optimizer.zero_grad()
        return torch.stack([loss.detach() for loss in losses]).sum()

    def clip(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM)


class Accumulating(StepFunctionSystem):
    """Train on four sequences of tokens and labels; different numbers of labels are ignored in each sequence."""

    name = "accumulating"
    arm_options: Mapping[str, Any] = {"micro_batches": int, "learning_rate": float}
    wrong = ""
    clips = False
    optimizer: Any = torch.optim.AdamW

    def build(self, workload: Workload, arm: Arm) -> StepFunction:
        torch.manual_seed(workload.seed)
        settings = arm.settings()
        parts = int(settings.get("micro_batches", 1))
        rate = float(settings.get("learning_rate", 0.05))
        step = Step(rate, parts, self.wrong, clips=self.clips, optimizer=self.optimizer)
        return StepFunction(step, self.batches(parts), lambda: dict(step.model.named_parameters()))

    def batches(self, parts: int) -> Callable[[int], dict[str, Tensor]]:
        """Return a function of the step that returns four sequences, as `parts` micro-batches or as one batch."""

        def batch(index: int) -> dict[str, Tensor]:
            drawn = torch.Generator().manual_seed(index)
            tokens = torch.randint(WORDS, (PARTS, 8), generator=drawn)
            if self.wrong == "loaded twice":
                tokens[1] = tokens[0]
            labels = (tokens + 1) % WORDS
            for row in range(PARTS):
                labels[row, 2 + 2 * row :] = IGNORED
            if self.wrong == "loaded twice":
                labels[1] = labels[0]
            shape = (PARTS, 8) if parts == 1 else (parts, PARTS // parts, 8)
            return {"tokens": tokens.view(shape), "labels": labels.view(shape)}

        return batch


class UsedTwice(Accumulating):
    wrong = "used twice"


class FirstForAll(Accumulating):
    wrong = "the first for all"


class Dropped(Accumulating):
    wrong = "dropped"


class Kept(Accumulating):
    wrong = "kept"


class Undivided(Accumulating):
    wrong = "undivided"


class MeanOfMeans(Accumulating):
    """Accumulate like transformers' Trainer until October 2024."""

    wrong = "mean of means"


class Overwritten(Accumulating):
    wrong = "overwritten"


class UpdatedEach(Accumulating):
    wrong = "updated each"


class ClippedOnce(Accumulating):
    clips = True


class ClippedEach(Accumulating):
    wrong = "clipped each"
    clips = True


class LoadedTwice(Accumulating):
    wrong = "loaded twice"


class WithoutCounter(Accumulating):
    """Train with an optimizer that does not count its updates."""

    optimizer = torch.optim.SGD


class WithOwnCounter(WithoutCounter):
    """Train with such an optimizer, but count the updates in the state's tensor `updates`."""

    def build(self, workload: Workload, arm: Arm) -> StepFunction:
        right = super().build(workload, arm)
        updates = torch.zeros(())

        def step(batch: dict[str, Tensor]) -> Tensor:
            updates.add_(1)
            return right.step(batch)

        return StepFunction(step, right.batch, right.parameters, state=lambda: {"updates": updates})
