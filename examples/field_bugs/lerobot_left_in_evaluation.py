"""An evaluation leaves the policy in evaluation mode, and training continues in this mode."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import checkpoints, update_by
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A policy stays in evaluation mode",
    thread="huggingface/lerobot#3668",
    users_saw="After the first evaluation, training continues without dropout and with frozen BatchNorm statistics.",
    cause="The evaluation sets evaluation mode and does not restore the earlier mode.",
    fix="The evaluation restores the earlier mode.",
    changed="The harness: `gradient_match` within a bound now treats a gradient below 1e-6 of the step's largest "
    "gradient as rounding. The gradient of a bias before BatchNorm consists only of rounding errors.",
)


def buggy(seed, optimized):
    return make_step(seed, optimized, mended=False)


def mended(seed, optimized):
    return make_step(seed, optimized, mended=True)


def make_step(seed, optimized, mended):
    torch.manual_seed(seed)
    policy = nn.Sequential(nn.Linear(12, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 6))
    optimizer = torch.optim.AdamW(policy.parameters(), lr=5e-3, fused=optimized)

    step = update_by(optimizer, lambda batch: functional.cross_entropy(policy(batch["seen"]), batch["actions"]))

    def batch(index):
        generator = torch.Generator().manual_seed(1000 * seed + index)
        actions = torch.randint(0, 6, (32,), generator=generator)
        return {
            "seen": torch.randn(32, 12, generator=generator) + 2 * functional.one_hot(actions, 12),
            "actions": actions,
        }

    @torch.no_grad()
    def evaluate():
        was_training = policy.training
        policy.eval()
        x = batch(10_000)
        right = functional.cross_entropy(policy(x["seen"]), x["actions"])
        if mended:
            policy.train(was_training)
        return right

    save, load = checkpoints(policy=policy, optimizer=optimizer, generator=True)

    return StepFunction(step, batch, policy, evaluate=evaluate, save=save, load=load)
