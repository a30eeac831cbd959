"""All parameters are parts of one flat parameter, so norms and biases decay with the rest."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import normal_batches
from harness.system.step_function import StepFunction

BUG = Bug(
    title="Weight decay is applied to norms and biases in a flat parameter",
    thread="verl-project/verl#5070",
    users_saw="With sharded training all parameters decay, including those of norms and biases.",
    cause="Sharded training puts all parameters into one flat parameter. The optimizer gets this parameter as a whole, "
    "so it cannot treat norms and biases differently.",
    fix="Parameters with weight decay and parameters without it are kept in separate flat parameters.",
    changed="The judge: if the candidate moves every parameter 600 times as far from the baseline as a rounding at "
    "the start does, this no longer counts as rounding. Before, no such factor was too large.",
)


def buggy(seed, optimized):
    return make_step(seed, optimized, apart=False)


def mended(seed, optimized):
    return make_step(seed, optimized, apart=True)


class Flat:
    """One parameter, of which those given become views; so do their gradients."""

    def __init__(self, parameters):
        self.parameters, self.sizes = parameters, [p.numel() for p in parameters]
        self.whole = nn.Parameter(torch.cat([p.detach().flatten() for p in parameters]))
        for p, piece in zip(parameters, self.whole.detach().split(self.sizes), strict=True):
            p.data = piece.view_as(p)

    def clear(self):
        self.whole.grad = torch.zeros_like(self.whole)
        for p, piece in zip(self.parameters, self.whole.grad.split(self.sizes), strict=True):
            p.grad = piece.view_as(p)


def make_step(seed, optimized, apart):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [(matrices, 0.01), (vectors, 0.0)] if apart or not optimized else [(matrices + vectors, 0.01)]
    flats = [Flat(each) for each, _ in groups] if optimized else []
    given = [[flat.whole] for flat in flats] or [matrices, vectors]
    optimizer = torch.optim.AdamW(
        [{"params": each, "weight_decay": decay} for each, (_, decay) in zip(given, groups, strict=True)], lr=1e-3
    )

    def step(batch):
        optimizer.zero_grad()
        for flat in flats:
            flat.clear()
        loss = functional.cross_entropy(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        return loss.detach()

    batch = normal_batches(seed, (32, 8), lambda x: x[:, :4].argmax(1))

    return StepFunction(step, batch, model)
