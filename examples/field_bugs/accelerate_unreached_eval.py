"""A schedule-free optimizer inside two wrappers does not get the call of `eval()`."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import normal_batches, update_by
from harness.system.step_function import StepFunction

BUG = Bug(
    title="Evaluations of a wrapped schedule-free optimizer use the training weights",
    thread="huggingface/accelerate#4159",
    users_saw="With DeepSpeed, evaluations and saved checkpoints silently use the training weights instead of the "
    "averaged weights.",
    cause="The optimizer has two wrappers. A call of `train()` reaches the optimizer through both wrappers. A call of "
    "`eval()` only looks through the outer wrapper, so it does nothing.",
    fix="`eval()` reaches the optimizer through both wrappers.",
    changed="The templates: EVALUATED now compares the values that evaluations return with the plain arm's values. "
    "Before, EVALUATED only required that the values change from one evaluation to the next, and that evaluations do "
    "not change the training.",
)


def buggy(seed, optimized):
    return make_step(seed, optimized, levels=1)


def mended(seed, optimized):
    return make_step(seed, optimized, levels=2)


class Averaging(torch.optim.SGD):
    """Trains one point, and evaluates at the average of the points that it has seen."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
        self.points, self.seen = [p for group in self.param_groups for p in group["params"]], 0
        self.kept = None
        for p in self.points:
            self.state[p]["average"] = p.detach().clone()

    @property
    def averages(self):
        return [self.state[p]["average"] for p in self.points]

    @torch.no_grad()
    def step(self):
        super().step()
        self.seen += 1
        for average, point in zip(self.averages, self.points, strict=True):
            average.lerp_(point, 1 / (self.seen + 1))

    @torch.no_grad()
    def eval(self):
        self.kept = [p.clone() for p in self.points]
        torch._foreach_copy_(self.points, self.averages)

    @torch.no_grad()
    def train(self):
        if self.kept is not None:
            torch._foreach_copy_(self.points, self.kept)
            self.kept = None


class Wrapped:
    def __init__(self, optimizer, levels=0):
        self.optimizer, self.levels = optimizer, levels
        self.step, self.zero_grad = optimizer.step, optimizer.zero_grad

    def tell(self, mode):
        inner = self
        for _ in range(self.levels):
            inner = inner.optimizer
            if hasattr(inner, mode):
                getattr(inner, mode)()
                break


def make_step(seed, optimized, levels):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 3))
    inner = Averaging(model.parameters())
    optimizer = Wrapped(Wrapped(inner), levels) if optimized else Wrapped(inner, levels=1)

    step = update_by(optimizer, lambda batch: functional.cross_entropy(model(batch["x"]), batch["y"]))

    batch = normal_batches(seed, (16, 8), lambda x: x[:, :3].argmax(1))

    @torch.no_grad()
    def evaluate():
        held_out = batch(19_999)
        optimizer.tell("eval")
        loss = functional.cross_entropy(model(held_out["x"]), held_out["y"]).item()
        optimizer.tell("train")
        return loss

    return StepFunction(step, batch, model, evaluate=evaluate)
