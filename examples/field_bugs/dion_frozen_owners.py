"""Only the optimizer is captured; a parameter that gets its first gradient after the capture is never updated."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.own_capture import OwnCaptures
from examples.field_bugs.small_training import DEVICE
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A captured optimizer never updates a parameter whose first gradient comes after the capture",
    thread="microsoft/dion#108",
    users_saw="Parameters that start to train after the capture never change, and no message reports it.",
    cause="The optimizer updates only parameters that have a gradient. The capture freezes this selection, so a "
    "parameter without a gradient at the capture is never updated.",
    fix="The optimizer refuses a capture as long as some trainable parameter has no gradient. Before the capture, "
    "every parameter gets a gradient.",
    changed="The judge: if a gradient consists of zeros and the plain step has no gradient for the tensor, this no "
    "longer counts as missing evidence.",
)


def buggy(seed, captured):
    return make_step(seed, captured, all_have_gradients=False)


def mended(seed, captured):
    return make_step(seed, captured, all_have_gradients=True)


class Orthogonal:
    """Momentum, made nearly orthogonal by an iteration."""

    def __init__(self, matrices):
        self.matrices = matrices
        self.momenta = [torch.zeros_like(matrix) for matrix in matrices]

    @torch.no_grad()
    def step(self):
        for matrix, momentum in zip(self.matrices, self.momenta, strict=True):
            if matrix.grad is None:
                continue
            momentum.mul_(0.9).add_(matrix.grad)
            x = momentum / (momentum.norm() + 1e-7)
            for _ in range(5):
                square = x @ x.T
                x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
            matrix.sub_(0.02 * x)
        return self.momenta[0].norm()


def make_step(seed, captured, all_have_gradients):
    torch.manual_seed(seed)
    body, head, later = (nn.Linear(12, width, bias=False).to(DEVICE) for width in (12, 3, 4))
    model = nn.ModuleList([body, head, later])
    optimizer = Orthogonal([body.weight, head.weight, later.weight])
    captures, trained = OwnCaptures(captured), [0]

    def step(batch):
        trained[0] += 1
        model.zero_grad(set_to_none=not captured)
        features = torch.tanh(body(batch["x"]))
        loss = functional.cross_entropy(head(features), batch["y"])
        if trained[0] > 60:  # from this step on, the second task is trained, too
            loss = loss + functional.cross_entropy(later(features), batch["z"])
        loss.backward()
        if not captured:
            optimizer.step()
            return loss.detach()
        if not captures.graphs:
            for p in model.parameters() if all_have_gradients else ():
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            captures.capture("update", optimizer.step, {"gradient": body.weight.grad}, model.parameters())
        captures.graphs["update"].replay()
        captures.replays += 1
        return loss.detach()

    def batch(index):
        x = torch.randn(16, 12, generator=torch.Generator().manual_seed(20_000 * seed + index))
        return {"x": x, "y": x[:, :3].argmax(1), "z": x[:, 3:7].argmax(1)}

    return StepFunction(step, batch, model, captured=captures.record)
