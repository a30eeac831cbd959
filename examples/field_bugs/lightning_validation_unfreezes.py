"""A validation by Lightning's Trainer sets a body that is frozen in evaluation mode to training mode."""

import logging

import torch
from torch import nn
from torch.utils.data import DataLoader

from examples.field_bugs.bug import Bug
from examples.field_bugs.packages import use_packages
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A validation sets frozen layers to training mode",
    thread="Lightning-AI/pytorch-lightning#18930",
    package="pytorch-lightning==2.1.4",
    installed={
        "buggy": ["pytorch-lightning==2.1.4", "setuptools==75.8.0"],
        "mended": ["pytorch-lightning==2.2.5", "setuptools==75.8.0"],
    },
    users_saw="Frozen BatchNorm layers updated their running statistics after the first validation.",
    cause="The evaluation loop ends with `model.train()`, even for modules that were in evaluation mode before.",
    fix="The loop saves the mode of each module and restores it.",
    changed="The harness: it restores random generators after it imports a library. Before, random numbers that were "
    "drawn during the import counted as random numbers of the training. A tried release may now also import modules "
    "whose names begin with an underscore and that Python itself imported at its start.",
    trouble="At first every claim failed for the buggy and the fixed form with `unequal_start` (generator `python`). "
    "Importing the library draws random numbers, and the harness counted them as random numbers of the training. "
    "The harness now restores the random generators after an import.",
)


def buggy(seed, optimized):
    use_packages(__file__, "buggy")
    return make_step(seed, optimized)


def mended(seed, optimized):
    use_packages(__file__, "mended")
    return make_step(seed, optimized)


def make_step(seed, optimized):
    import pytorch_lightning as lightning

    class Tuned(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh())
            self.body.requires_grad_(False).eval()
            self.head = nn.Linear(16, 2)

        def loss(self, x):
            return (self.head(self.body(x)) - x[:, :2].sin()).square().mean()

        def validation_step(self, x, _index):
            self.log("loss", self.loss(x))

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    torch.manual_seed(seed)
    module = Tuned()
    optimizer = torch.optim.AdamW(module.head.parameters(), lr=1e-2, fused=optimized)
    unseen = DataLoader(torch.randn(32, 8), batch_size=16, generator=torch.Generator())
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(accelerator="cpu", **quiet)

    def step(batch):
        optimizer.zero_grad()
        loss = module.loss(batch["x"])
        loss.backward()
        optimizer.step()
        return loss.detach()

    def batch(index):
        return {"x": torch.randn(16, 8, generator=torch.Generator().manual_seed(100_000 * seed + index))}

    def evaluate():
        return trainer.validate(module, unseen, verbose=False)[0]["loss"]

    return StepFunction(step=step, batch=batch, parameters=module.head, evaluate=evaluate)
