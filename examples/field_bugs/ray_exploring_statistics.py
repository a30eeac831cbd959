"""A policy explores in training mode, so BatchNorm updates its statistics from batches that are not trained on."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import class_batches, update_by
from harness.system.step_function import StepFunction

BUG = Bug(
    title="Inference updates BatchNorm's statistics",
    thread="ray-project/ray#61985",
    users_saw="In inference and exploration, layers such as Dropout and BatchNorm behave as in training.",
    cause="If a forward pass is not for training, the module is still in training mode, because nothing sets "
    "evaluation mode.",
    fix="Forward passes of inference and exploration set evaluation mode, and set training mode again afterwards.",
)


def buggy(seed, optimized):
    return make_step(seed, optimized, sets_mode=False)


def mended(seed, optimized):
    return make_step(seed, optimized, sets_mode=True)


def make_step(seed, optimized, sets_mode):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=optimized)
    step = update_by(optimizer, lambda batch: functional.cross_entropy(model(batch["x"]), batch["y"]))
    batch = class_batches(seed, 32, 16, 4)

    @torch.no_grad()
    def evaluate():
        held_out = batch(900)
        model.train(not (sets_mode or not optimized))
        loss = functional.cross_entropy(model(held_out["x"]), held_out["y"])
        model.train()
        return loss

    return StepFunction(step, batch, model, evaluate=evaluate)
