"""A fused loss scales the gradient of every token by the weight of the first token."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A fused loss uses one number instead of a vector of gradients",
    thread="linkedin/Liger-Kernel#1298",
    users_saw="If each token has its own weight, the fused loss has the right value, but the gradients are wrong "
    "without an error. LigerFusedLinearCrossEntropyLoss gave no gradients at all (#968).",
    cause="The forward pass already sums the gradient of the linear layer's weight over all tokens. The backward pass "
    "can only multiply this sum by one number, and uses the weight of the first token.",
    fix="The backward pass multiplies each token's gradient by its weight before it sums.",
)


class FusedCrossEntropy(torch.autograd.Function):
    """Loss per token, [tokens]; the head's product is taken in chunks, and no logits are kept for the backward pass."""

    @staticmethod
    def forward(ctx, hidden, weight, labels, weighs_tokens):
        losses, hidden_gradient, weight_gradient = [], [], torch.zeros_like(weight)
        for part, wanted in zip(hidden.chunk(4), labels.chunk(4), strict=True):
            probabilities = (part @ weight.t()).softmax(-1)
            losses.append(-probabilities.gather(1, wanted[:, None])[:, 0].log())
            logits_gradient = probabilities - functional.one_hot(wanted, weight.shape[0])
            hidden_gradient.append(logits_gradient @ weight)
            weight_gradient += logits_gradient.t() @ part
        ctx.weighs_tokens = weighs_tokens
        ctx.save_for_backward(hidden, weight, labels, torch.cat(hidden_gradient), weight_gradient)
        return torch.cat(losses)

    @staticmethod
    def backward(ctx, gradient):
        hidden, weight, labels, hidden_gradient, weight_gradient = ctx.saved_tensors
        if not ctx.weighs_tokens:
            return hidden_gradient * gradient[0], weight_gradient * gradient[0], None, None
        logits_gradient = (hidden @ weight.t()).softmax(-1) - functional.one_hot(labels, weight.shape[0])
        logits_gradient = logits_gradient * gradient[:, None]
        return logits_gradient @ weight, logits_gradient.t() @ hidden, None, None


def buggy(seed, optimized):
    return make_step(seed, optimized, mended=False)


def mended(seed, optimized):
    return make_step(seed, optimized, mended=True)


def make_step(seed, optimized, mended):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Embedding(32, 32), nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 32, bias=False))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)

    def step(batch):
        tokens = batch["tokens"]
        optimizer.zero_grad()
        hidden, labels = model[:-1](tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
        if optimized:
            losses = FusedCrossEntropy.apply(hidden, model[-1].weight, labels, mended)
        else:
            losses = functional.cross_entropy(model[-1](hidden), labels, reduction="none")
        loss = (losses * batch["weights"].flatten()).sum() / batch["weights"].sum()
        loss.backward()
        optimizer.step()
        return loss

    def batch(index):
        generator = torch.Generator().manual_seed(1000 * seed + index)
        start = torch.randint(0, 32, (8, 1), generator=generator)
        weights = torch.rand(8, 16, generator=generator)
        return {"tokens": (start + 3 * torch.arange(17)) % 32, "weights": weights}

    return StepFunction(step, batch, model)
