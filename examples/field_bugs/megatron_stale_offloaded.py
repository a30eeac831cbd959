"""An offloading optimizer updates its own copies of parameters; a copy can keep the gradient of an earlier step."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from harness.system.step_function import StepFunction

BUG = Bug(
    title="An offloaded optimizer updates an expert without tokens by its last gradient",
    thread="NVIDIA/Megatron-LM#6871",
    users_saw="Users saw no error. A parameter that gets no gradient in a step still changes, because the update uses "
    "the gradient of an earlier step.",
    cause="The optimizer's own copy of a parameter keeps its gradient if the source parameter has none.",
    fix="The gradient of the copy is cleared if the source parameter has none.",
    changed="The harness: it used to refuse an optimizer that updates copies of the trainer's parameters, and an "
    "optimized arm that starts with additional tensors. It now accepts both.",
)


def buggy(seed, optimized):
    return make_step(seed, optimized, mended=False)


def mended(seed, optimized):
    return make_step(seed, optimized, mended=True)


class Offloaded:
    def __init__(self, parameters, mended):
        self.sources, self.mended = list(parameters), mended
        self.copies = [nn.Parameter(each.detach().clone()) for each in self.sources]
        self.inner = torch.optim.SGD(self.copies, lr=1e-3, momentum=0.9)

    def step(self):
        for source, copy in zip(self.sources, self.copies, strict=True):
            if source.grad is not None:
                copy.grad = source.grad.clone()
            elif self.mended:
                copy.grad = None
        self.inner.step()
        with torch.no_grad():
            for source, copy in zip(self.sources, self.copies, strict=True):
                source.copy_(copy)


def make_step(seed, optimized, mended):
    torch.manual_seed(seed)
    trunk, experts, head = nn.Linear(8, 16), [nn.Linear(16, 16), nn.Linear(16, 16)], nn.Linear(16, 1)
    model = nn.ModuleList([trunk, *experts, head])
    parameters = list(model.parameters())
    optimizer = Offloaded(parameters, mended) if optimized else torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)

    def step(batch):
        model.zero_grad()
        hidden = torch.tanh(trunk(batch["x"]))
        chosen = experts[0] if len(batch["x"]) == 16 else experts[1]
        loss = functional.mse_loss(head(hidden + chosen(hidden)), batch["y"])
        loss.backward()
        optimizer.step()
        return loss.detach()

    def batch(index):
        generator = torch.Generator().manual_seed(1000 * seed + index)
        x = torch.randn(16 if index % 8 else 15, 8, generator=generator)
        return {"x": x, "y": x.sum(dim=1, keepdim=True)}

    return StepFunction(step, batch, model)
