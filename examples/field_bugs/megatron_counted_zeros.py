"""A recurrence next to attention, whose captured optimizer counts zeros and thereby waits for the device.

How the bug arises: the update is captured with the rest of the step, and the run logs how many elements of the
gradients are zero. The optimizer sums them on the device and returns the sum by `.item()`.
"""

import torch
from torch import nn

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import DEVICE, next_token_loss, token_batches, update_by
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A statistic for the log waits for the device inside the captured optimizer",
    thread="NVIDIA/Megatron-LM#7446",
    users_saw="If the optimizer is in the graph, and the run logs the number of zero gradients, the capture ends with "
    "a CUDA error that does not name the setting that caused it (reported in #7407).",
    cause="The optimizer counts zeros during its update and returns the count by `.item()`. This waits for the device, "
    "which a capture does not allow.",
    fix="The run does not request this statistic.",
)


class Hybrid(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.inside, self.decay = nn.Linear(width, width), nn.Parameter(torch.ones(width))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        states = [torch.zeros_like(x[:, 0])]
        for position in self.inside(x).unbind(1):
            states.append(self.decay.sigmoid() * states[-1] + position)
        x = x + torch.stack(states[1:], 1)
        q, k, v = self.qkv(x).chunk(3, -1)
        return x + self.out((q @ k.mT + torch.full_like(q @ k.mT, -1e9).triu(1)).softmax(-1) @ v)


class Optimizer(torch.optim.SGD):
    def __init__(self, parameters, log_zeros):
        super().__init__(parameters, lr=0.3)
        self.log_zeros, self.zeros = log_zeros, None

    def step(self):
        gradients = [each.grad for each in self.param_groups[0]["params"]]
        if self.log_zeros:
            self.zeros = sum((gradient == 0).sum() for gradient in gradients).item()
        super().step()


def make_step(seed, log_zeros):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Embedding(32, 16), Hybrid(), nn.Linear(16, 32))
    model.to(DEVICE)
    optimizer = Optimizer(model.parameters(), log_zeros)

    step = update_by(optimizer, lambda batch: next_token_loss(model, batch["tokens"]))

    batch = token_batches(seed, 4, 6)

    return StepFunction(step, batch, model)


def buggy(seed):
    return make_step(seed, log_zeros=True)


def mended(seed):
    return make_step(seed, log_zeros=False)
