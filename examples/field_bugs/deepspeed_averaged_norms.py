"""Two ranks hold different experts, but gradients are clipped by the mean of both ranks' norms."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import class_batches
from harness.system.step_function import StepFunction

BUG = Bug(
    title="Gradients are clipped by the mean of the ranks' norms",
    thread="deepspeedai/DeepSpeed#8478",
    users_saw="The global gradient norm, and so the clipping, depends on which rank holds which expert.",
    cause="The norms are averaged over the ranks. This gives the global norm only if all ranks hold the same "
    "parameters.",
    fix="The squared norms of the experts are summed over the ranks, each expert once.",
)

RANKS = 2


class Mixture(nn.Module):
    def __init__(self, experts=4):
        super().__init__()
        self.router = nn.Linear(16, experts)
        self.experts = nn.ModuleList(nn.Linear(16, 4) for _ in range(experts))

    def forward(self, x):
        outputs = torch.stack([expert(x) for expert in self.experts], dim=1)
        return (self.router(x).softmax(-1)[..., None] * outputs).sum(1)


def buggy(seed, optimized):
    return make_step(seed, optimized, averaged=True)


def mended(seed, optimized):
    return make_step(seed, optimized, averaged=False)


def norm_of(parameters):
    return torch.stack([p.grad.norm() for p in parameters]).norm()


def make_step(seed, optimized, averaged):
    torch.manual_seed(seed)
    model = Mixture()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    dense = list(model.router.parameters())
    shards = [[p for expert in model.experts[rank::RANKS] for p in expert.parameters()] for rank in range(RANKS)]

    def norm_over_ranks():
        if averaged:
            return torch.stack([norm_of(dense + shard) for shard in shards]).mean()
        return torch.stack([norm_of(dense), *map(norm_of, shards)]).norm()

    def step(batch):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(batch["x"]), batch["y"])
        loss.backward()
        norm = norm_over_ranks() if optimized else norm_of(model.parameters())
        for p in model.parameters():
            p.grad.mul_((0.05 / (norm + 1e-6)).clamp(max=1.0))
        optimizer.step()
        return loss.detach()

    return StepFunction(step, class_batches(seed, 32, 16, 4), model)
