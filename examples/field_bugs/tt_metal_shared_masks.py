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
    users_saw="On a mesh with data and tensor parallelism the dropout masks of all four devices are equal.",
    cause="Dropout uses the same seed on all devices of the mesh. Another mode of dropout would add the device number "
    "to the seed.",
    fix="Masks are equal within a tensor-parallel group, and differ between data-parallel groups.",
    missed="Two processes and a claim about their random generators would find the bug, but at that time `ranks_agree` "
    "did not compare generators. In this entry the ranks are simulated in one process, and draw different numbers from "
    "the plain step, so every claim is undecided (`other_random_numbers`).",
    trouble="The fixed form is undecided too, because its ranks draw different random numbers from the plain step.",
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
