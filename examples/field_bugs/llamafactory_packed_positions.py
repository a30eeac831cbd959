"""Documents are packed into one row; attention separates them, but positions count on from one to the next."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A packed document continues the positions of the document before it",
    thread="hiyouga/LlamaFactory#7318",
    users_saw="Training with packed documents differs from training without packing, although no document attends to "
    "another.",
    cause="Positions are counted over the whole packed row.",
    fix="The positions of each document start at 0.",
)


def buggy(seed, optimized):
    return make_step(seed, optimized, restart=False)


def mended(seed, optimized):
    return make_step(seed, optimized, restart=True)


class Reader(nn.Module):
    def __init__(self, tokens=16, width=24):
        super().__init__()
        self.tokens, self.places = nn.Embedding(tokens, width), nn.Embedding(32, width)
        self.inner, self.last = nn.Linear(width, 3 * width), nn.Linear(width, tokens)

    def forward(self, tokens, places, documents):
        x = self.tokens(tokens) + self.places(places)
        query, key, value = self.inner(x).unsqueeze(1).chunk(3, -1)
        order = torch.arange(tokens.shape[1])
        sees = (documents[:, :, None] == documents[:, None]) & (order[:, None] >= order)
        return self.last(x + functional.scaled_dot_product_attention(query, key, value, sees[:, None]).squeeze(1))


def make_step(seed, optimized, restart):
    torch.manual_seed(seed)
    model = Reader()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def step(batch):
        tokens, there = batch["tokens"], batch["there"]
        labels = torch.where(there, tokens, -100).roll(-1, 1).index_fill(1, torch.tensor(7), -100)
        places = torch.arange(8).expand(4, 8)
        documents = torch.arange(4)[:, None].expand(4, 8)
        if optimized:
            tokens, labels, places, documents = (each[there][None] for each in (tokens, labels, places, documents))
            places = places if restart else torch.arange(tokens.shape[1])[None]
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(tokens, places, documents).flatten(0, 1), labels.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    def batch(index):
        generator = torch.Generator().manual_seed(20_000 * seed + index)
        lengths = torch.tensor([8, 6, 4, 2])[torch.randperm(4, generator=generator)]
        start = torch.randint(16, (4, 1), generator=generator)
        places = torch.arange(8)
        return {"tokens": (start + places**2) % 16, "there": places < lengths[:, None]}

    return StepFunction(step, batch, model)
