"""Comparisons of one AdamW update of a flat buffer, at several steps of a run.

The claim's `magnitude` is the size of the gradient's largest elements. The smallest elements are 10^6 times smaller, so
that Adam's epsilon, 1e-8, determines the size of their updates. One element in seven is exactly zero. The reference is
torch.optim.AdamW in fp64, without `fused` and `foreach`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from harness.system.protocol import KernelComparison
from reference_impl.config import TrainConfig
from reference_impl.lora import layer_shapes
from reference_impl.step_cases.inputs import Inputs, Setting

_DECADES = 6.0
_MOMENTS = ("parameters", "exp_avg", "exp_avg_sq")
_SKIPPED_BEFORE = 3.0
# torch's fused kernel for CUDA rounds beta (AdamW's decay of a moment) to fp32, and computes 1 - beta from the rounded
# beta. This amplifies the rounding error of beta by beta / (1 - beta). The error bounds allow about a hundred roundings
# for each term. Beta is rounded only once, so its term in the error bound is multiplied by this factor, 1/64.
_ROUNDED_ONCE = 1 / 64


@dataclass(frozen=True)
class _Shape:
    """The sizes of one case. `steps`: number of updates before the compared one. `norm`: the norm of a gradient group.

    If `norm` is not finite, the compared update must change nothing.
    """

    count: int
    steps: int
    weight_decay: float = 0.0
    learning_rate: float = 2e-4
    norm: float = 1.0

    @property
    def name(self) -> str:
        decay = " decay" * bool(self.weight_decay)
        return f"n{self.count} step{self.steps}{decay}" + f" norm {self.norm}" * self.skipped

    @property
    def skipped(self) -> bool:
        return not math.isfinite(self.norm)


RAGGED = (
    _Shape(1, steps=0, learning_rate=1e-2),
    _Shape(1000, steps=0, weight_decay=0.1),
    _Shape(1025, steps=1, learning_rate=1e-2),
    _Shape(333, steps=9, weight_decay=0.01),
    _Shape(1025, steps=999, weight_decay=0.1, learning_rate=1e-2),
    _Shape(77, steps=9, weight_decay=0.1, norm=math.nan),
    _Shape(78, steps=9, norm=math.inf),
)


def update(setting: Setting) -> Iterator[KernelComparison]:
    layer = sum(math.prod(shape) for shape in layer_shapes(setting.model, setting.config.rank).values())
    for shape in (_Shape(layer * setting.model.num_layers, steps=1), *RAGGED):
        inputs = setting.inputs("adamw.update", shape.name)
        config = replace(setting.config, weight_decay=shape.weight_decay)
        yield _Update(setting, shape, config, *_drawn(inputs, shape, setting.magnitude)).comparison()


def _drawn(inputs: Inputs, shape: _Shape, magnitude: float) -> tuple[Tensor, dict[str, Tensor]]:
    """Return a random gradient, and the state before the update, by name. Adam's moments have the size that they would
    have after earlier gradients of the same size."""
    sizes = magnitude * 10 ** -inputs.uniform(shape.count, below=_DECADES)
    sizes[3::7] = 0.0
    gradient = inputs.between_nans(inputs.normal(shape.count) * sizes)
    parameters = inputs.normal(shape.count)
    if shape.steps == 0:
        mean, square = torch.zeros_like(parameters), torch.zeros_like(parameters)
    else:
        mean = inputs.normal(shape.count) * sizes / 2
        square = (inputs.normal(shape.count) * sizes).square() * (1 - 0.999**shape.steps)
    return gradient, dict(zip(_MOMENTS, (parameters, mean, square), strict=True))


@dataclass(frozen=True)
class _Update:
    setting: Setting
    shape: _Shape
    config: TrainConfig
    gradient: Tensor
    state: dict[str, Tensor]

    def comparison(self) -> KernelComparison:
        device = self.gradient.device
        counters = {"step_count": float(self.shape.steps), "skipped": _SKIPPED_BEFORE}
        start = {name: torch.tensor(value, device=device) for name, value in counters.items()}
        return KernelComparison(
            operation="adamw.update",
            dtype=self.setting.dtype_name,
            shape=self.shape.name,
            magnitude=self.setting.magnitude,
            written={},
            updated={**self.state, **start},
            kernel=self._kernel,
            naive=lambda outputs: self._write(outputs, self._by_torch(torch.float32)),
            reference=lambda: {**self._by_torch(torch.float64), **self._counters()},
            terms=lambda: {**self._terms(), **self._counters()},
            peer=("torch AdamW(fused=True)", lambda: self._by_torch(torch.float32, fused=True)),
        )

    def _kernel(self, outputs: Mapping[str, Tensor]) -> None:
        optimizer = self.setting.table.adamw(outputs["parameters"], self.config)
        optimizer.exp_avg, optimizer.exp_avg_sq = outputs["exp_avg"], outputs["exp_avg_sq"]
        optimizer.step_count, optimizer.skipped = outputs["step_count"], outputs["skipped"]
        optimizer.learning_rate.fill_(self.shape.learning_rate)
        norms = torch.tensor([1.0, self.shape.norm, 2.0], device=self.gradient.device)
        optimizer.update_(outputs["parameters"], self.gradient.clone(), norms)

    def _write(self, outputs: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
        for name, value in {**found, **self._counters()}.items():
            outputs[name].copy_(value)

    def _counters(self) -> dict[str, Tensor]:
        taken = 0 if self.shape.skipped else 1
        values = {"step_count": self.shape.steps + taken, "skipped": _SKIPPED_BEFORE + 1 - taken}
        return {
            name: torch.tensor(value, dtype=torch.float64, device=self.gradient.device)
            for name, value in values.items()
        }

    @property
    def _learning_rate(self) -> float:
        """Return the learning rate rounded to fp32, because the trainer keeps it in an fp32 tensor."""
        return float(torch.tensor(self.shape.learning_rate))

    def _by_torch(self, dtype: torch.dtype, *, fused: bool = False) -> dict[str, Tensor]:
        """Return the state after a step of torch.optim.AdamW, by name. For a skipped step, return the old state."""
        state = {name: value.to(dtype, copy=True) for name, value in self.state.items()}
        if self.shape.skipped:
            return state
        parameter = state["parameters"].requires_grad_()
        parameter.grad = self.gradient.to(dtype)
        config = self.config
        optimizer = torch.optim.AdamW(
            [parameter],
            lr=self._learning_rate,
            betas=(config.beta1, config.beta2),
            eps=config.eps,
            weight_decay=config.weight_decay,
            foreach=False,
            fused=fused,
        )
        step = torch.tensor(float(self.shape.steps), device=parameter.device if fused else "cpu")
        moments = {name: state[name] for name in _MOMENTS[1:]}
        optimizer.state[parameter] = {"step": step, **moments}
        optimizer.step()
        return {"parameters": parameter.detach(), **moments}

    def _terms(self) -> dict[str, Tensor]:
        value, mean, square = (self.state[name].double() for name in _MOMENTS)
        if self.shape.skipped:
            return {name: each.abs() for name, each in zip(_MOMENTS, (value, mean, square), strict=True)}
        config, steps, gradient = self.config, self.shape.steps + 1, self.gradient.double()
        means = config.beta1 * mean.abs() + (1 - config.beta1) * gradient.abs()
        squares = config.beta2 * square + (1 - config.beta2) * gradient.square()
        root = (squares / (1 - config.beta2**steps)).sqrt() + config.eps
        moved = self._learning_rate * means / (1 - config.beta1**steps) / root
        of_means = means + _ROUNDED_ONCE * config.beta1 * gradient.abs()
        of_squares = squares + _ROUNDED_ONCE * config.beta2 * gradient.square()
        # The relative error of a square root is half the relative error of its argument.
        shares = (of_means / means + of_squares / squares / 2).nan_to_num(nan=1.0, posinf=1.0)
        parameters = value.abs() * (1 + self._learning_rate) + moved * shares
        return {"parameters": parameters, "exp_avg": of_means, "exp_avg_sq": of_squares}
