"""A fused optimizer keeps the gradient buffers it was configured with; a captured backward pass writes to others."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.own_capture import OwnCaptures
from examples.field_bugs.small_training import DEVICE
from harness.system.step_function import StepFunction

BUG = Bug(
    title="The optimizer reads zero gradients while a captured step trains",
    thread="ooples/AiDotNet.Tensors#705",
    users_saw="When the whole step was captured, the loss stayed at the logarithm of the vocabulary size, which is the "
    "loss of random guessing. Eager training learned.",
    cause="The optimizer was given the gradient buffers once, before the capture. The capture then gave every "
    "parameter a different gradient buffer.",
    fix="The optimizer reads the gradient of each parameter in each step.",
    changed="The entry: the fixed form no longer keeps the old gradients, whose values at the end differed between "
    "the two arms.",
    trouble="At first the fixed form failed too (`end_differs`), because it still held the old gradients. This was a "
    "mistake in our re-enactment, not in the harness.",
)

WORDS = 32


def buggy(seed, captured):
    return make_step(seed, captured, BoundAdam)


def mended(seed, captured):
    return make_step(seed, captured, Adam)


class Adam:
    def __init__(self, parameters):
        self.parameters = list(parameters)
        self.moments = [[torch.zeros_like(each) for each in self.parameters] for _ in range(2)]
        self.counts = [torch.zeros((), device=each.device) for each in self.parameters]

    def gradients(self):
        return [each.grad for each in self.parameters]

    @torch.no_grad()
    def step(self):
        torch._foreach_add_(self.counts, 1)
        tensors = (self.parameters, self.gradients(), *self.moments, [], self.counts)
        settings = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0, "eps": 1e-8}
        torch._fused_adam_(*tensors, **settings, amsgrad=False, maximize=False)


class BoundAdam(Adam):
    def __init__(self, parameters):
        super().__init__(parameters)
        self.bound = [each.grad for each in self.parameters]

    def gradients(self):
        return self.bound


def allocate_gradients(model):
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)


def make_step(seed, captured, optimizer_class):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Embedding(WORDS, 16), nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, WORDS))
    model.to(DEVICE)
    allocate_gradients(model)
    optimizer = optimizer_class(model.parameters())
    captures, static = OwnCaptures(captured), {}

    def passes():
        torch._foreach_zero_([each.grad for each in model.parameters()])
        logits = model(static["tokens"][:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), static["tokens"][:, 1:].flatten())
        loss.backward()
        return loss.detach()

    def step(batch):
        static.setdefault("tokens", batch["tokens"].clone()).copy_(batch["tokens"])
        if captured and not captures.graphs:
            allocate_gradients(model)  # replays write to these gradients
            captures.capture("step", passes, static, model.parameters())
        captures.replays += captured
        loss = captures.graphs["step"].replay() if captured else passes()
        optimizer.step()
        return loss.clone()

    def batch(index):
        """Words that follow each other by a rule; a tenth of them are others."""
        generator = torch.Generator().manual_seed(100_000 * seed + index)
        words = (torch.randint(WORDS, (8, 1), generator=generator) + 5 * torch.arange(9)) % WORDS
        others = torch.randint(WORDS, words.shape, generator=generator)
        return {"tokens": torch.where(torch.rand(words.shape, generator=generator) < 0.1, others, words)}

    return StepFunction(step=step, batch=batch, parameters=model, captured=captures.record)
