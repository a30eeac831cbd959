"""Replicas average gradients after the first micro-batch of a window instead of after the last one."""

import copy

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import normal_batches
from harness.system.step_function import StepFunction

BUG = Bug(
    title="Replicas average only the first micro-batch",
    thread="modelscope/FunASR#3472",
    users_saw="Ranks update with different gradients, and their weights drift apart.",
    cause="The trainer decides whether to synchronize before it increments the micro-batch counter. Therefore it "
    "synchronizes the first micro-batch of a window instead of the last one.",
    fix="The trainer synchronizes the last micro-batch of a window.",
)

RANKS, MICRO_BATCHES = 2, 3


def buggy(seed, optimized):
    return make_step(seed, optimized, synchronized=0)


def mended(seed, optimized):
    return make_step(seed, optimized, synchronized=MICRO_BATCHES - 1)


def average(replicas):
    for of_ranks in zip(*(replica.parameters() for replica in replicas), strict=True):
        mean = sum(p.grad for p in of_ranks) / RANKS
        for p in of_ranks:
            p.grad.copy_(mean)


def make_step(seed, optimized, synchronized):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(10, 32), nn.SiLU(), nn.Linear(32, 3))
    replicas = [model] + [copy.deepcopy(model) for _ in range(RANKS - 1)] if optimized else [model]
    optimizers = [torch.optim.AdamW(replica.parameters(), lr=2e-3) for replica in replicas]

    def step(batch):
        whole = torch.zeros(())
        for optimizer in optimizers:
            optimizer.zero_grad()
        xs, ys = batch["x"].chunk(MICRO_BATCHES), batch["y"].chunk(MICRO_BATCHES)
        for number, (x, y) in enumerate(zip(xs, ys, strict=True)):
            shards = zip(replicas, x.chunk(len(replicas)), y.chunk(len(replicas)), strict=True)
            for replica, *shard in shards:
                loss = functional.cross_entropy(replica(shard[0]), shard[1]) / MICRO_BATCHES
                loss.backward()
                whole += loss.detach() / len(replicas)
            if optimized and number == synchronized:
                average(replicas)
        for optimizer in optimizers:
            optimizer.step()
        return whole

    return StepFunction(step, normal_batches(seed, (48, 10), lambda x: x[:, :3].argmax(1)), model)
