"""Liger's cross entropy writes its gradient over the log-probabilities it is given, which their softmax has kept."""

import os

import torch
from torch import nn

from examples.field_bugs.packages import use_packages
from harness.system.step_function import StepFunction


def buggy(seed, optimized):
    use_packages(__file__, "buggy")
    return make_step(seed, optimized, copied=False)


def mended(seed, optimized):
    use_packages(__file__, "mended")
    return make_step(seed, optimized, copied=True)


def make_step(seed, optimized, copied):
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    from liger_kernel.transformers import LigerCrossEntropyLoss

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Embedding(24, 16), nn.Linear(16, 24)).to(device)
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
