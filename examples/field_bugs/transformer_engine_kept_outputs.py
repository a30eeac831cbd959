"""The warm-up before a capture keeps the outputs of layers after their backward passes have used them."""

from functools import partial

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.own_capture import OwnCaptures, fill, warm_up
from examples.field_bugs.small_training import DEVICE
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A warm-up keeps layer outputs that nothing reads again",
    thread="NVIDIA/TransformerEngine#3427",
    users_saw="A run on 64 GPUs, which captured its layers after three plain steps, ran out of memory during the "
    "capture. Without the capture it had enough memory.",
    cause="The warm-up before the capture keeps the outputs of all layers and micro-batches until the last layer has "
    "finished. The reset after the warm-up keeps them too.",
    fix="Each output is released as soon as its backward pass has used it.",
    changed="The templates: MEMORY limits the memory that the captured step reserves on a GPU. The entry: its model is "
    "larger on a GPU.",
    missed="Nothing finds the bug on a CPU, where no claim measures memory. On a GPU, MEMORY finds it.",
)

ON_GPU = DEVICE == "cuda"
LAYERS, MICRO_BATCHES = (20, 20) if ON_GPU else (4, 8)
ROWS, WIDTH = (2048, 256) if ON_GPU else (8, 16)


def buggy(seed, captured):
    return make_step(seed, captured, lambda *_place: None)


def mended(seed, captured):
    return make_step(seed, captured, dict.pop)


class Layer(nn.Linear):
    def forward(self, x):
        return x + functional.gelu(super().forward(x))


def warm_up_each(layers, let_go):
    """Forward and backward pass of each layer alone, for each micro-batch, in the order of the captures to come."""
    outputs = {}
    for place in [(number, layer) for number in range(MICRO_BATCHES) for layer in layers]:
        outputs[place] = place[1](torch.ones(ROWS, WIDTH, device=place[1].weight.device))
        torch.autograd.grad(outputs[place].sum(), place[1].parameters())
        let_go(outputs, place)
    return torch.zeros(())


def make_step(seed, captured, let_go):
    torch.manual_seed(seed)
    layers = [Layer(WIDTH, WIDTH) for _ in range(LAYERS)]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 1)).to(DEVICE)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(3e-3), fused=True)
    captures, static = OwnCaptures(captured), {}

    def passes():
        optimizer.zero_grad(set_to_none=False)
        whole = 0
        for x, y in zip(static["x"], static["y"], strict=True):
            loss = functional.mse_loss(model(x), y) / MICRO_BATCHES
            loss.backward()
            whole = whole + loss.detach()
        return whole

    def step(batch):
        fill(static, batch)
        if captured and not captures.graphs:
            warm_up(partial(warm_up_each, layers, let_go), 1)
            captures.capture("step", passes, static, model.parameters())
        captures.replays += captured
        loss = captures.graphs["step"].replay() if captured else passes()
        optimizer.step()
        return loss.clone()

    def batch(index):
        generator = torch.Generator().manual_seed(100_000 * seed + index)
        x = torch.randn(MICRO_BATCHES, ROWS, WIDTH, generator=generator)
        return {"x": x, "y": (x[..., :1] * x[..., 1:2]).tanh()}

    return StepFunction(step=step, batch=batch, parameters=model, captured=captures.record)
