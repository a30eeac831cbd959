"""Activation checkpointing draws a new dropout mask when it recomputes the forward pass."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import next_token_loss, token_batches, update_by
from harness.system.step_function import StepFunction

BUG = Bug(
    title="Activation checkpointing recomputes with a different dropout mask",
    thread="allenai/OLMo-core#828",
    users_saw="Without activation checkpointing the loss after 150 steps was 2.19; with it the loss was 2.49.",
    cause="Checkpointing was configured not to preserve the generator's state. This was harmless until a model used "
    "dropout.",
    fix="Checkpointing preserves the generator's state if dropout is active.",
)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return x + self.dropout(self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True)))


class Model(nn.Module):
    def __init__(self, recomputes, preserves):
        super().__init__()
        self.recomputes, self.preserves = recomputes, preserves
        self.tokens, self.head = nn.Embedding(32, 32), nn.Linear(32, 32)
        self.blocks = nn.ModuleList(Block(32) for _ in range(2))

    def forward(self, tokens):
        x = self.tokens(tokens)
        for block in self.blocks:
            if self.recomputes:
                x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=self.preserves)
            else:
                x = block(x)
        return self.head(x)


def buggy(seed, optimized):
    return make_step(seed, optimized, mended=False)


def mended(seed, optimized):
    return make_step(seed, optimized, mended=True)


def make_step(seed, optimized, mended):
    torch.manual_seed(seed)
    model = Model(recomputes=optimized, preserves=mended)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)

    step = update_by(optimizer, lambda batch: next_token_loss(model, batch["tokens"]))

    batch = token_batches(seed, 8, 17, apart=1000)

    return StepFunction(step, batch, model)
