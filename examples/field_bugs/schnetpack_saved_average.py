"""A checkpoint is written while the model holds the averaged weights."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A checkpoint contains averaged weights instead of trained weights",
    thread="atomistic-machine-learning/schnetpack#785",
    users_saw="The training loss jumps after a resume.",
    cause="Checkpoints are written during validation, while the model holds the averaged weights. The trained weights "
    "are restored only when training continues.",
    fix="The trained weights are restored before the model is saved.",
)


class Averaging:
    """Puts averaged weights into the model for an evaluation, and the trained ones back when training goes on."""

    def __init__(self, model):
        self.model = model
        self.average = [parameter.detach().clone() for parameter in model.parameters()]
        self.trained = None

    @torch.no_grad()
    def put(self, weights):
        for parameter, weight in zip(self.model.parameters(), weights, strict=True):
            parameter.copy_(weight)

    def begin_evaluation(self):
        self.trained = [parameter.detach().clone() for parameter in self.model.parameters()]
        self.put(self.average)

    def go_on(self):
        if self.trained is not None:
            self.put(self.trained)
            self.trained = None

    @torch.no_grad()
    def update(self):
        for mine, new in zip(self.average, self.model.parameters(), strict=True):
            mine.lerp_(new, 0.05)


def buggy(seed, optimized):
    return make_step(seed, optimized, mended=False)


def mended(seed, optimized):
    return make_step(seed, optimized, mended=True)


def make_step(seed, optimized, mended):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(9, 48), nn.Softplus(), nn.Linear(48, 1))  # positions of three atoms -> their energy
    averaging, optimizer = Averaging(model), torch.optim.AdamW(model.parameters(), 1e-2, fused=optimized)

    def step(batch):
        averaging.go_on()
        optimizer.zero_grad()
        loss = functional.mse_loss(model(batch["places"])[:, 0], batch["energies"])
        loss.backward()
        optimizer.step()
        averaging.update()
        return loss

    def batch(index):
        places = torch.randn(64, 9, generator=torch.Generator().manual_seed(1000 * seed + index))
        return {"places": places, "energies": places.square().sum(1) / 4}

    @torch.no_grad()
    def evaluate():
        averaging.begin_evaluation()
        x = batch(10_000)
        error = functional.mse_loss(model(x["places"])[:, 0], x["energies"])
        if mended:
            averaging.go_on()
        return error

    def save(path):
        evaluate()  # a checkpoint is saved after a validation
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "average": averaging.average}, path
        )

    def load(path):
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        for mine, average in zip(averaging.average, saved["average"], strict=True):
            mine.copy_(average)

    return StepFunction(step, batch, model, evaluate=evaluate, save=save, load=load)
