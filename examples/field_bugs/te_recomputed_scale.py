"""A layer that rounds to 127 levels is recomputed with a scale that was already updated for the next batch."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import normal_batches
from harness.system.step_function import StepFunction

BUG = Bug(
    title="An 8-bit layer is recomputed with the scale for the next batch",
    thread="NVIDIA/TransformerEngine#1723",
    users_saw="Precision is lower if 8-bit layers are recomputed for the backward pass.",
    cause="For the recomputation only a reference to the scale is kept. The scale is updated in place before the "
    "recomputation, so the reference then shows the new value.",
    fix="A copy of the scale is kept instead of a reference.",
)


def buggy(seed, optimized):
    return make_step(seed, optimized, keep=lambda scale: scale)


def mended(seed, optimized):
    return make_step(seed, optimized, keep=torch.clone)


class Rounded(nn.Module):
    """A linear layer of rounded inputs; the scale is the largest input of the batch before."""

    def __init__(self, inputs, outputs, recomputes, keep):
        super().__init__()
        self.linear, self.recomputes, self.keep, self.kept = nn.Linear(inputs, outputs), recomputes, keep, None
        self.register_buffer("scale", torch.tensor(4 / 127))

    def forward(self, x):
        again = self.recomputes and torch.is_grad_enabled()
        scale = self.kept if again else self.scale
        if self.recomputes and not again:
            self.kept = self.keep(self.scale)
        rounded = ((x / scale).round().clamp(-127, 127) * scale).detach()
        y = self.linear(x + (rounded - x).detach())
        if not again:
            self.scale.copy_(x.detach().abs().max() / 127)
        return y


def make_step(seed, optimized, keep):
    torch.manual_seed(seed)
    first, layer, last = nn.Linear(8, 24), Rounded(24, 24, optimized, keep), nn.Linear(24, 4)
    model = nn.ModuleList([first, layer, last])
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def step(batch):
        optimizer.zero_grad()
        x = functional.gelu(first(batch["x"]))
        x = checkpoint(layer, x, use_reentrant=True) if optimized else layer(x)
        loss = functional.cross_entropy(last(torch.tanh(x)), batch["y"])
        loss.backward()
        optimizer.step()
        return loss.detach()

    batch = normal_batches(seed, (32, 8), lambda x: x[:, :4].argmax(1))

    return StepFunction(step, batch, model)
