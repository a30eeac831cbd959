"""pytorch-optimizer's Lookahead saves the state of the optimizer that it wraps, and not its slow weights."""

import torch
from torch import nn

from examples.field_bugs.bug import Bug
from examples.field_bugs.packages import use_packages
from examples.field_bugs.small_training import checkpoints, normal_batches, update_by
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A Lookahead optimizer forgets its slow weights at a checkpoint",
    thread="kozistr/pytorch_optimizer#310",
    package="pytorch-optimizer==3.3.0",
    installed={"buggy": ["pytorch-optimizer==3.3.0"], "mended": ["pytorch-optimizer==4.1.0"]},
    users_saw="A training that went on from a checkpoint pulled its weights back to those of the moment of loading.",
    cause="Its `state_dict` returns the state of the optimizer that it wraps, and nothing of its own.",
    fix="Slow weights are saved by the parameters' positions and restored by them. A first fix (3.3.1) kept them by "
    "tensor, and raised KeyError after a load; it held from 4.0 on.",
    changed="The harness: what a library draws while it is imported is put back; it was taken for the training's.",
    trouble="At the first try every claim was FAIL `unequal_start`, `generators python`, in both forms: what a "
    "library draws while it is imported was taken for the training's. The harness puts it back now.",
)


def buggy(seed, optimized):
    use_packages(__file__, "buggy")
    return make_step(seed, optimized)


def mended(seed, optimized):
    use_packages(__file__, "mended")
    return make_step(seed, optimized)


def make_step(seed, optimized):
    from pytorch_optimizer import Lookahead

    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = Lookahead(torch.optim.AdamW(model.parameters(), lr=1e-2, fused=optimized), k=5, alpha=0.5)

    step = update_by(optimizer, lambda batch: (model(batch["x"]) - batch["y"]).square().mean())

    batch = normal_batches(seed, (16, 8), lambda x: x[:, :2].sin(), apart=100_000)

    save, load = checkpoints(model=model, optimizer=optimizer)

    return StepFunction(step=step, batch=batch, parameters=model, save=save, load=load)
