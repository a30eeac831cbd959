"""Loading an optimizer over bfloat16 weights casts its float32 state to bfloat16."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from examples.field_bugs.bug import Bug
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A load casts an optimizer's float32 state to the weights' bfloat16",
    thread="pytorch/pytorch#43706",
    package="torch==2.13.0",
    users_saw="Moments saved in float32 lost their lower digits after a load. Several frameworks have workarounds.",
    cause="`Optimizer.load_state_dict` casts every floating-point state to the data type of its parameter.",
    fix="torch 2.13.0 has no fix. Here the saved state is restored after the load, in its saved data types.",
    changed="The harness: it restores random generators after it imports a library. Before, random numbers that were "
    "drawn during the import counted as random numbers of the training.",
    trouble="At first every claim failed for the buggy and the fixed form with `unequal_start` (generator `python`). "
    "Importing the library draws random numbers, and the harness counted them as random numbers of the training. "
    "The harness now restores the random generators after an import.",
)


def buggy(seed, optimized):
    return make_step(seed, optimized, keep_types=False)


def mended(seed, optimized):
    return make_step(seed, optimized, keep_types=True)


def make_step(seed, optimized, keep_types):
    from transformers import Adafactor

    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2)).bfloat16()
    fixed = {"scale_parameter": False, "relative_step": False, "warmup_init": False}
    optimizer = Adafactor(model.parameters(), lr=1e-2, beta1=0.9, **fixed)

    def step(batch):
        optimizer.zero_grad()
        predicted = checkpoint(model, batch["x"], use_reentrant=False) if optimized else model(batch["x"])
        loss = (predicted - batch["y"]).float().square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def batch(index):
        generator = torch.Generator().manual_seed(100_000 * seed + index)
        x = torch.randn(32, 8, generator=generator).bfloat16()
        return {"x": x, "y": x[:, :2].sin()}

    def save(path):
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)

    def load(path):
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        if keep_types:
            for parameter, state in zip(model.parameters(), saved["optimizer"]["state"].values(), strict=True):
                optimizer.state[parameter].update(state)

    return StepFunction(step=step, batch=batch, parameters=model, save=save, load=load)
