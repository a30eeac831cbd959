"""A tied output projection allocates its own weight, which nothing reads and which the optimizer decays."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import token_batches
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A tied projection has its own weight, which nothing reads",
    thread="NVIDIA/Megatron-LM#7577",
    users_saw="The optimizer and the checkpoints contain a trainable tensor that has no use, and that weight decay "
    "changes at every step. Sharded training aborts.",
    cause="The constructor allocates a weight, although every call is given the embedding's weight instead.",
    fix="The constructor allocates no weight if the weight is shared.",
)


def buggy(seed, optimized):
    return make_step(seed, optimized, allocates=True)


def mended(seed, optimized):
    return make_step(seed, optimized, allocates=False)


class Tied(nn.Module):
    def __init__(self, allocates):
        super().__init__()
        self.embedding, self.body = nn.Embedding(32, 12), nn.Linear(12, 12)
        if allocates:
            self.projection = nn.Linear(12, 32, bias=False)

    def forward(self, tokens):
        return torch.tanh(self.body(self.embedding(tokens))) @ self.embedding.weight.T


def make_step(seed, optimized, allocates):
    torch.manual_seed(seed)
    model = Tied(optimized and allocates)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    sizes = [p.numel() for p in model.parameters()]
    flat = []

    def clear():
        """The optimized arm has all gradients in one buffer, which comes with the first step."""
        if not optimized:
            optimizer.zero_grad()
            return
        if not flat:
            flat.append(torch.zeros(sum(sizes)))
            for p, piece in zip(model.parameters(), flat[0].split(sizes), strict=True):
                p.grad = piece.view_as(p)
        flat[0].zero_()

    def step(batch):
        clear()
        logits = model(batch["tokens"][:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), batch["tokens"][:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    batch = token_batches(seed, 4, 9, by=5)

    return StepFunction(step, batch, model)
