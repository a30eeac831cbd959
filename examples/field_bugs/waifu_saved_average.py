"""To save the averaged model, a checkpoint copies it into the trained model, which then keeps the averaged weights."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import normal_batches
from harness.system.step_function import StepFunction

BUG = Bug(
    title="After a checkpoint, training continues with the averaged weights",
    thread="harubaru/waifu-diffusion#31",
    users_saw="The training depends on how often checkpoints are written.",
    cause="To save the averaged model, the trainer copies the averaged weights into the trained model, and does not "
    "restore the trained weights afterwards.",
    fix="The trained weights are kept and restored.",
    changed="The harness: halfway to each checkpoint that it loads, it makes an additional checkpoint that it does "
    "not load. Before, the process made one checkpoint and ended.",
)


def buggy(seed, optimized):
    return make_step(seed, optimized, restores=False)


def mended(seed, optimized):
    return make_step(seed, optimized, restores=True)


def make_step(seed, optimized, restores):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 3))
    average = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, fused=optimized)

    def step(batch):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(average, list(model.parameters()), 0.02)
        return loss.detach()

    batch = normal_batches(seed, (16, 8), lambda x: x[:, :3].argmax(1))

    @torch.no_grad()
    def save(path):
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "average": average}
        torch.save(state, path)
        if optimized:  # show the averaged weights to others
            trained = [p.clone() for p in model.parameters()]
            torch._foreach_copy_(list(model.parameters()), average)
            torch.save(model.state_dict(), f"{path}.average")
            if restores:
                torch._foreach_copy_(list(model.parameters()), trained)

    @torch.no_grad()
    def load(path):
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch._foreach_copy_(average, state["average"])

    return StepFunction(step, batch, model, save=save, load=load)
