"""An asynchronous saver reuses the structure of the first checkpoint, including its tensors."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import normal_batches
from harness.system.step_function import StepFunction

BUG = Bug(
    title="Every checkpoint after the first contains the first one's tensors",
    thread="NVIDIA-NeMo/RL#3312",
    users_saw="The checkpoints of steps 90, 110 and 120 were equal in bits, and a resume from the last one returned "
    "to an old policy.",
    cause="The saver reuses the data structure of the first save, which includes copies of the tensors of that save.",
    fix="The tensors in the structure are filled with the current values at each save.",
    changed="The harness: halfway to each checkpoint that it loads, it makes an additional checkpoint that it does not "
    "load. Before, the process made one checkpoint and ended.",
)


def buggy(seed, optimized):
    return make_step(seed, optimized, filled_anew=False)


def mended(seed, optimized):
    return make_step(seed, optimized, filled_anew=True)


class StagedSaver:
    """Saves from staging tensors, so that training may go on meanwhile."""

    def __init__(self, filled_anew):
        self.filled_anew, self.staged = filled_anew, None

    def save(self, named, path):
        if self.staged is None:
            self.staged = {name: tensor.detach().clone() for name, tensor in named.items()}
        elif self.filled_anew:
            for name, tensor in named.items():
                self.staged[name].copy_(tensor)
        torch.save(self.staged, path)


def make_step(seed, optimized, filled_anew):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 3))
    momenta = {f"momentum.{name}": torch.zeros_like(p) for name, p in model.named_parameters()}
    everything = lambda: dict(model.named_parameters()) | momenta
    saver = StagedSaver(filled_anew)

    def step(batch):
        model.zero_grad()
        loss = functional.cross_entropy(model(batch["x"]), batch["y"])
        loss.backward()
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.sub_(0.05 * momenta[f"momentum.{name}"].mul_(0.9).add_(p.grad))
        return loss.detach()

    batch = normal_batches(seed, (16, 8), lambda x: x[:, :3].argmax(1))

    def save(path):
        saver.save(everything(), path) if optimized else torch.save(everything(), path)

    @torch.no_grad()
    def load(path):
        for name, tensor in torch.load(path, weights_only=False).items():
            everything()[name].copy_(tensor)

    return StepFunction(step, batch, model, save=save, load=load)
