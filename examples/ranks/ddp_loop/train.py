"""Train a classifier with DistributedDataParallel: `python train.py`, or `torchrun --nproc-per-node 2 train.py`."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

WIDTH, CLASSES = 32, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


def make_training(seed=0, device="cpu", learning_rate=1e-2):
    """Return model and optimizer, equal in every rank, because a seed determines the weights."""
    torch.manual_seed(seed)
    model = nn.Sequential(Block(), Block(), nn.Linear(WIDTH, CLASSES)).to(device)
    return model, torch.optim.AdamW(model.parameters(), lr=learning_rate, fused=True)


def make_batch(index, seed=0, size=16):
    """Return the whole batch: points, and for each the index of the nearest of some fixed directions."""
    directions = torch.randn(WIDTH, CLASSES, generator=torch.Generator().manual_seed(7))
    points = torch.randn(size, WIDTH, generator=torch.Generator().manual_seed(1_000_003 * seed + index))
    return {"points": points, "labels": (points @ directions).argmax(dim=1)}


def train_step(model, optimizer, batch):
    """Train one step. Under DistributedDataParallel `backward` averages all ranks' gradients; the clip comes after."""
    loss = F.cross_entropy(model(batch["points"]), batch["labels"])
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


if __name__ == "__main__":
    ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    model, optimizer = make_training()
    if ranks > 1:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
    losses = []
    for index in range(60):
        rows = slice(rank * 16 // ranks, (rank + 1) * 16 // ranks)
        batch = {name: tensor[rows] for name, tensor in make_batch(index).items()}
        losses.append(train_step(model, optimizer, batch).item())
        if rank == 0 and index % 10 == 9:
            print(f"step {index + 1}: loss {sum(losses[-10:]) / 10:.4f}")
    if ranks > 1:
        dist.destroy_process_group()
