"""Liger's fused linear cross entropy gives the gradients of all tokens the weight of the first."""

import os

import torch
from torch import nn

from examples.field_bugs.packages import use_packages
from harness.system.step_function import StepFunction


def buggy(seed, optimized):
    use_packages(__file__, "buggy")
    return make_step(seed, optimized)


def mended(seed, optimized):
    use_packages(__file__, "mended")
    return make_step(seed, optimized)


def make_step(seed, optimized):
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(seed)
    model = nn.ModuleDict({"table": nn.Embedding(24, 16), "head": nn.Linear(16, 24, bias=False)}).to(device)
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
