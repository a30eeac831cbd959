"""An asynchronous saver does not copy the optimizer's step counts, which training changes before they are saved."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import class_batches
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A checkpoint contains the step count of a later update",
    thread="NVIDIA/nvidia-resiliency-ext#376",
    users_saw="The step count of a resumed optimizer does not match the saved weights and moments.",
    cause="CPU tensors are passed to the saving process without a copy, so the next update changes them before the "
    "process has written the file. The entry has no such process. Instead it writes the file again after the next "
    "update.",
    fix="CPU tensors are copied when the checkpoint is scheduled.",
)


class AsynchronousSaver:
    """Copies what lies on the accelerator, here all that has more than one number; the rest as `snapshot` does."""

    def __init__(self, snapshot):
        self.snapshot, self.pending = snapshot, None

    def schedule(self, model, optimizer, path):
        copied = lambda tensor: tensor.clone() if tensor.numel() > 1 else self.snapshot(tensor)
        whole = optimizer.state_dict()
        state = {key: {n: copied(v) for n, v in of.items()} for key, of in whole["state"].items()}
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        self.pending = {"model": weights, "optimizer": whole | {"state": state}}, path
        self.write()

    def write(self):
        torch.save(*self.pending)

    def proceed(self):
        if self.pending is not None:
            self.write()
            self.pending = None


def buggy(seed, optimized):
    return make_step(seed, optimized, snapshot=lambda tensor: tensor)


def mended(seed, optimized):
    return make_step(seed, optimized, snapshot=torch.clone)


def make_step(seed, optimized, snapshot):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, fused=optimized)
    saver = AsynchronousSaver(snapshot)

    def step(batch):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        saver.proceed()
        return loss.detach()

    def load(path):
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])

    save = lambda path: saver.schedule(model, optimizer, path)
    return StepFunction(step, class_batches(seed, 32, 16, 4), model, save=save, load=load)
