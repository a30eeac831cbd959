"""A Python flag decides when the experts' 8-bit weights are renewed; the capture's warm-up already cleared it."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.own_capture import OwnCaptures, fill, warm_up
from examples.field_bugs.small_training import DEVICE
from harness.system.step_function import StepFunction

BUG = Bug(
    title="Experts compute with the 8-bit weights of the captured step",
    thread="NVIDIA/TransformerEngine#3051",
    users_saw="With replays the gradients of experts and router were much smaller than in the same run without "
    "replays.",
    cause="The grouped layer of the experts gets the decision to renew its 8-bit weights as a Python flag, which the "
    "capture freezes. Dense layers read this decision from a tensor on the device.",
    fix="The grouped layer gets the tensor too.",
    changed="The entry: one graph now contains all micro-batches. Before, the record of the capture named only the "
    "operations of the last micro-batch.",
    trouble="At first each micro-batch had its own graph, but the record of the capture named only the "
    "operations of the last graph. So the fixed form failed too (`launches_differ`). Now one graph contains all "
    "micro-batches.",
)


def buggy(seed, captured):
    return make_step(seed, captured, Experts)


def mended(seed, captured):
    return make_step(seed, captured, ToldExperts)


class Weight8Bits(nn.Module):
    """Its 8-bit copy is renewed in the first micro-batch of a step, and kept for the others."""

    def __init__(self, *shape):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(*shape) / shape[-1] ** 0.5)
        self.register_buffer("copied", torch.zeros(*shape))
        self.first = True

    def forward(self, keep):
        """`keep`: whether to keep the copy, as a tensor; None: the flag says it, which the first use takes down."""
        first, self.first = self.first, False
        with torch.no_grad():
            if keep is not None:
                self.copied.copy_(torch.where(keep, self.copied, rounded(self.weight)))
            elif first:
                self.copied.copy_(rounded(self.weight))
        return self.weight + (self.copied - self.weight).detach()


def rounded(weight):
    scale = 448 / weight.abs().amax()
    return (weight * scale).to(torch.float8_e4m3fn).to(weight.dtype) / scale


class Experts(nn.Module):
    """A layer of four experts, and dense layers around it, which know what a capture says."""

    def __init__(self, width=16, experts=4):
        super().__init__()
        self.router, self.last = Weight8Bits(experts, width), Weight8Bits(1, width)
        self.up, self.down = Weight8Bits(experts, 16, width), Weight8Bits(experts, width, 16)

    def forward(self, x, keep):
        shares, (up, down) = (x @ self.router(keep).mT).softmax(-1), self.grouped(keep)
        each = torch.einsum("eoi,bei->beo", down, functional.gelu(torch.einsum("eoi,bi->beo", up, x)))
        return (x + (shares[..., None] * each).sum(1)) @ self.last(keep).mT

    def grouped(self, _keep):
        return self.up(None), self.down(None)


class ToldExperts(Experts):
    def grouped(self, keep):
        return self.up(keep), self.down(keep)


def make_step(seed, captured, layer, micro_batches=2):
    torch.manual_seed(seed)
    model = layer().to(DEVICE)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-2), fused=True)
    captures, static = OwnCaptures(captured), {}
    weights = [each for each in model.modules() if isinstance(each, Weight8Bits)]

    def passes(keeps=(None,) * micro_batches):
        whole = 0
        for x, y, keep in zip(static["x"], static["y"], keeps, strict=True):
            loss = functional.mse_loss(model(x, keep), y) / micro_batches
            loss.backward()
            whole = whole + loss.detach()
        return whole

    def capture():
        keeps = [torch.tensor(number > 0, device=model.last.weight.device) for number in range(micro_batches)]
        warm_up(lambda: passes(keeps))
        captures.capture("step", lambda: passes(keeps), static, model.parameters())

    def step(batch):
        fill(static, batch)
        for weight in weights:
            weight.first = True
        if captured and not captures.graphs:
            capture()
        captures.replays += captured
        optimizer.zero_grad(set_to_none=False)
        loss = captures.graphs["step"].replay() if captured else passes()
        optimizer.step()
        return loss.clone()

    def batch(index):
        generator = torch.Generator().manual_seed(100_000 * seed + index)
        x = torch.randn(micro_batches, 16, 16, generator=generator)
        return {"x": x, "y": (x[..., :8] * x[..., 8:]).sum(-1, keepdim=True)}

    return StepFunction(step=step, batch=batch, parameters=model, captured=captures.record)
