"""A checkpoint is loaded before the loss scaler exists, so the scaler starts from its initial value."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import class_batches
from harness.system.step_function import StepFunction

BUG = Bug(
    title="The loss scale is created after its checkpoint is loaded",
    thread="mosaicml/composer#1376",
    users_saw="After a resume the loss scale starts from its initial value. Other users then saw overflowing gradients "
    "and skipped updates (huggingface/transformers#34053).",
    cause="The trainer creates the loss scaler when training starts. This is after the checkpoint was loaded, so the "
    "saved state of the scaler is ignored.",
    fix="The scaler is created together with the trainer.",
    changed="The entry: the loss scale is 2^12 instead of 2^24. With 2^24 the first gradients overflow even in a "
    "correct trainer, so they are not finite at step 0.",
)


class Training:
    """Half-precision products under a loss scale that goes down where gradients overflow, and up again later."""

    def __init__(self, fused, mended):
        self.model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, fused=fused)
        self.scaler = self.new_scaler() if mended else None

    def new_scaler(self):
        return torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=8)

    def step(self, batch):
        self.scaler = self.scaler or self.new_scaler()
        self.optimizer.zero_grad()
        hidden = functional.gelu(self.model[0](batch["x"])).half()
        logits = functional.linear(hidden, self.model[2].weight.half(), self.model[2].bias.half())
        loss = functional.cross_entropy(logits.float(), batch["y"])
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach()

    def parts(self):
        parts = {"model": self.model, "optimizer": self.optimizer, "scaler": self.scaler}
        return {name: part for name, part in parts.items() if part is not None}


def buggy(seed, optimized):
    return make_step(seed, optimized, mended=False)


def mended(seed, optimized):
    return make_step(seed, optimized, mended=True)


def make_step(seed, optimized, mended):
    torch.manual_seed(seed)
    training = Training(optimized, mended)

    batch = class_batches(seed, 32, 16, 4)

    @torch.no_grad()
    def evaluate():
        x = batch(10_000)
        return functional.cross_entropy(training.model(x["x"]), x["y"])

    save = lambda path: torch.save({name: part.state_dict() for name, part in training.parts().items()}, path)

    def load(path):
        saved = torch.load(path)
        for name, part in training.parts().items():
            part.load_state_dict(saved[name])

    return StepFunction(training.step, batch, training.model, evaluate=evaluate, save=save, load=load)
