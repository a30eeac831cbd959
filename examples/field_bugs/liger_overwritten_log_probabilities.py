"""Liger's cross entropy overwrites its input, log-probabilities that the softmax saved for its backward pass."""

import os

import torch
from torch import nn

from examples.field_bugs.bug import Bug
from examples.field_bugs.packages import use_packages
from examples.field_bugs.small_training import DEVICE
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A loss writes its gradient into its input tensor",
    thread="linkedin/Liger-Kernel#272",
    package="liger-kernel==0.8.5",
    installed={"buggy": ["liger-kernel==0.8.5"], "mended": ["liger-kernel==0.8.5"]},
    users_saw="If Liger's cross entropy followed a softmax, gradients before the softmax were wrong without an error.",
    cause="The kernel writes the gradient into its input. autograd does not notice the write, although the softmax "
    "has saved the same tensor for its backward pass.",
    fix="No release up to 0.8.5 fixes the bug. Here the loss gets a copy, as the thread proposes for `inplace=False`.",
    changed="The harness: it restores random generators after it imports a library. Before, random numbers that were "
    "drawn during the import counted as random numbers of the training. The entry runs in a process that sets "
    "TRITON_INTERPRET before it imports Triton.",
    trouble="At first every claim failed for the buggy and the fixed form with `unequal_start` (generator `python`). "
    "Importing the library draws random numbers, and the harness counted them as random numbers of the training. "
    "The harness now restores the random generators after an import.",
)


def buggy(seed, optimized):
    use_packages(__file__, "buggy")
    return make_step(seed, optimized, copied=False)


def mended(seed, optimized):
    use_packages(__file__, "mended")
    return make_step(seed, optimized, copied=True)


def make_step(seed, optimized, copied):
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # Triton reads this variable when it is imported
    from liger_kernel.transformers import LigerCrossEntropyLoss

    torch.manual_seed(seed)
    model = nn.Sequential(nn.Embedding(24, 16), nn.Linear(16, 24)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    cross_entropy = LigerCrossEntropyLoss() if optimized else nn.CrossEntropyLoss()

    def step(batch):
        optimizer.zero_grad()
        log_probabilities = model(batch["tokens"]).log_softmax(-1)
        entropy = -(log_probabilities.exp() * log_probabilities).sum(-1).mean()
        given = log_probabilities.clone() if copied else log_probabilities
        loss = cross_entropy(given, batch["labels"]) - 0.05 * entropy
        loss.backward()
        optimizer.step()
        return loss.detach()

    def batch(index):
        generator = torch.Generator().manual_seed(100_000 * seed + index)
        tokens = torch.randint(0, 24, (16,), generator=generator)
        return {"tokens": tokens, "labels": (tokens * 5 + 1) % 24}

    return StepFunction(step=step, batch=batch, parameters=model)
