"""Two data-parallel ranks draw the same dropout masks."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import class_batches, update_by
from harness.system.step_function import StepFunction

BUG = Bug(
    title="All ranks drop the same activations",
    thread="tenstorrent/tt-metal#55947",
    users_saw="Masks on all four devices of a mesh of data and tensor parallelism are equal.",
    cause="Dropout has one seed for the whole mesh; its other mode adds the number of the device.",
    fix="Masks are equal within tensor-parallel groups, and differ between data-parallel ones.",
    missed="Two processes, and a claim about their generators, which ranks_agree does not compare. Ranks within one "
    "step draw other numbers than one process does, which leaves every claim undecided: other_random_numbers.",
    trouble="Other random numbers than the plain step's decide nothing about the fixed form either.",
)

RANKS = 2


def buggy(seed, optimized):
    return make_step(seed, optimized, apart=0)


def mended(seed, optimized):
    return make_step(seed, optimized, apart=1)


def make_step(seed, optimized, apart):
    torch.manual_seed(seed)
    first, last = nn.Linear(16, 32), nn.Linear(32, 4)
    optimizer = torch.optim.AdamW([*first.parameters(), *last.parameters()], lr=3e-3)
    ranks = RANKS if optimized else 1
    generators = [torch.Generator().manual_seed(seed + apart * rank) for rank in range(ranks)]

    def dropped(hidden, generator):
        return hidden * (torch.rand(hidden.shape, generator=generator) > 0.1) / 0.9

    def loss_of(batch):
        pieces = zip(first(batch["x"]).tanh().chunk(ranks), generators, strict=True)
        hidden = torch.cat([dropped(*piece) for piece in pieces])
        return functional.cross_entropy(last(hidden), batch["y"])

    step = update_by(optimizer, loss_of)
    return StepFunction(step, class_batches(seed, 32, 16, 4), nn.ModuleList([first, last]))
