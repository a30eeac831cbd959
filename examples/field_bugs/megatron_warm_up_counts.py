"""Experts in a latent space; their router keeps the token counts of the warm-up before a capture.

How the bug arises: before a layer is captured, its forward and backward passes run a few times on zeros. Afterwards the
gradients are restored, but the buffers are not. In one buffer the router counts the tokens of each expert, and these
counts change the bias of its choice after every step.
"""

import torch
from torch import nn

from examples.field_bugs.bug import Bug
from examples.field_bugs.own_capture import OwnCaptures, warm_up
from examples.field_bugs.small_training import DEVICE, token_batches
from harness.system.step_function import StepFunction

BUG = Bug(
    title="The router counts the warm-up before a capture, which changes the experts' bias",
    thread="NVIDIA/Megatron-LM#4433",
    users_saw="For mixtures of experts in a latent space, the loss curves with CUDA graphs differed from those "
    "without.",
    cause="Forward and backward passes run before the capture. Afterwards gradients are restored, but the buffers to "
    "which the router adds are not.",
    fix="These buffers are also saved before the warm-up, and restored after it.",
    changed="The harness: some checks that torch makes only on a CPU, such as the check of the class numbers in "
    "`one_hot`, no longer count as host syncs of the step.",
    trouble="At first the buggy and the fixed form ended with ERROR. On a CPU, but not on a GPU, torch checks the "
    "class numbers given to `one_hot`, and the harness counted this check as a host sync. The harness now ignores the "
    "check.",
)


class LatentExperts(nn.Module):
    def __init__(self, width=16, latent=8, experts=4):
        super().__init__()
        self.score, self.down, self.up = nn.Linear(width, experts), nn.Linear(width, latent), nn.Linear(latent, width)
        self.experts = nn.Parameter(torch.randn(experts, latent, latent) / 2)
        self.register_buffer("bias", torch.zeros(experts))
        self.register_buffer("counts", torch.zeros(experts))

    def forward(self, x):
        scores = self.score(x).sigmoid()
        chosen = nn.functional.one_hot((scores + self.bias).argmax(-1), len(self.bias))
        self.counts += chosen.sum((0, 1))
        each = torch.einsum("bsl,elm->bsem", self.down(x), self.experts).relu()
        return x + self.up((each * (scores * chosen)[..., None]).sum(2))

    @torch.no_grad()
    def move_bias(self):
        self.bias += 0.01 * (self.counts.mean() - self.counts).sign()
        self.counts.zero_()


def make_step(seed, captured, restored):
    torch.manual_seed(seed)
    layer = LatentExperts()
    model = nn.Sequential(nn.Embedding(32, 16), layer, nn.Linear(16, 32))
    model.to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    captures, static = OwnCaptures(captured), {}

    def forward_backward():
        model.zero_grad()
        logits = model(static["tokens"][:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), static["tokens"][:, 1:].flatten())
        loss.backward()
        return loss.detach()

    def capture():
        before = [(tensor, tensor.clone()) for tensor in restored(model)]
        warm_up(forward_backward)
        model.zero_grad()
        for tensor, value in before:
            tensor.copy_(value)
        captures.capture("all", forward_backward, static, model.parameters())

    def step(batch):
        static.setdefault("tokens", torch.zeros_like(batch["tokens"]))
        if captured and not captures.graphs:
            capture()
        static["tokens"].copy_(batch["tokens"])
        captures.replays += captured
        loss = captures.graphs["all"].replay() if captured else forward_backward()
        optimizer.step()
        layer.move_bias()
        return loss

    batch = token_batches(seed, 4, 9)

    return StepFunction(step, batch, model, captured=captures.record)


def buggy(seed, captured):
    return make_step(seed, captured, lambda _: [])


def mended(seed, captured):
    return make_step(seed, captured, lambda model: model.buffers())
