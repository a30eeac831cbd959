"""A compiled backward pass in CUDA graphs leaves gradients in memory that its next run overwrites."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import DEVICE, class_batches
from harness.system.protocol import NotAvailable
from harness.system.step_function import StepFunction

BUG = Bug(
    title="CUDA graphs under torch.compile overwrite accumulated gradients",
    thread="pytorch/pytorch#169545",
    users_saw="With torch.compile in reduce-overhead mode and gradient accumulation, the second backward pass raises "
    "an error: a tensor output was overwritten by a subsequent run.",
    cause="The output of the backward graph becomes `.grad` without a copy. This memory belongs to the memory pool of "
    "the graphs, and the next run of the graphs reuses it.",
    fix="The trainer allocates the memory of the gradients itself and zeroes it in place, so each backward pass adds "
    "to it.",
    missed="Nothing finds the bug without a CUDA device: there the compiled arm is not run, because torch.compile "
    "captures CUDA graphs only on CUDA.",
)


def buggy(seed, optimized):
    return make_step(seed, optimized, mended=False)


def mended(seed, optimized):
    return make_step(seed, optimized, mended=True)


def make_step(seed, optimized, mended):
    if optimized and not torch.cuda.is_available():
        raise NotAvailable("torch.compile captures CUDA graphs on a CUDA device alone, and there is none")
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    forward = torch.compile(model, mode="reduce-overhead") if optimized else model
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)  # memory of the trainer, not of the graph

    def step(batch):
        optimizer.zero_grad(set_to_none=not mended)
        total = torch.zeros((), device=DEVICE)
        for x, y in zip(batch["x"].chunk(4), batch["y"].chunk(4), strict=True):
            torch.compiler.cudagraph_mark_step_begin()
            loss = functional.cross_entropy(forward(x).clone(), y) / 4
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        return total

    batch = class_batches(seed, 32, 16, 4)

    return StepFunction(step, batch, model)
