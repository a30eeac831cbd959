"""A resume searches for the optimizer's state in a folder that this backend never writes."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A resume does not find an optimizer state that another backend saved",
    thread="NVIDIA-NeMo/RL#3171",
    users_saw="After a restart the models are restored, but training resumes with new Adam moments and a new schedule.",
    cause="The resume looks for a separate folder with optimizer state. This backend saves the state next to the "
    "weights, so the resume finds none.",
    fix="The resume checks whether the checkpoint itself has optimizer state.",
)


class Backend:
    """Writes model and optimizer into one file below `weights`."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def save(self, path):
        (path / "weights").mkdir(parents=True)
        states = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(states, path / "weights" / "common.pt")

    def load(self, path, optimizer_too):
        states = torch.load(path / "weights" / "common.pt")
        self.model.load_state_dict(states["model"])
        if optimizer_too:
            self.optimizer.load_state_dict(states["optimizer"])

    def has_optimizer(self, path):
        return "optimizer" in torch.load(path / "weights" / "common.pt")


def buggy(seed, optimized):
    return make_step(seed, optimized, mended=False)


def mended(seed, optimized):
    return make_step(seed, optimized, mended=True)


def make_step(seed, optimized, mended):
    torch.manual_seed(seed)
    policy = nn.Sequential(nn.Linear(12, 48), nn.Tanh(), nn.Linear(48, 6))
    backend = Backend(policy, torch.optim.AdamW(policy.parameters(), lr=5e-3, fused=optimized))

    def step(batch):
        backend.optimizer.zero_grad()
        chosen = policy(batch["seen"]).log_softmax(-1).gather(1, batch["actions"][:, None])[:, 0]
        ratio = (chosen - batch["before"]).exp()
        clipped = ratio.clamp(0.0, 6.0)
        loss = -torch.minimum(ratio * batch["advantages"], clipped * batch["advantages"]).mean()
        loss.backward()
        backend.optimizer.step()
        return loss

    def batch(index):
        generator = torch.Generator().manual_seed(1000 * seed + index)
        right = torch.randint(0, 6, (64,), generator=generator)
        actions = torch.randint(0, 6, (64,), generator=generator)
        seen = torch.randn(64, 12, generator=generator) + 2 * functional.one_hot(right, 12)
        before = torch.full((64,), 1 / 6).log()
        return {"seen": seen, "actions": actions, "advantages": (actions == right).float() - 1 / 6, "before": before}

    @torch.no_grad()
    def evaluate():
        return policy(batch(10_000)["seen"]).softmax(-1).max(-1).values.mean()

    def load(path):
        found = backend.has_optimizer(path) if mended else (path / "optimizer").is_dir()
        backend.load(path, optimizer_too=found)

    return StepFunction(step, batch, policy, evaluate=evaluate, save=backend.save, load=load)
