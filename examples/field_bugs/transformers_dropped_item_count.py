"""A model head accepts any keyword argument, and ignores the number of items that should divide its loss."""

import inspect

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A model head ignores the number of items, so the loss is not divided",
    thread="huggingface/transformers#47688",
    users_saw="With gradient accumulation the loss and the gradients are multiplied by the number of micro-batches (8 "
    "times as large in axolotl-ai-cloud/axolotl#2262).",
    cause="If `forward` accepts **kwargs, the trainer assumes that the model divides the loss by the number of items "
    "in the whole batch, so the trainer does not divide the loss. But the model's head ignores this number.",
    fix="The head divides its summed loss by the given number of items.",
)


class Tagger(nn.Module):
    """A label for each token; -100 marks those that have none."""

    def __init__(self, counts):
        super().__init__()
        self.counts = counts
        self.body = nn.Sequential(nn.Embedding(32, 32), nn.Linear(32, 32), nn.GELU())
        self.head = nn.Linear(32, 8)

    def forward(self, tokens, labels, **keywords):
        logits, labels = self.head(self.body(tokens)).flatten(0, 1), labels.flatten()
        items = keywords.get("items") if self.counts else None
        if items is None:
            return functional.cross_entropy(logits, labels)
        return functional.cross_entropy(logits, labels, reduction="sum") / items


class Trainer:
    """Divides by the number of micro-batches only where the model does not divide by all of their items."""

    def __init__(self, model, optimizer, micro_batches):
        self.model, self.optimizer, self.micro_batches = model, optimizer, micro_batches
        parameters = inspect.signature(model.forward).parameters.values()
        self.model_counts = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)

    def step(self, batch):
        self.optimizer.zero_grad()
        items, total = (batch["labels"] != -100).sum(), torch.zeros(())
        pairs = zip(batch["tokens"].chunk(self.micro_batches), batch["labels"].chunk(self.micro_batches), strict=True)
        for tokens, labels in pairs:
            if self.model_counts:
                loss = self.model(tokens, labels, items=items)
            else:
                loss = self.model(tokens, labels) / self.micro_batches
            loss.backward()
            total = total + loss.detach()
        self.optimizer.step()
        return total


def buggy(seed, optimized):
    return make_step(seed, optimized, mended=False)


def mended(seed, optimized):
    return make_step(seed, optimized, mended=True)


def make_step(seed, optimized, mended):
    torch.manual_seed(seed)
    model = Tagger(counts=mended)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)

    def batch(index):
        generator = torch.Generator().manual_seed(1000 * seed + index)
        tokens = torch.randint(0, 32, (8, 16), generator=generator)
        lengths = torch.randint(4, 17, (8, 1), generator=generator)
        return {"tokens": tokens, "labels": (tokens % 8).where(torch.arange(16) < lengths, -100)}

    return StepFunction(Trainer(model, optimizer, 4 if optimized else 1).step, batch, model)
