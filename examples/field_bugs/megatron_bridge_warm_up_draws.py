"""After a resume the random generators are restored, and then a warm-up draws from them."""

from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import normal_batches, update_by
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A warm-up after a resume draws from the restored generators",
    thread="NVIDIA-NeMo/Megatron-Bridge#5255",
    users_saw="After a resume the dropout masks, and therefore all updates, differ from those of the uninterrupted "
    "run.",
    cause="The checkpoint is loaded first, including the states of the random generators. Then a callback warms up "
    "compiled code on mock data, which draws from these generators.",
    fix="The states of the generators are saved before the callback and restored after it.",
)


def buggy(seed, optimized):
    return make_step(seed, optimized, guard=nullcontext)


def mended(seed, optimized):
    return make_step(seed, optimized, guard=torch.random.fork_rng)


def make_step(seed, optimized, guard):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def warm_up():
        """Compiles what is compiled at first use, on data that is none."""
        if optimized:
            model(torch.zeros(32, 8)).sum().backward()
            optimizer.zero_grad()

    with torch.random.fork_rng():  # the warm-up of a new run
        warm_up()

    step = update_by(optimizer, lambda batch: functional.cross_entropy(model(batch["x"]), batch["y"]))

    batch = normal_batches(seed, (32, 8), lambda x: x[:, :4].argmax(1))

    def save(path):
        generator = torch.get_rng_state()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "generator": generator}, path)

    def load(path):
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["generator"])
        with guard():  # the warm-up of a resumed run
            warm_up()

    return StepFunction(step, batch, model, save=save, load=load)
