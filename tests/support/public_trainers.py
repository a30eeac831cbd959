"""Correct training steps in the style of public trainers, each a function as `harness init` accepts it.

If a function takes `optimized`, its two arms are two correct ways to compute the same.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from harness.system.capturable import make_capturable
from harness.system.step_function import StepFunction

Batch = dict[str, Tensor]
CLASSES = 8


def _examples(seed: int, *shape: int) -> Callable[[int], Batch]:
    """Return a function for noise [16, *shape] with the class added to the first elements."""

    def batch(index: int) -> Batch:
        generator = torch.Generator().manual_seed(100_000 * seed + index)
        y = torch.randint(0, CLASSES, (16,), generator=generator)
        x = torch.randn(16, *shape, generator=generator).flatten(1)
        x[:, :CLASSES] += 2 * functional.one_hot(y, CLASSES)
        return {"x": x.view(16, *shape), "y": y}

    return batch


def _multilayer(seed: int, outputs: int = CLASSES) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, outputs))


def _backward(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def gan_with_two_optimizers(seed: int) -> StepFunction:
    generator, critic = _multilayer(seed, 16), _multilayer(seed + 1, 1)
    both = [torch.optim.Adam(each.parameters(), lr=1e-3, fused=True) for each in (generator, critic)]

    def step(batch: Batch) -> Tensor:
        made = generator(torch.randn(16, 16))
        both[1].zero_grad()
        of_critic = functional.softplus(-critic(batch["x"])).mean() + functional.softplus(critic(made.detach())).mean()
        _backward(of_critic)
        both[1].step()
        both[0].zero_grad()
        _backward(functional.softplus(-critic(made)).mean())
        both[0].step()
        return of_critic.detach()

    return StepFunction(step, _examples(seed, 16), nn.ModuleList([generator, critic]))


def averaged_weights(seed: int) -> StepFunction:
    model = _multilayer(seed)
    averages = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(batch: Batch) -> Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(batch["x"]), batch["y"])
        _backward(loss)
        optimizer.step()
        with torch.no_grad():
            for average, parameter in zip(averages, model.parameters(), strict=True):
                average.lerp_(parameter, 0.01)
        return loss.detach()

    def evaluate() -> float:
        with torch.no_grad():
            return float(sum(average.square().sum() for average in averages))

    def save(path: Path) -> None:
        torch.save([model.state_dict(), optimizer.state_dict(), averages], path)

    def load(path: Path) -> None:
        weights, state, kept = torch.load(path)
        model.load_state_dict(weights)
        optimizer.load_state_dict(state)
        for average, value in zip(averages, kept, strict=True):
            average.copy_(value)

    return StepFunction(step, _examples(seed, 16), model, evaluate=evaluate, save=save, load=load)


def warm_up_and_cosine(seed: int) -> StepFunction:
    model = _multilayer(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    parts = [
        torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10),
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100),
    ]
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, parts, [10])
    make_capturable(optimizer)

    def step(batch: Batch) -> Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(batch["x"]), batch["y"], label_smoothing=0.1)
        _backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return StepFunction(step, _examples(seed, 16), model, after=schedule.step)


def accumulated_gradients(seed: int) -> StepFunction:
    model = _multilayer(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)

    def step(batch: Batch) -> Tensor:
        optimizer.zero_grad()
        total = torch.zeros(())
        for x, y in zip(batch["x"].chunk(4), batch["y"].chunk(4), strict=True):
            loss = functional.cross_entropy(model(x), y) / 4
            _backward(loss)
            total += loss.detach()
        optimizer.step()
        return total

    return StepFunction(step, _examples(seed, 16), model)


def dropout_and_batch_norm(seed: int) -> StepFunction:
    torch.manual_seed(seed)
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(64, CLASSES)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)

    def step(batch: Batch) -> Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(batch["x"]), batch["y"])
        _backward(loss)
        optimizer.step()
        return loss.detach()

    def evaluate() -> float:
        model.eval()
        with torch.no_grad():
            found = functional.cross_entropy(
                model(_examples(seed, 1, 6, 6)(10**6)["x"]), _examples(seed, 1, 6, 6)(10**6)["y"]
            )
        model.train()
        return float(found)

    return StepFunction(step, _examples(seed, 1, 6, 6), model, evaluate=evaluate)


def truncated_backpropagation(seed: int) -> StepFunction:
    torch.manual_seed(seed)
    cell, head, hidden = nn.GRUCell(4, 16), nn.Linear(16, CLASSES), torch.zeros(16, 16)
    model = nn.ModuleList([cell, head])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, fused=True)

    def step(batch: Batch) -> Tensor:
        optimizer.zero_grad()
        state = hidden.clone()
        for x in batch["x"].unbind(1):
            state = cell(x, state)
        loss = functional.cross_entropy(head(state), batch["y"])
        _backward(loss)
        optimizer.step()
        hidden.copy_(state.detach())
        return loss.detach()

    return StepFunction(step, _examples(seed, 4, 4), model)


def autocast_and_scaler(seed: int) -> StepFunction:
    model = _multilayer(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    scaler.scale(torch.zeros(()))  # its state comes with the first number that it scales

    def step(batch: Batch) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = functional.cross_entropy(model(batch["x"]), batch["y"])
        _backward(scaler.scale(loss))
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return StepFunction(step, _examples(seed, 16), model)


def contrast_with_a_queue(seed: int) -> StepFunction:
    model = _multilayer(seed, 8)
    queue, place = functional.normalize(torch.randn(64, 8), dim=1), torch.zeros((), dtype=torch.int64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step(batch: Batch) -> Tensor:
        optimizer.zero_grad()
        seen = functional.normalize(model(batch["x"]), dim=1)
        other = functional.normalize(model(batch["x"] + 0.1 * torch.randn(16, 16)), dim=1)
        same = (seen * other).sum(1, keepdim=True)
        scores = torch.cat([same, seen @ queue.T], 1) / 0.2
        loss = functional.cross_entropy(scores, torch.zeros(16, dtype=torch.int64))
        _backward(loss)
        optimizer.step()
        with torch.no_grad():
            queue.index_copy_(0, (place + torch.arange(16)) % 64, other.detach())
            place.add_(16).remainder_(64)
        return loss.detach()

    return StepFunction(step, _examples(seed, 16), model)


def actor_and_critic(seed: int) -> StepFunction:
    actor, critic = _multilayer(seed), _multilayer(seed + 1, 1)
    model = nn.ModuleList([actor, critic])
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, capturable=False, foreach=True)

    def step(batch: Batch) -> Tensor:
        optimizer.zero_grad()
        chances = actor(batch["x"]).log_softmax(1)
        noise = -torch.empty_like(chances).exponential_().log()  # `multinomial` waits for the device
        chosen = (chances + noise).argmax(1, keepdim=True)
        reward = (chosen[:, 0] == batch["y"]).float()
        advantage = reward - critic(batch["x"])[:, 0]
        policy = -(chances.gather(1, chosen)[:, 0] * advantage.detach()).mean()
        entropy = -(chances.exp() * chances).sum(1).mean()
        loss: Tensor = policy + 0.5 * advantage.square().mean() - 0.01 * entropy
        _backward(loss)
        optimizer.step()
        return loss.detach()

    return StepFunction(step, _examples(seed, 16), model)


def variational_autoencoder(seed: int) -> StepFunction:
    encoder, decoder = _multilayer(seed, 8), nn.Linear(4, 16)
    model = nn.ModuleList([encoder, decoder])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, fused=True)

    def step(batch: Batch) -> Tensor:
        optimizer.zero_grad()
        mean, spread = encoder(batch["x"]).chunk(2, 1)
        drawn = mean + torch.randn_like(mean) * (spread / 2).exp()
        divergence = 0.5 * (mean.square() + spread.exp() - spread - 1).sum(1).mean()
        loss: Tensor = functional.mse_loss(decoder(drawn), batch["x"]) + 0.01 * divergence
        _backward(loss)
        optimizer.step()
        return loss.detach()

    return StepFunction(step, _examples(seed, 16), model)


def distilled_from_a_frozen_teacher(seed: int) -> StepFunction:
    model, teacher = _multilayer(seed), _multilayer(seed + 7).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)

    def step(batch: Batch) -> Tensor:
        optimizer.zero_grad()
        wanted = (teacher(batch["x"]) / 2).softmax(1)
        loss = functional.kl_div((model(batch["x"]) / 2).log_softmax(1), wanted, reduction="batchmean")
        _backward(loss)
        optimizer.step()
        return loss.detach()

    return StepFunction(step, _examples(seed, 16), model)


def recomputed_activations(seed: int, optimized: bool) -> StepFunction:
    model = _multilayer(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=optimized)

    def step(batch: Batch) -> Tensor:
        optimizer.zero_grad()
        x = batch["x"]
        scores = checkpoint(model, x, use_reentrant=False) if optimized else model(x)
        loss = functional.cross_entropy(scores, batch["y"])
        _backward(loss)
        optimizer.step()
        return loss.detach()

    return StepFunction(step, _examples(seed, 16), model)


def micro_batches_for_one(seed: int, optimized: bool) -> StepFunction:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.SiLU(), nn.Linear(32, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    parts = 4 if optimized else 1

    def step(batch: Batch) -> Tensor:
        optimizer.zero_grad()
        total = torch.zeros(())
        for x, y in zip(batch["x"].chunk(parts), batch["y"].chunk(parts), strict=True):
            loss = functional.cross_entropy(model(x), y, reduction="sum") / 16
            _backward(loss)
            total += loss.detach()
        optimizer.step()
        return total

    return StepFunction(step, _examples(seed, 16), model)


def bias_before_a_norm(seed: int, optimized: bool) -> StepFunction:
    """Train a bias whose gradient is only rounding, so that another order of sums changes it completely."""
    torch.manual_seed(seed)
    first, norm, last = nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Linear(32, CLASSES)
    model = nn.ModuleList([first, norm, last])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(batch: Batch) -> Tensor:
        optimizer.zero_grad()
        x = batch["x"]
        hidden = first(x)
        if optimized:
            hidden = (x[:, :8] @ first.weight[:, :8].T + first.bias) + x[:, 8:] @ first.weight[:, 8:].T
        loss = functional.cross_entropy(last(norm(hidden).relu()), batch["y"])
        _backward(loss)
        optimizer.step()
        return loss.detach()

    return StepFunction(step, _examples(seed, 16), model)


TRAINERS = [
    name
    for name, each in list(globals().items())
    if callable(each) and getattr(each, "__module__", "") == __name__ and not name.startswith("_")
]
