"""Train a small causal Transformer in a plain loop: `python train.py`."""

import math

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY = 256


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Model(nn.Module):
    def __init__(self, width=64, layers=2, heads=4, length=512):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.places(places))))


def make_training(seed=0, device="cpu", learning_rate=3e-3, steps=300, warmup=10):
    torch.manual_seed(seed)
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, fused=True)
    cosine = lambda step: min((step + 1) / warmup, 0.5 + 0.5 * math.cos(math.pi * min(1, step / steps)))
    return model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, cosine)


def make_batch(index, seed=0, size=8, length=32):
    """Return sequences that count upwards from a random start by a random stride."""
    generator = torch.Generator().manual_seed(1_000_003 * seed + index)
    start, stride = torch.randint(1, VOCABULARY, (2, size, 1), generator=generator)
    return {"tokens": (start + stride % 8 * torch.arange(length + 1)) % VOCABULARY}


def update(model, optimizer, batch):
    tokens = batch["tokens"]
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


def train_step(model, optimizer, scheduler, batch, log):
    loss = update(model, optimizer, batch)
    scheduler.step()
    log.append(loss.item())
    return loss


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, optimizer, scheduler = make_training(device=device)
    log = []
    for index in range(100):
        batch = {name: tensor.to(device) for name, tensor in make_batch(index).items()}
        train_step(model, optimizer, scheduler, batch, log)
        if index % 10 == 9:
            print(f"step {index + 1}: loss {sum(log[-10:]) / 10:.4f}, learning rate {scheduler.get_last_lr()[0]:.2e}")
