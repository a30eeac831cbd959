"""No bug of the field: a toy in the form of an entry, which the tests of the museum's machinery run."""

import torch
from torch import nn

from examples.field_bugs.bug import Bug
from examples.field_bugs.own_capture import OwnCaptures, OwnGraph, warm_up
from harness.system.step_function import StepFunction

BUG = Bug(
    title="Updates before a capture are doubled",
    thread="none: a toy",
    users_saw="Training differs from the first step on.",
    cause="The warm-up before the capture updates the weights three times.",
    fix="The weights are put back after the warm-up.",
)


def buggy(seed, captured):
    return make_step(seed, captured, undo=False)


def mended(seed, captured):
    return make_step(seed, captured, undo=True)


def make_step(seed, captured, undo):
    torch.manual_seed(seed)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    captures, static = OwnCaptures(captured), {}

    def update():
        optimizer.zero_grad()
        loss = (model(static["x"]) - static["y"]).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def capture():
        before = {name: value.clone() for name, value in model.state_dict().items()}
        warm_up(update, 3)
        if undo:
            model.load_state_dict(before)
        captures.graphs["all"] = OwnGraph(update, static, model.parameters())
        captures.captures += 1

    def step(batch):
        for name, tensor in batch.items():
            static.setdefault(name, tensor.clone()).copy_(tensor)
        if not captured:
            return update()
        if not captures.graphs:
            capture()
        captures.replays += 1
        return captures.graphs["all"].replay()

    def batch(index):
        generator = torch.Generator().manual_seed(1000 * seed + index)
        x = torch.randn(8, 4, generator=generator)
        return {"x": x, "y": x.sum(1, keepdim=True)}

    def evaluate():
        with torch.no_grad():
            return model(torch.ones(1, 4)).item()

    def load(path):
        model.load_state_dict(torch.load(path))

    return StepFunction(
        step=step,
        batch=batch,
        parameters=model,
        captured=captures.record,
        evaluate=evaluate,
        save=lambda path: torch.save(model.state_dict(), path),
        load=load,
    )
