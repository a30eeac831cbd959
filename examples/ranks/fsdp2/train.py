"""Train a small transformer, sharded by FSDP2: `python train.py`, or `torchrun --nproc-per-node 2 train.py`.

Shapes: B rows, S tokens, D width, H heads, V words.
"""

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class Shape:
    """Sizes of the model. `tiny` is for a CPU; in `wide` the weights are most of the memory."""

    width: int
    heads: int
    blocks: int
    words: int
    learning_rate: float


SHAPES = {
    "tiny": Shape(32, heads=2, blocks=2, words=32, learning_rate=3e-3),
    "wide": Shape(1024, heads=16, blocks=16, words=64, learning_rate=1e-4),
}
MAX_NORM = 0.5


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a norm: [B, S, D] -> [B, S, D]."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        rows, length, width = x.shape
        split = self.qkv(self.norm(x)).view(rows, length, 3, self.heads, width // self.heads)
        queries, keys, values = split.permute(2, 0, 3, 1, 4)  # each has shape [B, H, S, D / H]
        mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Words [B, S] -> logits [B, S, V]."""

    def __init__(self, shape):
        super().__init__()
        self.embedding = nn.Embedding(shape.words, shape.width)
        self.blocks = nn.ModuleList(Block(shape.width, shape.heads) for _ in range(shape.blocks))
        self.norm, self.head = nn.LayerNorm(shape.width), nn.Linear(shape.width, shape.words, bias=False)

    def forward(self, words):
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def make_model(shape, seed=0, device="cpu"):
    """Return the model, equal in every rank, because a seed determines the weights."""
    torch.manual_seed(seed)
    with torch.device(device):
        return Transformer(shape)


def compiled(model):
    """Each block by `torch.compile`, before it is sharded, so that FSDP's hooks stay outside; a graph break is an
    error. On a CPU without the compiler of C++, which takes longer than the training."""
    backend = "inductor" if next(model.parameters()).is_cuda else "aot_eager"
    for number, block in enumerate(model.blocks):
        model.blocks[number] = torch.compile(block, fullgraph=True, backend=backend)
    return model


def sharded(model):
    """Shard the model by blocks, each gathered when computed; embedding, norm and head are one more group."""
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def replicated(model):
    """Keep the whole model in every rank; gradients are stored only in the buckets that are reduced."""
    device = next(model.parameters()).device
    ids = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)


def make_optimizer(model, learning_rate):
    """Made of the shards, so that its moments are shards, too. By its epsilon a gradient of 1e-6 is next to none: what
    the order of sums leaves of one that is zero moves no parameter."""
    on_cuda = next(model.parameters()).is_cuda
    return torch.optim.AdamW(model.parameters(), lr=learning_rate, eps=1e-3, fused=True, capturable=on_cuda)


def make_batch(index, words, seed=0, rows=16, length=16):
    """Return the whole batch [rows, length]: random words, and for each its image under a fixed permutation."""
    following = torch.randperm(words, generator=torch.Generator().manual_seed(7))
    tokens = torch.randint(words, (rows, length), generator=torch.Generator().manual_seed(1_000_003 * seed + index))
    return {"tokens": tokens, "targets": following[tokens]}


def train_step(model, optimizer, batch, clip=nn.utils.clip_grad_norm_):
    """Train one step. `clip_grad_norm_` takes the norm over all ranks' shards and clips every shard by it."""
    loss = F.cross_entropy(model(batch["tokens"]).flatten(0, 1), batch["targets"].flatten())
    optimizer.zero_grad()
    loss.backward()
    clip(model.parameters(), MAX_NORM)
    optimizer.step()
    return loss.detach()


if __name__ == "__main__":
    ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    shape = SHAPES["tiny"]
    model = make_model(shape)
    if ranks > 1:
        dist.init_process_group("gloo")
        model = sharded(model)
    optimizer = make_optimizer(model, shape.learning_rate)
    losses = []
    for index in range(60):
        rows = slice(rank * 16 // ranks, (rank + 1) * 16 // ranks)
        batch = {name: tensor[rows] for name, tensor in make_batch(index, shape.words).items()}
        losses.append(train_step(model, optimizer, batch).item())
        if rank == 0 and index % 10 == 9:
            print(f"step {index + 1}: loss {sum(losses[-10:]) / 10:.4f}")
    if ranks > 1:
        dist.destroy_process_group()
