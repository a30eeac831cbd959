"""torch's `load_state_dict` casts bfloat16 moments to the data type of their parameters, float32."""

import torch
from torch import nn

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import checkpoints, next_token_loss, token_batches
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A resume turns bfloat16 moments into float32",
    thread="pytorch/torchtitan#4615",
    users_saw="After a resume Adam's moments take twice as much memory, and updates are no longer rounded as before "
    "the resume.",
    cause="torch's `load_state_dict` casts each state to the data type of its parameter, float32.",
    fix="A hook casts the moments back to bfloat16 after the load.",
)


class SmallAdam(torch.optim.Optimizer):
    """Adam whose moments lie in bfloat16, which halves what it keeps."""

    def __init__(self, parameters, rate):
        super().__init__(parameters, {"lr": rate})
        for parameter in self.param_groups[0]["params"]:
            moments = {name: torch.zeros_like(parameter, dtype=torch.bfloat16) for name in ("exp_avg", "exp_avg_sq")}
            self.state[parameter] = {"step": torch.zeros(()), **moments}

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            state, gradient = self.state[parameter], parameter.grad
            state["step"] += 1
            first = state["exp_avg"].float().lerp(gradient, 0.1)
            second = state["exp_avg_sq"].float().lerp(gradient.square(), 0.05)
            unbiased = (second / (1 - 0.95 ** state["step"])).sqrt() + 1e-8
            parameter.sub_(self.param_groups[0]["lr"] * first / (1 - 0.9 ** state["step"]) / unbiased)
            state["exp_avg"].copy_(first)
            state["exp_avg_sq"].copy_(second)


def to_bfloat16(optimizer):
    for state in optimizer.state.values():
        state.update({name: state[name].bfloat16() for name in ("exp_avg", "exp_avg_sq")})


def buggy(seed, optimized):
    return make_step(seed, optimized, mended=False)


def mended(seed, optimized):
    return make_step(seed, optimized, mended=True)


def make_step(seed, optimized, mended):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Embedding(32, 32), nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 32))
    optimizer = SmallAdam(model.parameters(), 5e-3)
    if mended:
        optimizer.register_load_state_dict_post_hook(to_bfloat16)

    def loss_of(tokens):
        return next_token_loss(model, tokens)

    def step(batch):
        optimizer.zero_grad(set_to_none=optimized)
        loss = loss_of(batch["tokens"])
        loss.backward()
        optimizer.step()
        return loss

    batch = token_batches(seed, 8, 17, apart=1000)

    @torch.no_grad()
    def evaluate():
        return loss_of(batch(10_000)["tokens"])

    save, load = checkpoints(model=model, optimizer=optimizer)

    return StepFunction(step, batch, model, evaluate=evaluate, save=save, load=load)
