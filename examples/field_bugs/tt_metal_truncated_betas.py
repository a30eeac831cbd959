"""A fused optimizer truncates its decay rates to bfloat16, but reports the rates that it was given."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import normal_batches, update_by
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A fused Adam uses different decay rates than the given ones",
    thread="tenstorrent/tt-metal#55935",
    users_saw="The effective beta2 is 0.99609 for both 0.999 and 0.9999.",
    cause="The numbers are truncated to bfloat16 before the kernel gets them.",
    fix="The kernel gets the numbers as float32.",
    changed="The harness: it compares an optimizer's moments at the end. The first try found no difference in 43 "
    "steps.",
)


def truncated(number):
    bits = torch.tensor(number, dtype=torch.float32).view(torch.int32) & -65536
    return bits.view(torch.float32).item()


def buggy(seed, optimized):
    return make_step(seed, optimized, truncated)


def mended(seed, optimized):
    return make_step(seed, optimized, float)


class Fused(torch.optim.Adam):
    def __init__(self, parameters, delivered, **settings):
        super().__init__(parameters, fused=True, **settings)
        self.delivered = delivered

    def step(self):
        group = self.param_groups[0]
        given = group["betas"]
        group["betas"] = tuple(self.delivered(beta) for beta in given)
        super().step()
        group["betas"] = given


def make_step(seed, optimized, delivered):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))
    plain = torch.optim.Adam
    optimizer = Fused(model.parameters(), delivered, lr=1e-3) if optimized else plain(model.parameters(), lr=1e-3)

    step = update_by(optimizer, lambda batch: functional.mse_loss(model(batch["x"]), batch["y"]))

    batch = normal_batches(seed, (64, 8), lambda x: x[:, :1] + torch.sin(x[:, 1:2]))

    return StepFunction(step, batch, model)
