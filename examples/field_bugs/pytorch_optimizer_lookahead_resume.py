"""pytorch-optimizer's Lookahead saves the state of the optimizer that it wraps, and not its slow weights."""

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
    from pytorch_optimizer import Lookahead

    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = Lookahead(torch.optim.AdamW(model.parameters(), lr=1e-2, fused=optimized), k=5, alpha=0.5)

    def step(batch):
        optimizer.zero_grad()
        loss = (model(batch["x"]) - batch["y"]).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def batch(index):
        generator = torch.Generator().manual_seed(100_000 * seed + index)
        x = torch.randn(16, 8, generator=generator)
        return {"x": x, "y": x[:, :2].sin()}

    def save(path):
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)

    def load(path):
        saved = torch.load(path, weights_only=False)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])

    return StepFunction(step=step, batch=batch, parameters=model, save=save, load=load)
