"""RReLU under activation checkpointing: the recomputation returns the saved noise tensor before it is filled."""

from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import class_batches, update_by
from harness.system.step_function import StepFunction

BUG = Bug(
    title="RReLU's gradients are wrong under activation checkpointing",
    thread="pytorch/pytorch#193671",
    package="torch==2.13.0",
    users_saw="The forward pass is equal in bits, and only a comparison of gradients shows the error.",
    cause="The operator saves its noise tensor before it fills the tensor. The recomputation stops as soon as all "
    "tensors are saved, and therefore returns the noise tensor unfilled.",
    fix="torch 2.13.0 has no fix. Here the recomputation runs to its end instead of stopping early.",
)


def buggy(seed, optimized):
    return make_step(seed, optimized, nullcontext)


def mended(seed, optimized):
    return make_step(seed, optimized, lambda: set_checkpoint_early_stop(False))


def make_step(seed, optimized, context):
    torch.manual_seed(seed)
    first, activation, last = nn.Linear(16, 32), nn.RReLU(0.1, 0.9), nn.Linear(32, 4)
    optimizer = torch.optim.AdamW([*first.parameters(), *last.parameters()], lr=3e-3)

    def loss_of(batch):
        hidden = first(batch["x"])
        if not optimized:
            return functional.cross_entropy(last(activation(hidden)), batch["y"])
        with context():
            hidden = checkpoint(activation, hidden, use_reentrant=False)
        return functional.cross_entropy(last(hidden), batch["y"])

    step = update_by(optimizer, loss_of)
    return StepFunction(step, class_batches(seed, 32, 16, 4), nn.ModuleList([first, last]))
