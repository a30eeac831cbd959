"""Blocks take their input from a list; the reentrant checkpoint sees no tensor there, so no gradient passes."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import update_by
from harness.system.step_function import StepFunction

BUG = Bug(
    title="Checkpointed blocks do not train if their input is in a list",
    thread="PriorLabs/TabPFN#1138",
    users_saw="Fine-tuning with activation checkpointing raises no error, but the transformer's blocks get no "
    "gradients.",
    cause="To free memory early, blocks take their input from a list. The reentrant checkpoint looks for tensors only "
    "among its direct arguments, so it finds none and passes no gradient to the blocks.",
    fix="The tensor is passed as an argument.",
)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, given):
        x = given[0] if isinstance(given, list) else given
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Table(nn.Module):
    """Rows of a table; each block's input is handed over in a list, which lets its caller forget it."""

    def __init__(self, recomputes, in_list):
        super().__init__()
        self.recomputes, self.in_list = recomputes, in_list
        self.encoder, self.head = nn.Linear(12, 24), nn.Linear(24, 3)
        self.blocks = nn.ModuleList(Block(24) for _ in range(3))

    def forward(self, x):
        x = self.encoder(x)
        for block in self.blocks:
            given = [x] if self.in_list else x
            x = checkpoint(block, given, use_reentrant=True) if self.recomputes else block(given)
        return self.head(x)


def buggy(seed, optimized):
    return make_step(seed, optimized, mended=False)


def mended(seed, optimized):
    return make_step(seed, optimized, mended=True)


def make_step(seed, optimized, mended):
    torch.manual_seed(seed)
    model = Table(recomputes=optimized, in_list=not mended)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)

    step = update_by(optimizer, lambda batch: functional.cross_entropy(model(batch["rows"]), batch["classes"]))

    def batch(index):
        generator = torch.Generator().manual_seed(1000 * seed + index)
        classes = torch.randint(0, 3, (64,), generator=generator)
        rows = torch.randn(64, 12, generator=generator) + functional.one_hot(classes, 12)
        return {"rows": rows, "classes": classes}

    return StepFunction(step, batch, model)
