"""Train on several ranks in four ways: `torchrun --nproc-per-node 2 train.py WAY`, or alone: `python train.py WAY`.

`accumulate`: DistributedDataParallel, gradients added up under `no_sync`. `zero1`: each rank keeps the optimizer's
state of some parameters (ZeroRedundancyOptimizer). `tensor`: each rank holds columns and rows of the weights
(`parallelize_module`). `experts`: each rank holds some experts, and rows travel to them by an all-to-all.

The environment variable `RANKS_BUG` plants one bug: `divided_late`, `own_order`, `own_norm`, `first_rank_only`,
`logged_outside`.

Shapes: T rows of this rank, D width, H hidden width, E experts, R ranks.
"""

import os
import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_reduce, all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

WIDTH, HIDDEN, CLASSES, EXPERTS, MAX_NORM = 32, 64, 8, 4, 0.5
BUG = os.environ.get("RANKS_BUG", "")


def ranks():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


class Block(nn.Module):
    """[T, D] -> [T, D]."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Experts(nn.Module):
    """Send each row to the expert that the router likes best; the rank that holds the expert computes it.

    `load` follows how many rows each expert gets on all ranks, and keeps the router from liking one too much.
    """

    def __init__(self):
        super().__init__()
        self.norm, self.router = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN) / WIDTH**0.5)
        self.down = nn.Parameter(torch.randn(EXPERTS, HIDDEN, WIDTH) / HIDDEN**0.5)
        self.register_buffer("load", torch.full((EXPERTS,), 1 / EXPERTS))

    def forward(self, x):
        scores = self.router(self.norm(x)).softmax(dim=-1)  # shape [T, E]
        best = (scores - self.load).argmax(dim=-1, keepdim=True)
        chosen = torch.zeros_like(scores).scatter(-1, best, 1.0)  # shape [T, E]
        self.update_load(chosen.mean(dim=0))
        sent = torch.einsum("te,td->etd", chosen, self.norm(x))  # rows for another expert are zeros
        up, down = held(self.up), held(self.down)
        computed = exchanged(F.gelu(exchanged(sent, out=True) @ up) @ down, out=False)
        return x + torch.einsum("te,etd->td", chosen * scores, computed)

    def update_load(self, chosen):
        mean = all_reduce(chosen, "sum", dist.group.WORLD) / ranks() if ranks() > 1 else chosen
        if BUG != "first_rank_only" or rank() == 0:
            self.load.lerp_(mean, 0.1)


def exchanged(rows, *, out):
    """Send each rank the rows of its experts, [E, T, D] -> [E / R, R T, D], or send them back."""
    if ranks() == 1:
        return rows
    first = rows if out else rows.unflatten(1, (ranks(), -1)).transpose(0, 1).contiguous()
    came = all_to_all_single_autograd(first.contiguous(), None, None, dist.group.WORLD)
    if not out:
        return came.flatten(0, 1)
    return came.unflatten(0, (ranks(), -1)).transpose(0, 1).flatten(1, 2)


def make_model(way, seed, device):
    """Return the model, equal in every rank before it is divided, because a seed determines the weights."""
    torch.manual_seed(seed)
    middle = Experts() if way == "experts" else Block()
    return nn.Sequential(Block(), middle, nn.Linear(WIDTH, CLASSES)).to(device)


def make_training(way, seed=0, device="cpu", learning_rate=1e-2, parts=1):
    """Return the step of one of the four ways, and the model. parts: micro-batches of `accumulate`."""
    model = make_model(way, seed, device)
    return {"accumulate": accumulate, "zero1": zero1, "tensor": tensor, "experts": experts}[way](
        model, learning_rate, parts
    ), model


def make_batch(index, seed=0, size=16):
    """Return the whole batch: points [size, D], and for each the index of the nearest of some fixed directions."""
    if BUG == "own_order":
        index += rank()
    directions = torch.randn(WIDTH, CLASSES, generator=torch.Generator().manual_seed(7))
    points = torch.randn(size, WIDTH, generator=torch.Generator().manual_seed(1_000_003 * seed + index))
    return {"points": points, "labels": (points @ directions).argmax(dim=1)}


def loss_of(model, batch):
    return F.cross_entropy(model(batch["points"]), batch["labels"])


def replicated(model):
    device = next(model.parameters()).device
    return DistributedDataParallel(model, [device.index] if device.type == "cuda" else None) if ranks() > 1 else model


def log(model):
    """Sum a norm over ranks for a log, after the step and so outside of its capture."""
    if BUG == "logged_outside" and ranks() > 1:
        dist.all_reduce(model[2].bias.detach().norm())


def accumulate(model, learning_rate, parts):
    trained = replicated(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)

    def step(batch):
        optimizer.zero_grad()
        losses = []
        micro_batches = zip(*(batch[name].chunk(parts) for name in ("points", "labels")), strict=True)
        for number, (points, labels) in enumerate(micro_batches):
            last = number == parts - 1 or ranks() == 1
            with nullcontext() if last else trained.no_sync():
                losses.append(loss_of(trained, {"points": points, "labels": labels}))
                (losses[-1] / (1 if BUG == "divided_late" else parts)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        if BUG == "divided_late":
            for each in model.parameters():
                each.grad.div_(parts)
        optimizer.step()
        return torch.stack(losses).detach().mean()

    return step


def zero1(model, learning_rate, _parts):
    trained = replicated(model)
    made = {"lr": learning_rate, "fused": True}
    if ranks() > 1:
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, **made)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), **made)

    def step(batch):
        optimizer.zero_grad()
        loss = loss_of(trained, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        return loss.detach()

    return step


def held(each):
    return each.to_local() if isinstance(each, DTensor) else each


def is_part(each):
    """Return True if other ranks hold the rest; a bias behind a sum over ranks is a DTensor, and whole."""
    return isinstance(each, DTensor) and any(place.is_shard() for place in each.placements)


def clip(parameters):
    """Clip by the norm of the whole model: squares of parts are summed over ranks, those of copies are not.

    `clip_grad_norm_` refuses DTensors and plain tensors together.
    """
    gradients = [each.grad for each in parameters]
    parts = [held(each) for each in gradients if is_part(each)]
    copies = [held(each) for each in gradients if not is_part(each)]
    squares = sum(each.square().sum() for each in parts) if parts else torch.zeros((), device=copies[0].device)
    if parts and BUG != "own_norm":
        squares = all_reduce(squares, "sum", dist.group.WORLD)
    norm = (squares + sum(each.square().sum() for each in copies)).sqrt()
    factor = (MAX_NORM / (norm + 1e-6)).clamp(max=1.0)
    for each in [*parts, *copies]:
        each.mul_(factor)


def adamw(model, learning_rate):
    """The fused kernel refuses DTensors and plain tensors together, so each kind is a group."""
    on_cuda, kinds = next(model.parameters()).is_cuda, {}
    for each in model.parameters():
        kinds.setdefault(isinstance(each, DTensor), []).append(each)
    groups = [{"params": each} for each in kinds.values()]
    return torch.optim.AdamW(groups, lr=learning_rate, fused=True, capturable=on_cuda)


def tensor(model, learning_rate, _parts):
    if ranks() > 1:
        mesh = init_device_mesh(next(model.parameters()).device.type, (ranks(),))
        plan = {f"{block}.up": ColwiseParallel() for block in (0, 1)}
        plan |= {f"{block}.down": RowwiseParallel() for block in (0, 1)}
        parallelize_module(model, mesh, plan)
    optimizer = adamw(model, learning_rate)

    def step(batch):
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        clip(model.parameters())
        optimizer.step()
        return loss.detach()

    return step


def experts(model, learning_rate, _parts):
    layer = model[1]
    if ranks() > 1:
        mesh = init_device_mesh(next(model.parameters()).device.type, (ranks(),))
        for name in ("up", "down"):
            setattr(layer, name, nn.Parameter(distribute_tensor(getattr(layer, name).data, mesh, [Shard(0)])))
    optimizer = adamw(model, learning_rate)

    def step(batch):
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        if ranks() > 1:
            average(model.parameters())
        clip(model.parameters())
        optimizer.step()
        return loss.detach()

    return step


def average(parameters):
    """Leave gradients of the mean of all ranks' losses: an expert has those of all rows already, and their sum."""
    for each in parameters:
        if isinstance(each.grad, DTensor):
            each.grad.to_local().div_(ranks())
        else:
            each.grad.copy_(all_reduce(each.grad, "sum", dist.group.WORLD) / ranks())


if __name__ == "__main__":
    way = sys.argv[1]
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    step, _ = make_training(way, parts=2)
    for index in range(40):
        batch = make_batch(index)
        if way != "tensor":  # in mode `tensor`, every rank reads all rows
            batch = {name: each.chunk(ranks())[rank()] for name, each in batch.items()}
        loss = step(batch)
        if index % 10 == 9 and rank() == 0:
            print(f"step {index + 1}: loss {loss.item():.4f}")
    if dist.is_initialized():
        dist.destroy_process_group()
