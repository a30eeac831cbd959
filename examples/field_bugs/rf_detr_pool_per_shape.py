"""A detector captures a graph for each image size, and each graph allocates its own memory pool."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.own_capture import OwnCaptures, fill, warm_up
from examples.field_bugs.small_training import DEVICE
from harness.devices.graphs import graph_pool_handle
from harness.system.step_function import StepFunction

BUG = Bug(
    title="Every image size has its own memory pool",
    thread="roboflow/rf-detr#1490",
    users_saw="With images of eleven sizes, 38 GiB of GPU memory were reserved for 6 GiB of tensors.",
    cause="The step is captured once for each image size, without a common memory pool, so the memory for the "
    "activations of every size stays reserved.",
    fix="The first capture creates a pool, and all other captures use the same pool.",
    changed="The templates: CAPTURES allows one capture for each shape, and MEMORY limits the memory that the "
    "captured step reserves. The harness: the first step that it observes may capture a further shape. The entry: the "
    "largest size comes first, because a shared pool has room for smaller sizes, and all warm-ups and captures are on "
    "one stream.",
    missed="Nothing finds the bug on a CPU, which has no memory pools. On a GPU, MEMORY finds it.",
    trouble="At first the template required exactly one capture (`captures: 1`). A step with four image sizes "
    "has four captures, so the fixed form failed.",
)

ON_GPU = DEVICE == "cuda"
SIZES = [(32 if ON_GPU else 2) * number for number in range(12, 4, -1)]  # a larger pool also fits a smaller size


def buggy(seed, captured):
    return make_step(seed, captured, lambda: None)


def mended(seed, captured):
    shared = graph_pool_handle() if ON_GPU else None
    return make_step(seed, captured, lambda: shared)


def make_step(seed, captured, pool_of_next):
    torch.backends.cudnn.deterministic = True
    torch.manual_seed(seed)
    layers = [nn.Sequential(nn.Conv2d(inputs, 16, 3, padding=1), nn.SiLU()) for inputs in (1, 16, 16)]
    model = nn.Sequential(*layers, nn.Conv2d(16, 1, 1)).to(DEVICE)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(3e-3), fused=True)
    captures, static = OwnCaptures(captured), {size: {} for size in SIZES}

    def passes(size):
        optimizer.zero_grad(set_to_none=False)
        loss = functional.binary_cross_entropy_with_logits(model(static[size]["images"]), static[size]["there"])
        loss.backward()
        return loss.detach()

    def step(batch):
        size = batch["images"].shape[-1]
        fill(static[size], batch)
        if captured and size not in captures.graphs:
            warm_up(lambda: passes(size))
            captures.capture(size, lambda: passes(size), static[size], model.parameters(), pool_of_next())
        captures.replays += captured
        loss = captures.graphs[size].replay() if captured else passes(size)
        optimizer.step()
        return loss.clone()

    def batch(index):
        """Images of noise, brighter in a fifth of their squares."""
        generator = torch.Generator().manual_seed(100_000 * seed + index)
        size = SIZES[index % len(SIZES)]
        there = (torch.rand(4, 1, 4, 4, generator=generator) < 0.2).float()
        there = functional.interpolate(there, size=(size, size))
        return {"images": there + torch.randn(there.shape, generator=generator), "there": there}

    return StepFunction(step=step, batch=batch, parameters=model, captured=captures.record)
