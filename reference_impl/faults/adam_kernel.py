"""Planted faults of the AdamW update. Importable without torch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from harness.system.protocol import Expectation
from reference_impl.faults.registry import KERNELS, fault

if TYPE_CHECKING:
    from torch import Tensor

    from reference_impl.config import TrainConfig
    from reference_impl.kernel_table import KernelTable
    from reference_impl.optimizer import FlatAdamW

_WRONG = {"kernel_match": Expectation("FAIL", "exceeds_tolerance")}


@fault(KERNELS, "AdamW adds epsilon inside the square root", _WRONG)
def adam_epsilon_in_root(table: KernelTable) -> None:
    own = table.adamw

    def inside(parameters: Tensor, config: TrainConfig) -> FlatAdamW:
        optimizer = own(parameters, config)
        update_ = optimizer.update_

        def update_inside_(parameters: Tensor, gradient: Tensor, norms: Tensor) -> None:
            before = parameters.clone()
            update_(parameters, gradient, norms)
            steps = optimizer.step_count
            mean = optimizer.exp_avg / (1 - config.beta1**steps)
            root = (optimizer.exp_avg_sq / (1 - config.beta2**steps) + config.eps).sqrt()
            rate = optimizer.learning_rate * norms.sum().isfinite()
            parameters.copy_(before * (1 - rate * config.weight_decay) - rate * mean / root)

        optimizer.update_ = update_inside_  # type: ignore[method-assign]
        return optimizer

    table.adamw = inside


@fault(KERNELS, "AdamW's moments are used without their bias corrections", _WRONG)
def adam_without_bias_correction(table: KernelTable) -> None:
    own = table.adamw

    def uncorrected(parameters: Tensor, config: TrainConfig) -> FlatAdamW:
        optimizer = own(parameters, config)
        update_ = optimizer.update_

        def update_late_(parameters: Tensor, gradient: Tensor, norms: Tensor) -> None:
            steps = optimizer.step_count.clone()
            optimizer.step_count.fill_(1e9)  # after this many steps, both bias corrections are 1
            update_(parameters, gradient, norms)
            optimizer.step_count.copy_(steps + norms.sum().isfinite())

        optimizer.update_ = update_late_  # type: ignore[method-assign]
        return optimizer

    table.adamw = uncorrected


@fault(KERNELS, "AdamW leaves out the weight decay", _WRONG)
def adam_without_decay(table: KernelTable) -> None:
    own = table.adamw
    table.adamw = lambda parameters, config: own(parameters, replace(config, weight_decay=0.0))


@fault(KERNELS, "AdamW updates the parameters although the norm of a gradient is not finite", _WRONG)
def adam_takes_bad_step(table: KernelTable) -> None:
    own = table.adamw

    def taking(parameters: Tensor, config: TrainConfig) -> FlatAdamW:
        optimizer = own(parameters, config)
        update_ = optimizer.update_

        def update_always_(parameters: Tensor, gradient: Tensor, norms: Tensor) -> None:
            update_(parameters, gradient, norms.nan_to_num(posinf=1.0))

        optimizer.update_ = update_always_  # type: ignore[method-assign]
        return optimizer

    table.adamw = taking
