"""A replay rounds 8-bit weights only for the first micro-batch, but computes their scales for each micro-batch."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.own_capture import OwnCaptures, fill
from examples.field_bugs.small_training import DEVICE
from harness.system.step_function import StepFunction

BUG = Bug(
    title="Replays quantize cached 8-bit weights again in each micro-batch",
    thread="NVIDIA/TransformerEngine#2119",
    users_saw="The 8-bit weights are cached over the micro-batches of a step, but replays still launched the kernels "
    "that quantize the weights for each micro-batch.",
    cause="A replay launches every kernel, so a kernel must read from a tensor on the device whether there is nothing "
    "to do. The kernels that compute the maximum and the scale were not given this tensor.",
    fix="These kernels are given the same tensor as the rounding kernel, and exit early too.",
    missed="The numbers are right and only time is lost, so a claim of kind throughput_ratio on a GPU would find the "
    "bug. For this the weights must be so large that computing their maximum takes longer than a launch, and the "
    "kernels must be able to exit early. torch operators cannot exit early, so both forms take the same time here.",
)


def buggy(seed, captured):
    return make_step(seed, captured, Weight8Bits)


def mended(seed, captured):
    return make_step(seed, captured, ToldWeight8Bits)


class Weight8Bits(nn.Module):
    """Its largest value and its 8-bit copy are made in the first micro-batch of a step, and kept for the others."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) / width**0.5)
        self.register_buffer("largest", torch.zeros(()))
        self.register_buffer("copied", torch.zeros(width, width))

    @torch.no_grad()
    def renew(self, keep):
        self.measure(keep)
        scale = 448 / self.largest
        rounded = (self.weight * scale).to(torch.float8_e4m3fn).to(self.weight.dtype) / scale
        self.copied.copy_(torch.where(keep, self.copied, rounded))

    def measure(self, _keep):
        self.largest.copy_(self.weight.abs().amax())

    def forward(self, x):
        return functional.linear(x, self.weight + (self.copied - self.weight).detach())


class ToldWeight8Bits(Weight8Bits):
    def measure(self, keep):
        self.largest.copy_(torch.where(keep, self.largest, self.weight.abs().amax()))


def make_step(seed, captured, weight_class, width=16, micro_batches=4):
    torch.manual_seed(seed)
    model = nn.Sequential(weight_class(width), nn.GELU(), weight_class(width), nn.GELU(), nn.Linear(width, 1))
    model.to(DEVICE)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-2), fused=True)
    captures, static, keeps = OwnCaptures(captured), {}, []
    weights = [each for each in model if isinstance(each, weight_class)]

    def passes():
        whole = 0
        for number in range(micro_batches):
            for weight in weights if captured or number == 0 else []:  # a graph replays all kernels
                weight.renew(keeps[number])
            loss = functional.mse_loss(model(static["x"][number]), static["y"][number]) / micro_batches
            loss.backward()
            whole = whole + loss.detach()
        return whole

    def step(batch):
        fill(static, batch)
        keeps[:] = keeps or [torch.tensor(number > 0, device=static["x"].device) for number in range(micro_batches)]
        optimizer.zero_grad(set_to_none=False)
        if captured and not captures.graphs:
            captures.capture("step", passes, static, model.parameters())
        captures.replays += captured
        loss = captures.graphs["step"].replay() if captured else passes()
        optimizer.step()
        return loss.clone()

    def batch(index):
        generator = torch.Generator().manual_seed(100_000 * seed + index)
        x = torch.randn(micro_batches, 16, width, generator=generator)
        return {"x": x, "y": (x[..., :8] * x[..., 8:]).sum(-1, keepdim=True)}

    return StepFunction(step=step, batch=batch, parameters=model, captured=captures.record)
