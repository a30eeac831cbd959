"""An autograd function attaches a router's balancing gradient to a new tensor, but the caller drops this tensor."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import normal_batches
from harness.system.step_function import StepFunction

BUG = Bug(
    title="The balancing loss does not reach the router",
    thread="NVIDIA-NeMo/Automodel#1408",
    users_saw="The balancing loss is computed and logged, but the experts stay as unbalanced as without it.",
    cause="A function attaches the gradient of the balancing loss to a new tensor and returns this tensor. The caller "
    "ignores the returned tensor and continues with its old tensor.",
    fix="The caller uses the returned tensor.",
)

COEFFICIENT = 0.02


def buggy(seed, optimized):
    return make_step(seed, optimized, mended=False)


def mended(seed, optimized):
    return make_step(seed, optimized, mended=True)


class WithGradientOf(torch.autograd.Function):
    """Passes its input through; the other tensor gets a gradient of its own, which no loss shows."""

    @staticmethod
    def forward(context, passed, auxiliary):
        context.save_for_backward(auxiliary)
        return passed.view_as(passed)

    @staticmethod
    def backward(context, gradient):
        (auxiliary,) = context.saved_tensors
        return gradient, COEFFICIENT * torch.ones_like(auxiliary)


class Experts(nn.Module):
    def __init__(self, fused, mended):
        super().__init__()
        self.router = nn.Linear(8, 4, bias=False)
        self.experts = nn.Parameter(torch.randn(4, 8, 8) / 3)
        self.fused, self.mended = fused, mended

    def forward(self, x):
        scores = self.router(x).softmax(dim=-1)
        balance = 4 * scores.mean(dim=0).square().sum()
        if self.fused:
            attached = WithGradientOf.apply(scores, balance)
            scores = attached if self.mended else scores
            balance = balance.detach()
        return torch.einsum("be,eij,bj->bi", scores, self.experts, x), balance


def make_step(seed, optimized, mended):
    torch.manual_seed(seed)
    model, head = Experts(optimized, mended), nn.Linear(8, 1)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.02)

    def step(batch):
        optimizer.zero_grad()
        mixed, balance = model(batch["x"])
        loss = functional.mse_loss(head(mixed), batch["y"])
        (loss if optimized else loss + COEFFICIENT * balance).backward()
        optimizer.step()
        return loss.detach()

    batch = normal_batches(seed, (32, 8), lambda x: x[:, :1] * 2, apart=1000)

    trained = {f"model.{name}": each for name, each in model.named_parameters()}
    return StepFunction(step, batch, lambda: trained | {f"head.{name}": each for name, each in head.named_parameters()})
