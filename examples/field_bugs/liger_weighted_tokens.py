"""Liger's fused linear cross entropy scales the gradients of all tokens by the first token's weight."""

import os

import torch
from torch import nn

from examples.field_bugs.bug import Bug
from examples.field_bugs.packages import use_packages
from examples.field_bugs.small_training import DEVICE
from harness.system.step_function import StepFunction

BUG = Bug(
    title="Token weights affect the loss but not the gradients",
    thread="linkedin/Liger-Kernel#968",
    package="liger-kernel==0.8.0",
    installed={"buggy": ["liger-kernel==0.8.0"], "mended": ["liger-kernel==0.8.5"]},
    users_saw='With `reduction="none"` and a mask over tokens the loss was right, but gradients were wrong or all '
    "zero.",
    cause="The kernel reads one number where it should read a vector. The backward pass therefore multiplies the "
    "gradients of all tokens by the upstream gradient of the first token.",
    fix="The forward pass saves what the backward pass needs, and the backward pass uses each token's own upstream "
    "gradient.",
    changed="The harness: it restores random generators after it imports a library. Before, random numbers that were "
    "drawn during the import counted as random numbers of the training. The entry runs in a process that sets "
    "TRITON_INTERPRET before it imports Triton.",
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
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # Triton reads this variable when it is imported
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    torch.manual_seed(seed)
    model = nn.ModuleDict({"table": nn.Embedding(24, 16), "head": nn.Linear(16, 24, bias=False)}).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    fused = LigerFusedLinearCrossEntropyLoss(reduction="none")

    def token_losses(hidden, labels):
        if optimized:
            return fused(model["head"].weight, hidden, labels)
        return nn.functional.cross_entropy(model["head"](hidden), labels, reduction="none")

    def step(batch):
        optimizer.zero_grad()
        losses = token_losses(model["table"](batch["tokens"]), batch["labels"])
        loss = (losses * batch["weights"]).sum() / batch["weights"].sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def batch(index):
        generator = torch.Generator().manual_seed(100_000 * seed + index)
        tokens = torch.randint(0, 24, (16,), generator=generator)
        return {"tokens": tokens, "labels": (tokens * 5 + 1) % 24, "weights": torch.rand(16, generator=generator)}

    return StepFunction(step=step, batch=batch, parameters=model)
