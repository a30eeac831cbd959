"""Two ranks divide the loss by the tokens of both ranks, and then average gradients; AdamW hides the wrong scale."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import normal_batches
from harness.system.step_function import StepFunction

BUG = Bug(
    title="Gradients are divided by the number of ranks twice",
    thread="pytorch/torchtitan#2323",
    users_saw="In short runs the losses are the same, because AdamW does not depend on the scale of gradients, but the "
    "gradient norms are different.",
    cause="Each loss is already divided by the number of tokens on all ranks. Data parallelism then also averages the "
    "gradients over the ranks.",
    fix="Gradients are summed over the ranks.",
)

RANKS = 2


def buggy(seed, optimized):
    return make_step(seed, optimized, divided_by=RANKS)


def mended(seed, optimized):
    return make_step(seed, optimized, divided_by=1)


def make_step(seed, optimized, divided_by):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(10, 32), nn.SiLU(), nn.Linear(32, 3))
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=2e-3)

    def step(batch):
        optimizer.zero_grad()
        ranks = RANKS if optimized else 1
        pieces = zip(batch["x"].chunk(ranks), batch["y"].chunk(ranks), strict=True)
        losses = [functional.cross_entropy(model(x), y, reduction="sum") / len(batch["y"]) for x, y in pieces]
        grads = [torch.autograd.grad(loss, parameters) for loss in losses]
        for p, *of_ranks in zip(parameters, *grads, strict=True):
            p.grad = sum(of_ranks) / (divided_by if optimized else 1)
        optimizer.step()
        return torch.stack(losses).sum().detach()

    return StepFunction(step, normal_batches(seed, (32, 10), lambda x: x[:, :3].argmax(1)), model)
