"""Fused attention sets its own dropout probability to zero in an evaluation and never restores it."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import checkpoints, next_token_loss, token_batches, update_by
from harness.system.step_function import StepFunction

BUG = Bug(
    title="Attention loses its dropout in an evaluation",
    thread="NVIDIA/Megatron-LM#411",
    users_saw="After the first evaluation the dropout of the fused attention is zero for the rest of the training.",
    cause="When the module is not in training mode, it sets its own dropout probability to zero, and never restores "
    "it.",
    fix="The probability is set to zero only in a local variable.",
)


class Attention(nn.Module):
    def __init__(self, width, fused, mended):
        super().__init__()
        self.qkv, self.out, self.dropout = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Dropout(0.2)
        self.fused, self.dropout_p, self.mended = fused, 0.2, mended

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        if not self.fused:
            later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            scores = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).masked_fill(later, -torch.inf)
            return self.out(self.dropout(scores.softmax(-1)) @ v)
        dropout_p = self.dropout_p if self.training else 0.0
        if not self.mended:
            self.dropout_p = dropout_p
        return self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout_p))


class Model(nn.Module):
    def __init__(self, fused, mended):
        super().__init__()
        self.tokens, self.attention, self.head = nn.Embedding(32, 32), Attention(32, fused, mended), nn.Linear(32, 32)

    def forward(self, tokens):
        x = self.tokens(tokens)
        return self.head(x + self.attention(x))


def buggy(seed, optimized):
    return make_step(seed, optimized, mended=False)


def mended(seed, optimized):
    return make_step(seed, optimized, mended=True)


def make_step(seed, optimized, mended):
    torch.manual_seed(seed)
    model = Model(optimized, mended)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)

    def loss_of(tokens):
        return next_token_loss(model, tokens)

    step = update_by(optimizer, lambda batch: loss_of(batch["tokens"]))

    batch = token_batches(seed, 8, 17, apart=1000)

    @torch.no_grad()
    def evaluate():
        model.eval()
        loss = loss_of(batch(10_000)["tokens"])
        model.train()
        return loss

    save, load = checkpoints(model=model, optimizer=optimizer, generator=True)

    return StepFunction(step, batch, model, evaluate=evaluate, save=save, load=load)
