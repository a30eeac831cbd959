"""pytorch-optimizer's Lookahead saves only the state of the wrapped optimizer, and not its own slow weights."""

import torch
from torch import nn

from examples.field_bugs.bug import Bug
from examples.field_bugs.packages import use_packages
from examples.field_bugs.small_training import checkpoints, normal_batches, update_by
from harness.system.step_function import StepFunction

BUG = Bug(
    title="Checkpoints of a Lookahead optimizer lack the slow weights",
    thread="kozistr/pytorch_optimizer#310",
    package="pytorch-optimizer==3.3.0",
    installed={"buggy": ["pytorch-optimizer==3.3.0"], "mended": ["pytorch-optimizer==4.1.0"]},
    users_saw="After a resume the optimizer pulled the weights back to their values at the time of loading.",
    cause="`state_dict` of the optimizer returns only the state of the wrapped optimizer.",
    fix="The slow weights are saved and restored by the index of the parameter. A first fix (3.3.1) stored them with "
    "tensors as keys, which raised a KeyError after a load. Releases from 4.0 on are right.",
    changed="The harness: it restores random generators after it imports a library. Before, random numbers that were "
    "drawn during the import counted as random numbers of the training.",
    trouble="At first every claim failed for the buggy and the fixed form with `unequal_start` (generator `python`). "
    "Importing the library draws random numbers, and the harness counted them as random numbers of the training. "
    "The harness now restores the random generators after an import.",
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
