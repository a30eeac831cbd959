"""The averaged model's update counter is a Python number, so checkpoints do not contain it."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import checkpoints
from harness.system.step_function import StepFunction

BUG = Bug(
    title="Checkpoints lack the update counter of the averaged model",
    thread="lightly-ai/lightly-train#892",
    users_saw="Right after a resume the averaged model and its validation metrics become worse.",
    cause="The update counter is a Python number, which is not in the state dict. After a resume the counter is 0, and "
    "with a small counter the average almost equals the current weights.",
    fix="The counter is a buffer.",
)


class Average(nn.Module):
    """A moving average of a model, which follows closely at first and slowly later."""

    def __init__(self, model, counter_is_saved):
        super().__init__()
        self.weights = nn.ParameterList(
            nn.Parameter(p.detach().clone(), requires_grad=False) for p in model.parameters()
        )
        if counter_is_saved:
            self.register_buffer("updates", torch.zeros(()))
        else:
            self.updates = 0

    @torch.no_grad()
    def update(self, model):
        self.updates += 1
        share = 1 - 0.99 * (1 - torch.exp(torch.as_tensor(-self.updates / 10.0)))
        for mine, new in zip(self.weights, model.parameters(), strict=True):
            mine.lerp_(new, share)


def buggy(seed, optimized):
    return make_step(seed, optimized, mended=False)


def mended(seed, optimized):
    return make_step(seed, optimized, mended=True)


def make_step(seed, optimized, mended):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.SiLU(), nn.Conv2d(8, 1, 1))  # which pixels are the object's
    average, optimizer = (
        Average(model, counter_is_saved=mended),
        torch.optim.AdamW(model.parameters(), 1e-2, fused=optimized),
    )

    def step(batch):
        optimizer.zero_grad()
        loss = functional.binary_cross_entropy_with_logits(model(batch["pictures"]), batch["masks"])
        loss.backward()
        optimizer.step()
        average.update(model)
        return loss

    def batch(index):
        generator = torch.Generator().manual_seed(1000 * seed + index)
        masks = torch.zeros(16, 1, 8, 8)
        masks[:, :, 2:6, 2:6] = (torch.rand(16, 1, 4, 4, generator=generator) > 0.2).float()
        return {"pictures": 2 * masks + torch.randn(16, 1, 8, 8, generator=generator), "masks": masks}

    @torch.no_grad()
    def evaluate():
        x = batch(10_000)
        seen = functional.silu(functional.conv2d(x["pictures"], average.weights[0], average.weights[1], padding=1))
        return functional.mse_loss(functional.conv2d(seen, *average.weights[2:]).sigmoid(), x["masks"])

    save, load = checkpoints(model=model, average=average, optimizer=optimizer)

    return StepFunction(step, batch, model, evaluate=evaluate, save=save, load=load)
