"""Activations are offloaded; in the first iteration they are read back before the copy has finished."""

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import normal_batches
from harness.system.step_function import StepFunction

BUG = Bug(
    title="In the first iteration offloaded activations are read before their copy has finished",
    thread="NVIDIA/Megatron-LM#7398",
    users_saw="No error is raised and the loss still falls, but the gradients of the warm-up iteration are computed "
    "from old staging buffers.",
    cause="Without a prefetch, the activations are read back without waiting for the copy that fills their buffer.",
    fix="The read waits for this copy, as it does with a prefetch.",
)


def buggy(seed, optimized):
    return make_step(seed, optimized, inline_waits=False)


def mended(seed, optimized):
    return make_step(seed, optimized, inline_waits=True)


class Offload:
    """Copies to staging buffers are done late, two behind what was asked for, as another stream would."""

    def __init__(self, inline_waits):
        self.inline_waits, self.staging, self.queue, self.asked, self.prefetches = inline_waits, [], [], 0, False

    def begin(self):
        self.prefetches, self.asked = bool(self.staging), 0

    def work_off(self, left):
        while len(self.queue) > left:
            target, source = self.queue.pop(0)
            target.copy_(source)

    def pack(self, tensor):
        if self.asked == len(self.staging):
            self.staging.append(torch.zeros_like(tensor))
        self.queue.append((self.staging[self.asked], tensor.detach()))
        self.work_off(left=2)
        self.asked += 1
        return self.asked - 1

    def unpack(self, number):
        if self.prefetches or self.inline_waits:
            self.work_off(left=0)
        return self.staging[number].clone()


def make_step(seed, optimized, inline_waits):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))
    optimizer, offload = torch.optim.AdamW(model.parameters(), lr=3e-3), Offload(inline_waits)

    def step(batch):
        optimizer.zero_grad()
        offload.begin()
        if optimized:
            with saved_tensors_hooks(offload.pack, offload.unpack):
                loss = functional.mse_loss(model(batch["x"]), batch["y"])
        else:
            loss = functional.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        return loss.detach()

    batch = normal_batches(seed, (16, 8), lambda x: x[:, :1] * x[:, 1:2] + x[:, 2:3])

    return StepFunction(step, batch, model)
