"""Attention whose weights are clipped by the largest logits of two micro-batches; replays lose this maximum.

How the bug arises: each forward pass assigns the largest logits so far to an attribute. After the update, the code that
clips the weights reads the attribute and assigns None. A replay assigns nothing, so no weight is clipped.
"""

import torch
from torch import nn

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import DEVICE
from harness.system.step_function import StepFunction

BUG = Bug(
    title="Replays lose the largest attention logits, so the clip that uses them does nothing",
    thread="NVIDIA/Megatron-LM#7518",
    users_saw="In the first replayed step the maximum does not include all micro-batches. Later steps have no maximum "
    "(reported in #7475).",
    cause="The forward pass assigns each new maximum to a Python attribute. The code that clips the weights then sets "
    "the attribute to None. A replay executes neither assignment.",
    fix="The maximum is a buffer that is updated and cleared in place.",
)


class Attention(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.q, self.k = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.begin()

    def forward(self, x):
        logits = self.q(x) @ self.k(x).mT
        self.note(logits.detach().max())
        return x + logits.softmax(-1) @ x

    def begin(self):
        self.largest = None

    def note(self, found):
        self.largest = found if self.largest is None else torch.maximum(self.largest, found)

    @torch.no_grad()
    def clip(self):
        if self.largest is None:
            return
        scale = (0.5 / self.largest).clamp(0, 1).sqrt()
        self.q.weight.mul_(scale)
        self.k.weight.mul_(scale)
        self.forget()

    def forget(self):
        self.largest = None


class AttentionWithBuffer(Attention):
    def begin(self):
        self.register_buffer("largest", torch.zeros(()), persistent=False)

    def note(self, found):
        self.largest.copy_(torch.maximum(self.largest, found))

    def forget(self):
        self.largest.zero_()


def make_step(seed, attention_class):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Embedding(32, 16), attention_class(), nn.Linear(16, 32))
    model.to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)

    def step(batch):
        optimizer.zero_grad()
        losses = []
        for tokens in batch["tokens"].unbind():
            logits = model(tokens[:, :-1])
            losses.append(nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()) / 2)
            losses[-1].backward()
        optimizer.step()
        return sum(losses).detach()

    def batch(index):
        start = torch.randint(32, (2, 4, 1), generator=torch.Generator().manual_seed(20_000 * seed + index))
        return {"tokens": (start + 3 * torch.arange(7)) % 32}

    return StepFunction(step, batch, model, after=model[1].clip)


def buggy(seed):
    return make_step(seed, Attention)


def mended(seed):
    return make_step(seed, AttentionWithBuffer)
