"""Two ranks, simulated in one process, reduce gradients before the last micro-batch's gradient is added."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import normal_batches
from harness.system.step_function import StepFunction

BUG = Bug(
    title="The average over the ranks lacks the last micro-batch's gradient",
    thread="deepspeedai/DeepSpeed#7985",
    users_saw="For equal batches the losses and gradient norms depend on the size of the micro-batches.",
    cause="Gradients are reduced over the ranks before each rank adds the last micro-batch's gradient to its own sum.",
    fix="Each rank adds the last micro-batch's gradient before the gradients are reduced.",
)

RANKS, MICRO_BATCHES = 2, 3


def buggy(seed, optimized):
    return make_step(seed, optimized, reduced_before=MICRO_BATCHES - 1)


def mended(seed, optimized):
    return make_step(seed, optimized, reduced_before=MICRO_BATCHES)


def make_step(seed, optimized, reduced_before):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(10, 32), nn.SiLU(), nn.Linear(32, 3))
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=2e-3)

    def loss_of(x, y):
        return functional.cross_entropy(model(x), y)

    def sharded(batch):
        pieces = list(
            zip(batch["x"].chunk(RANKS * MICRO_BATCHES), batch["y"].chunk(RANKS * MICRO_BATCHES), strict=True)
        )
        losses = [loss_of(*piece) for piece in pieces]
        grads = [torch.autograd.grad(loss, parameters) for loss in losses]
        for number, parameter in enumerate(parameters):
            of = lambda rank, micro, number=number: grads[rank * MICRO_BATCHES + micro][number]
            sums = [sum(of(rank, micro) for micro in range(reduced_before)) for rank in range(RANKS)]
            mean, owner = sum(sums) / RANKS, number % RANKS
            late = sum((of(owner, micro) for micro in range(reduced_before, MICRO_BATCHES)), torch.zeros(()))
            parameter.grad = (mean + late) / MICRO_BATCHES
        return torch.stack(losses).mean()

    def step(batch):
        optimizer.zero_grad()
        if optimized:
            loss = sharded(batch)
        else:
            loss = loss_of(batch["x"], batch["y"])
            loss.backward()
        optimizer.step()
        return loss.detach()

    batch = normal_batches(seed, (48, 10), lambda x: x[:, 2:5].argmax(1))

    return StepFunction(step, batch, model)
