"""A perceptron under an optimizer whose step count and moments stay in the graph as they were at the capture.

How the bug arises: the library never changes a tensor in place, but creates new ones. The step count, and the learning
rate and bias corrections computed from it, are Python numbers on the host. Each update returns new moments, and only
the host replaces the old ones. Every replay therefore starts from the moments of the capture.
"""

import torch
from torch import nn

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import DEVICE, normal_batches
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A CUDA graph freezes learning rate, bias corrections and moments of the optimizer",
    thread="tracel-ai/burn#5779",
    users_saw="A captured step replays without an error, but trains on wrong values with every optimizer except plain "
    "SGD at a constant learning rate.",
    cause="The optimizer passes its step count, and values computed from it, to the kernels as host numbers, which a "
    "capture freezes. Each update also creates new moments, so every replay reads the moments of the capture.",
    fix="The step count is a tensor that the update increments, and the moments are updated in place.",
)


class Adam:
    def __init__(self, parameters):
        self.parameters, self.updates = list(parameters), 0
        self.moments = [(torch.zeros_like(each), torch.zeros_like(each)) for each in self.parameters]

    @torch.no_grad()
    def step(self):
        self.updates += 1
        for index, parameter in enumerate(self.parameters):
            mean, square = self.moments[index]
            self.keep(index, 0.9 * mean + 0.1 * parameter.grad, 0.99 * square + 0.01 * parameter.grad**2)
            mean, square = self.moments[index]
            mean, square = mean / (1 - 0.9**self.updates), square / (1 - 0.99**self.updates)
            rate = 1e-2 / (1 + 0.01 * self.updates)
            parameter.sub_(rate * mean / (square.sqrt() + 1e-8))

    def keep(self, index, mean, square):
        self.moments[index] = mean, square


class AdamInPlace(Adam):
    def __init__(self, parameters):
        super().__init__(parameters)
        self.updates = torch.zeros((), device=self.parameters[0].device)

    def keep(self, index, mean, square):
        self.moments[index][0].copy_(mean)
        self.moments[index][1].copy_(square)


def make_step(seed, optimizer_class):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).to(DEVICE)
    optimizer, teacher = optimizer_class(model.parameters()), torch.randn(8, 2)

    def step(batch):
        model.zero_grad()
        loss = nn.functional.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        return loss.detach()

    batch = normal_batches(seed, (16, 8), lambda x: torch.tanh(x @ teacher))

    return StepFunction(step, batch, model)


def buggy(seed):
    return make_step(seed, Adam)


def mended(seed):
    return make_step(seed, AdamInPlace)
