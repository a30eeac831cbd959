"""Recomputing a block for the backward pass updates its running statistics again."""

from contextlib import contextmanager, nullcontext

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import update_by
from harness.system.step_function import StepFunction

BUG = Bug(
    title="Recomputation updates BatchNorm's statistics twice",
    thread="Tencent/YOLO-Master#262",
    users_saw="Under activation checkpointing BatchNorm counts twice as many batches and has different running "
    "statistics. Losses and gradients are equal.",
    cause="For the backward pass a checkpointed block runs forward again in training mode, and updates its running "
    "statistics again.",
    fix="The recomputation uses copies of the running statistics.",
    changed="The harness: BatchNorm's counts of batches are also compared within a bound. If the counts differ, the "
    "difference of the final statistics decides.",
)


@contextmanager
def kept_statistics(model):
    """Forward passes within leave running statistics as they are."""
    kept = [(norm, norm._buffers) for norm in model.modules() if isinstance(norm, nn.BatchNorm2d)]
    for norm, buffers in kept:
        norm._buffers = {name: buffer.clone() for name, buffer in buffers.items()}
    try:
        yield
    finally:
        for norm, buffers in kept:
            norm._buffers = buffers


class Detector(nn.Module):
    def __init__(self, recomputes, keeps):
        super().__init__()
        self.recomputes, self.keeps = recomputes, keeps
        block = lambda inputs, outputs: [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.SiLU()]
        self.backbone, self.head = nn.Sequential(*block(1, 8), *block(8, 8)), nn.Conv2d(8, 1, 1)

    def forward(self, x):
        if not self.recomputes:
            return self.head(self.backbone(x))
        contexts = lambda: (nullcontext(), kept_statistics(self.backbone) if self.keeps else nullcontext())
        return self.head(checkpoint(self.backbone, x, use_reentrant=False, context_fn=contexts))


def buggy(seed, optimized):
    return make_step(seed, optimized, mended=False)


def mended(seed, optimized):
    return make_step(seed, optimized, mended=True)


def make_step(seed, optimized, mended):
    torch.manual_seed(seed)
    model = Detector(recomputes=optimized, keeps=mended)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)

    step = update_by(
        optimizer, lambda batch: functional.cross_entropy(model(batch["pictures"]).flatten(1), batch["places"])
    )

    def batch(index):
        generator = torch.Generator().manual_seed(1000 * seed + index)
        places = torch.randint(0, 64, (16,), generator=generator)
        pictures = torch.randn(16, 64, generator=generator) + 3 * functional.one_hot(places, 64)
        return {"pictures": pictures.view(16, 1, 8, 8), "places": places}

    return StepFunction(step, batch, model)
