"""A replay leaves 8-bit weights as they are after the first micro-batch, and measures them for each all the same."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.own_capture import OwnCaptures, fill
from examples.field_bugs.small_training import DEVICE
from harness.system.step_function import StepFunction

BUG = Bug(
    title="Replays measure 8-bit weights in each micro-batch, which the weights' cache is there to spare",
    thread="NVIDIA/TransformerEngine#2119",
    users_saw="With weights kept over the micro-batches of a step, replays went on launching kernels of their "
    "quantization.",
    cause="A replay launches every kernel, so each has to read from a tensor whether to leave early; those that find "
    "the largest value and the scale were not named.",
    fix="They are given the tensor that the rounding reads, and leave early, too.",
    missed="Numbers are right, work is lost: a claim of kind throughput_ratio on a GPU, with weights so large that "
    "measuring them costs more than launching does, and kernels that can leave early. Operations of torch cannot, so "
    "here both forms take the same time.",
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
            for weight in weights if captured or number == 0 else []:  # a graph leaves no kernel out
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
