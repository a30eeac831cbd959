"""The same system with two faults that only a sharded training can have."""

from dataclasses import replace
from functools import partial

from examples.ranks.fsdp2.adapter import Fsdp2
from harness.system.step_function import Expectation, PlantedFault


def clip_parts(parameters, max_norm):
    """Clip each rank's part by the norm of that part alone, as a clip written for one process does."""
    import torch

    parts = [each.grad.to_local() if hasattr(each.grad, "to_local") else each.grad for each in parameters]
    norm = torch.stack([part.norm() for part in parts]).norm()
    for part in parts:
        part.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))


def whole_in_every_rank(right):
    """Train under DistributedDataParallel from the same parameters."""
    import torch

    from examples.ranks.fsdp2 import train

    sharded, optimizer = right.step.args
    width, words, rate = *reversed(sharded.embedding.weight.shape), optimizer.param_groups[0]["lr"]
    shape = train.Shape(width, sharded.blocks[0].heads, len(sharded.blocks), words, rate)
    model = train.make_model(shape, device=optimizer.param_groups[0]["params"][0].device)
    with torch.no_grad():
        for ours, theirs in zip(model.parameters(), sharded.parameters(), strict=True):
            ours.copy_(theirs.full_tensor())
    again = train.make_optimizer(model, rate)
    step = partial(train.train_step, train.replicated(model), again)
    return replace(right, step=step, parameters=lambda: dict(model.named_parameters()))


EXCEEDS = Expectation("FAIL", "exceeds_tolerance")


class Faulty(Fsdp2):
    faults = {
        "clip_parts": PlantedFault(
            "each rank clips its parts by their own norm, not by the norm of the whole",
            lambda right: replace(right, step=partial(right.step.func, *right.step.args, clip=clip_parts)),
            {"ranks_match": EXCEEDS, "trajectory_match": EXCEEDS, "peak_memory": EXCEEDS},
        ),
        "whole_in_every_rank": PlantedFault(
            "every rank holds the whole model, and the optimizer's moments of all of it",
            whole_in_every_rank,
            {
                "ranks_agree": Expectation("FAIL", "share_exceeded", {"largest_share": 1.0}),
                "peak_memory": Expectation("FAIL", "peak_ratio"),
            },
        ),
    }
