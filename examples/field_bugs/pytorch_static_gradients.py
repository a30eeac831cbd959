"""A graphed backward pass returns its static buffers as gradients, and its next run overwrites them."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import class_batches
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A graphed backward pass returns its static buffers as gradients",
    thread="pytorch/pytorch#181723",
    users_saw="With gradient accumulation, gradients are silently wrong under make_graphed_callables.",
    cause="If a parameter has no gradient yet, autograd stores the returned buffer itself as `.grad`. The backward "
    "pass of the next micro-batch writes into the same buffer, and autograd then adds the buffer to itself.",
    fix="The backward pass returns copies of its static buffers.",
    changed="The entry: the static gradients are created in the first step. Before, they existed from the start, but "
    "only in one arm.",
)


class Graphed(torch.autograd.Function):
    """A linear layer whose backward writes into buffers that were allocated once, as a captured backward does."""

    @staticmethod
    def forward(ctx, x, weight, bias, layer):
        ctx.save_for_backward(x)
        ctx.layer = layer
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        layer, hand_over = ctx.layer, torch.clone if ctx.layer.copies else torch.Tensor.detach
        layer.gradients = layer.gradients or [torch.empty_like(layer.weight), torch.empty_like(layer.bias)]
        torch.mm(grad.t(), x, out=layer.gradients[0])
        torch.sum(grad, 0, out=layer.gradients[1])
        return None, hand_over(layer.gradients[0]), hand_over(layer.gradients[1]), None


class GraphedLinear(nn.Linear):
    def __init__(self, inputs, outputs, copies):
        super().__init__(inputs, outputs)
        self.copies, self.gradients = copies, []

    def forward(self, x):
        return Graphed.apply(x, self.weight, self.bias, self)


def buggy(seed, optimized):
    return make_step(seed, optimized, mended=False)


def mended(seed, optimized):
    return make_step(seed, optimized, mended=True)


def make_step(seed, optimized, mended):
    torch.manual_seed(seed)
    first = GraphedLinear(16, 32, mended) if optimized else nn.Linear(16, 32)
    model = nn.Sequential(first, nn.GELU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)

    def step(batch):
        optimizer.zero_grad()
        total = torch.zeros(())
        for x, y in zip(batch["x"].chunk(4), batch["y"].chunk(4), strict=True):
            loss = functional.cross_entropy(model(x), y) / 4
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        return total

    batch = class_batches(seed, 32, 16, 4)

    return StepFunction(step, batch, model)
