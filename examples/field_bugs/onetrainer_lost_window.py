"""Each call of the step is one micro-batch; a checkpoint within a window lacks the accumulated gradients."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import normal_batches
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A stop during gradient accumulation loses the accumulated gradients",
    thread="Nerogar/OneTrainer#1465",
    users_saw="At the first update after each resume the logged loss drops sharply, because the update has too few "
    "micro-batches.",
    cause="The checkpoint contains the position within the accumulation window, but not the gradients that were "
    "accumulated so far.",
    fix="Checkpoints contain the accumulated gradients.",
    changed="The templates: the numbers of steps, and the intervals of saves and evaluations, are primes (43, 19, 7), "
    "so they are not multiples of a trainer's period. Before, they were 40, 20 and 10.",
)

WINDOW = 5


def buggy(seed, optimized):
    return make_step(seed, optimized, keeps_gradients=False)


def mended(seed, optimized):
    return make_step(seed, optimized, keeps_gradients=True)


def make_step(seed, optimized, keeps_gradients):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(10, 24), nn.SiLU(), nn.Linear(24, 2))
    optimizer, done = torch.optim.AdamW(model.parameters(), lr=5e-3, fused=optimized), [0]

    def step(batch):
        loss = functional.mse_loss(model(batch["x"]), batch["y"])
        (loss / WINDOW).backward()
        done[0] += 1
        if done[0] % WINDOW == 0:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        return loss.detach()

    batch = normal_batches(seed, (8, 10), lambda x: torch.sin(x[:, :2]) + x[:, 2:4])

    def save(path):
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "done": done[0]}
        torch.save(state | {"gradients": [p.grad for p in model.parameters()] if keeps_gradients else None}, path)

    def load(path):
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done[0] = state["done"]
        optimizer.zero_grad()
        for p, gradient in zip(model.parameters(), state["gradients"] or [], strict=False):
            p.grad = gradient

    return StepFunction(step, batch, model, save=save, load=load)
