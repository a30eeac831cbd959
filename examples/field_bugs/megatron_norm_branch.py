"""A dense and an expert optimizer share a gradient norm and branch on this norm while they are captured.

How the bug arises: an update is skipped if its norm exceeds a threshold. Without a threshold the norm is compared with
infinity. The norm is a tensor, so the host waits for the result of the comparison, which a capture does not allow.
"""

import math

import torch
from torch import nn

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import DEVICE, token_batches
from harness.system.step_function import StepFunction

BUG = Bug(
    title="The captured optimizer branches on a gradient norm, although no threshold was set",
    thread="NVIDIA/Megatron-LM#5889",
    users_saw="If the optimizer is in the graph, the capture fails with the CUDA error that an operation is not "
    "permitted, and training ends.",
    cause="The optimizer skips updates whose gradient norm is too large. If no threshold is set, it compares the norm "
    "with infinity. The norm is a tensor, so the host waits for the result, which a capture does not allow.",
    fix="A captured optimizer does not make this comparison (NVIDIA/Megatron-LM#5857).",
)


class ChainedOptimizer:
    def __init__(self, groups, skip_above=math.inf):
        self.groups, self.skip_above = [list(group) for group in groups], skip_above
        self.chained = [torch.optim.SGD(group, lr=0.3) for group in self.groups]

    def step(self):
        norm = nn.utils.clip_grad_norm_([each for group in self.groups for each in group], 1.0)
        if self.is_left_out(norm):
            return
        for optimizer in self.chained:
            optimizer.step()

    def is_left_out(self, norm):
        return norm > self.skip_above


class CapturableChainedOptimizer(ChainedOptimizer):
    def is_left_out(self, norm):
        return math.isfinite(self.skip_above) and norm > self.skip_above


def make_step(seed, optimizer_class):
    torch.manual_seed(seed)
    dense = nn.ModuleDict({"tokens": nn.Embedding(32, 16), "gate": nn.Linear(16, 2), "head": nn.Linear(16, 32)})
    experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
    model = nn.ModuleList([dense, experts]).to(DEVICE)
    optimizer = optimizer_class([dense.parameters(), experts.parameters()])

    def step(batch):
        hidden = dense["tokens"](batch["tokens"][:, :-1])
        gates = dense["gate"](hidden).softmax(-1).split(1, -1)
        hidden = hidden + sum(gate * expert(hidden).relu() for gate, expert in zip(gates, experts, strict=True))
        loss = nn.functional.cross_entropy(dense["head"](hidden).flatten(0, 1), batch["tokens"][:, 1:].flatten())
        model.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    batch = token_batches(seed, 4, 9)

    return StepFunction(step, batch, model)


def buggy(seed):
    return make_step(seed, ChainedOptimizer)


def mended(seed):
    return make_step(seed, CapturableChainedOptimizer)
