"""A compiled backward pass assigns a reduction's result to a new name instead of writing it into a shared gradient."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import normal_batches, update_by
from harness.system.step_function import StepFunction

BUG = Bug(
    title="Compiled code does not write the gradients of a shared scale-and-shift table",
    thread="pytorch/pytorch#193061",
    users_saw="torch.compile computes wrong gradients, without an error, if two modulated norms in a row share a table "
    "of scales and shifts.",
    cause="The last reduction of the second norm should write its result into a view of the table's gradient. The "
    "compiled code instead assigns the result to the name of the view, so this part of the gradient keeps its old "
    "values. The entry re-enacts the bug with a hand-written backward pass.",
    fix="The result is copied into the view.",
)


class Modulated(torch.autograd.Function):
    """Two norms, each scaled and shifted by rows of one table [4, width]; gradients of all rows lie in one buffer."""

    @staticmethod
    def forward(ctx, x, table, layer):
        ctx.save_for_backward(x, table)
        ctx.layer = layer
        return plain(x, table)

    @staticmethod
    def backward(ctx, grad):
        x, table = (each.detach().requires_grad_() for each in ctx.saved_tensors)
        with torch.enable_grad():
            of_x, of_table = torch.autograd.grad(plain(x, table), (x, table), grad)
        first, second = ctx.layer.buffer[:2], ctx.layer.buffer[2:]
        first.copy_(of_table[:2])
        if ctx.layer.writes:
            second.copy_(of_table[2:])
        else:
            second = of_table[2:]
        return of_x, ctx.layer.buffer.clone(), None


def plain(x, table):
    norm = lambda values: functional.layer_norm(values, values.shape[-1:])
    hidden = norm(x) * (1 + table[0]) + table[1]
    return norm(hidden.tanh()) * (1 + table[2]) + table[3]


class Layer(nn.Module):
    def __init__(self, width, compiled, writes):
        super().__init__()
        self.table = nn.Parameter(0.1 * torch.randn(4, width))
        self.compiled, self.writes = compiled, writes
        self.buffer = torch.zeros(4, width) if compiled else None

    def forward(self, x):
        return Modulated.apply(x, self.table, self) if self.compiled else plain(x, self.table)


def buggy(seed, optimized):
    return make_step(seed, optimized, writes=False)


def mended(seed, optimized):
    return make_step(seed, optimized, writes=True)


def make_step(seed, optimized, writes):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), Layer(16, optimized, writes), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step = update_by(optimizer, lambda batch: functional.cross_entropy(model(batch["x"]), batch["y"]))
    return StepFunction(step, normal_batches(seed, (32, 8), lambda x: x[:, :3].argmax(1)), model)
