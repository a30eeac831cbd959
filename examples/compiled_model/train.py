"""Train a small gated network, compiled by torch: `python train.py [default | reduce-overhead]`."""

import sys

import torch
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.gate, self.up, self.down = (nn.Linear(width, width, bias=False) for _ in range(3))

    def forward(self, x):
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self, width=128, layers=4):
        super().__init__()
        self.first, self.last = nn.Linear(8, width), nn.Linear(width, 1)
        self.layers = nn.Sequential(*(Layer(width) for _ in range(layers)))

    def forward(self, x):
        return self.last(self.layers(self.first(x)))


def make_training(seed=0, device="cpu", learning_rate=1e-3, mode=None):
    torch.manual_seed(seed)
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    return torch.compile(model, mode=mode) if mode else model, optimizer


def make_batch(index, seed=0, size=64):
    generator = torch.Generator().manual_seed(1_000_003 * seed + index)
    x = torch.randn(size, 8, generator=generator)
    return {"x": x, "y": (x[:, :4] * x[:, 4:]).sum(dim=1, keepdim=True)}


def train_step(model, optimizer, batch):
    loss = F.mse_loss(model(batch["x"]), batch["y"])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, optimizer = make_training(device=device, mode=sys.argv[1] if len(sys.argv) > 1 else None)
    for index in range(200):
        loss = train_step(model, optimizer, {name: tensor.to(device) for name, tensor in make_batch(index).items()})
        if index % 20 == 19:
            print(f"step {index + 1}: loss {loss.item():.4f}")
