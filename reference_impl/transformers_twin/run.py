"""A run of the transformers twin: transformers' loss and gradients, torch's clip, AdamW and schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR

from harness.system.protocol import OptimizerState, Scalar
from reference_impl.transformers_twin.declared import Declared
from reference_impl.transformers_twin.text import Windows, read_text, tokens_of
from reference_impl.transformers_twin.weights import build, versions

LAST_SHARE = 0.1  # learning rate at the end of the cosine, as a share of the peak learning rate


class TwinRun:
    """A run of the transformers twin, from its own state (`step`) or from another run's (`evaluate`, `update`)."""

    def __init__(self, told: Declared) -> None:
        self._told = told
        self._model, self._trained = build(told, torch.device("cpu"))
        self._tokens = tokens_of(read_text(told.text), told.checkpoint)
        self._windows = Windows(self._tokens, told.batch_size, told.seq_len, told.seed)
        self._batch = torch.zeros(told.batch_size, told.seq_len + 1, dtype=torch.int64)
        self._max_norm = torch.tensor(told.max_norm)
        self._norms = torch.zeros(len(self.gradient_groups()))
        self._rates = _rates(told)
        self._own = _zeros(self._trained)

    def step(self, index: int) -> Tensor:
        """Run one step of the twin's own training, with its own state and gradients. Return the loss (0-d)."""
        loss = self.evaluate(index, self._own.parameters)
        self._own = self.update(index, self._own, self.gradients())
        self._take(self._own.parameters)
        return loss

    def evaluate(self, index: int, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return transformers' mean loss (0-d) over the next tokens of batch `index`, for these parameters.

        Also compute the gradients and clip them.
        """
        self._take(parameters)
        self._batch = self._windows.batch(index)
        self._model.zero_grad(set_to_none=True)
        loss: Tensor = self._model(input_ids=self._batch, labels=self._batch).loss
        torch.autograd.backward(loss)
        norms = [
            torch.nn.utils.clip_grad_norm_([self._trained[name] for name in names], self._told.max_norm)
            for names in self.gradient_groups().values()
        ]
        self._norms = torch.stack(norms)
        return loss.detach()

    def update(self, index: int, before: OptimizerState, gradients: Mapping[str, Tensor]) -> OptimizerState:
        """Return the state after one step of `torch.optim.AdamW` from the state `before`, with the learning rate of
        step `index`.

        The tensors of `before` are not changed.
        """
        told = self._told
        parameters = {name: self._copy(tensor).requires_grad_() for name, tensor in before.parameters.items()}
        optimizer = torch.optim.AdamW(
            parameters.values(),
            lr=self._rates[min(index, len(self._rates) - 1)],
            betas=(told.beta1, told.beta2),
            eps=told.eps,
            weight_decay=told.weight_decay,
            foreach=False,
        )
        for name, parameter in parameters.items():
            parameter.grad = self._copy(gradients[name])
            optimizer.state[parameter] = {
                "step": torch.tensor(float(index)),
                "exp_avg": self._copy(before.exp_avg[name]),
                "exp_avg_sq": self._copy(before.exp_avg_sq[name]),
            }
        optimizer.step()
        moments = {
            key: {name: optimizer.state[parameter][key] for name, parameter in parameters.items()}
            for key in ("exp_avg", "exp_avg_sq")
        }
        return OptimizerState({name: each.detach() for name, each in parameters.items()}, **moments)

    def _copy(self, tensor: Tensor) -> Tensor:
        return tensor.detach().to(getattr(torch, self._told.dtype), copy=True)

    @torch.no_grad()
    def _take(self, parameters: Mapping[str, Tensor]) -> None:
        for name, parameter in self._trained.items():
            parameter.copy_(parameters[name])

    def facts(self) -> Mapping[str, Scalar]:
        return {
            "device": "cpu",
            "dtype": self._told.dtype,
            "layers": int(self._model.config.num_hidden_layers),
            "trainable_parameters": sum(parameter.numel() for parameter in self._trained.values()),
            **versions(self._told),
        }

    def inputs(self) -> Mapping[str, Tensor]:
        return {"tokens": self._batch[:, :-1], "targets": self._batch[:, 1:]}

    def parameters(self) -> Mapping[str, Tensor]:
        return {name: parameter.detach() for name, parameter in self._trained.items()}

    def frozen(self) -> Mapping[str, Tensor]:
        return {name: tensor for name, tensor in self._model.named_parameters() if not tensor.requires_grad}

    def state(self) -> Mapping[str, Mapping[str, Tensor]]:
        moments = {"exp_avg": self._own.exp_avg, "exp_avg_sq": self._own.exp_avg_sq}
        return {"optimizer": {f"{key}.{name}": each for key, all_ in moments.items() for name, each in all_.items()}}

    def gradients(self) -> Mapping[str, Tensor]:
        return {name: parameter.grad for name, parameter in self._trained.items() if parameter.grad is not None}

    def gradient_norms(self) -> Mapping[str, Tensor]:
        return {"before": self._norms, "max_norm": self._max_norm}

    def gradient_groups(self) -> Mapping[str, Sequence[str]]:
        groups: dict[str, list[str]] = {}
        for name in self._trained:
            groups.setdefault(name.rpartition(".")[0], []).append(name)
        return groups

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def _zeros(trained: Mapping[str, Tensor]) -> OptimizerState:
    """Return the initial training state: the parameters' current values, and moments of zero."""
    return OptimizerState(
        {name: each.detach().clone() for name, each in trained.items()},
        {name: torch.zeros_like(each) for name, each in trained.items()},
        {name: torch.zeros_like(each) for name, each in trained.items()},
    )


def _rates(told: Declared) -> list[float]:
    """Return the learning rate of every step, computed with torch's own schedulers."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=told.learning_rate)
    scheduler = schedule(optimizer, told)
    rates = []
    for _ in range(told.steps):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return rates


def schedule(optimizer: Any, told: Declared) -> LRScheduler:
    """Return a scheduler with a linear warm-up to the peak rate, then a cosine to a tenth of the peak."""
    warm_up = told.warmup_steps
    cosine = CosineAnnealingLR(optimizer, max(1, told.steps - warm_up), eta_min=LAST_SHARE * told.learning_rate)
    if warm_up == 0:
        return cosine
    linear = LinearLR(optimizer, start_factor=1 / warm_up, total_iters=max(1, warm_up - 1))
    return SequentialLR(optimizer, [linear, cosine], milestones=[warm_up])
