"""A classifier of sequences with two experts for each token; its validation replays the graph of the training.

How the bug arises: once a layer has a graph, every call of the layer replays this graph. The graph was captured in
training, so a validation also counts its tokens for the router's bias, as training does.
"""

import torch
from torch import nn

from examples.field_bugs.bug import Bug
from examples.field_bugs.own_capture import OwnCaptures, fill
from examples.field_bugs.small_training import DEVICE
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A validation replays the graph that was captured in training",
    thread="NVIDIA/Megatron-LM#6992",
    users_saw="After a capture a validation behaves like training. For example, the router counts the tokens of the "
    "validation.",
    cause="Once a layer has a graph, every call of the layer replays it, including the branches and the buffer updates "
    "of training.",
    fix="A validation has its own graph, captured without gradients.",
)


class Experts(nn.Module):
    def __init__(self, width=16, experts=3):
        super().__init__()
        self.score, self.experts = nn.Linear(width, experts), nn.Linear(width, width * experts)
        self.register_buffer("bias", torch.zeros(experts))
        self.register_buffer("counts", torch.zeros(experts))

    def forward(self, x):
        scores = self.score(x).softmax(-1)
        chosen = torch.zeros_like(scores).scatter(-1, (scores + self.bias).topk(2).indices, 1)
        if torch.is_grad_enabled():
            self.counts += chosen.sum((0, 1))
        each = self.experts(x).relu().unflatten(-1, (-1, x.shape[-1]))
        return x + (each * (scores * chosen)[..., None]).sum(2)

    @torch.no_grad()
    def move_bias(self):
        self.bias += 0.01 * (self.counts.mean() - self.counts).sign()
        self.counts.zero_()


def make_step(seed, captured, key):
    torch.manual_seed(seed)
    experts, captures, static = Experts(), OwnCaptures(captured), {}
    model = nn.Sequential(nn.Embedding(32, 16), experts, nn.Linear(16, 4))
    model.to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def passes():
        loss = nn.functional.cross_entropy(model(static["tokens"]).mean(1), static["labels"])
        if torch.is_grad_enabled():
            model.zero_grad()
            loss.backward()
        return loss.detach()

    def call(batch):
        fill(static, batch)
        if not captured:
            return passes()
        if key() not in captures.graphs:
            captures.capture(key(), passes, static, model.parameters())
        return captures.graphs[key()].replay()

    def step(batch):
        loss = call(batch)
        captures.replays += captured
        optimizer.step()
        experts.move_bias()
        return loss

    def batch(index):
        generator = torch.Generator().manual_seed(20_000 * seed + index)
        labels = torch.randint(4, (8,), generator=generator)
        return {"tokens": torch.randint(8, (8, 4), generator=generator) + 8 * labels[:, None], "labels": labels}

    @torch.no_grad()
    def evaluate():
        return call({name: tensor.to(model[0].weight.device) for name, tensor in batch(19_999).items()}).item()

    return StepFunction(step, batch, model, captured=captures.record, evaluate=evaluate)


def buggy(seed, captured):
    return make_step(seed, captured, lambda: "the layer")


def mended(seed, captured):
    return make_step(seed, captured, torch.is_grad_enabled)
