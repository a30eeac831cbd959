"""Activation checkpointing runs BatchNorm twice in each step, and both runs update its running statistics."""

from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from examples.field_bugs.bug import Bug
from examples.field_bugs.packages import use_packages
from examples.field_bugs.small_training import update_by
from harness.system.step_function import StepFunction

BUG = Bug(
    title="Running statistics are updated twice a step under activation checkpointing",
    thread="pytorch/pytorch#96136",
    package="torch==2.13.0",
    installed={"mended": ["pytorch-pfn-extras==0.7.7"]},
    users_saw="Runs with and without checkpointing had equal training losses but different evaluation losses.",
    cause="The forward pass runs a second time during the backward pass, and BatchNorm updates its running statistics "
    "both times.",
    fix="torch 2.13.0 has no fix. pytorch-pfn-extras has a checkpointing function with the same interface, in which "
    "the two updates together equal a single one.",
    changed="The harness: BatchNorm's counts of batches are also compared within a bound. At first the fixed form "
    "failed this comparison, because it makes two updates that together equal one. If the counts differ, the "
    "difference of the final statistics now decides.",
)


def buggy(seed, optimized):
    return make_step(seed, partial(checkpoint, use_reentrant=False) if optimized else None)


def mended(seed, optimized):
    use_packages(__file__, "mended")
    from pytorch_pfn_extras.utils.checkpoint import checkpoint as aware_checkpoint

    return make_step(seed, aware_checkpoint if optimized else None)


def make_step(seed, recompute):
    torch.manual_seed(seed)
    body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh())
    model = nn.Sequential(nn.Linear(8, 8), body, nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    unseen = torch.randn(64, 8) + 1

    def predict(x):
        hidden = model[0](x)
        return model[2](recompute(body, hidden) if recompute else body(hidden))

    step = update_by(optimizer, lambda batch: (predict(batch["x"]) - batch["y"]).square().mean())

    def batch(index):
        generator = torch.Generator().manual_seed(100_000 * seed + index)
        x = torch.randn(16, 8, generator=generator) + 1
        return {"x": x, "y": x[:, :2].sin()}

    def evaluate():
        model.eval()
        with torch.no_grad():
            loss = (model(unseen) - unseen[:, :2].sin()).square().mean()
        model.train()
        return loss

    return StepFunction(step=step, batch=batch, parameters=model, evaluate=evaluate)
