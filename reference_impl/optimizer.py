"""AdamW over the flat parameter buffer, in one fused launch. All numbers that change between steps are on the
device."""

from __future__ import annotations

import torch
from torch import Tensor

from reference_impl.config import TrainConfig


class FlatAdamW:
    """torch's fused AdamW on one flat tensor.

    The learning rate and the step count are 0-d tensors on the device, so a replayed step reads their current values.
    The bias corrections depend on the step count. Betas, eps and weight decay are constants of the run.
    """

    def __init__(self, parameters: Tensor, config: TrainConfig) -> None:
        self.exp_avg = torch.zeros_like(parameters)
        self.exp_avg_sq = torch.zeros_like(parameters)
        self.step_count = torch.zeros((), dtype=torch.float32, device=parameters.device)
        self.learning_rate = torch.zeros((), dtype=torch.float32, device=parameters.device)
        self.skipped = torch.zeros((), dtype=torch.float32, device=parameters.device)
        self._config = config

    def update_(self, parameters: Tensor, gradient: Tensor, norms: Tensor) -> None:
        """Update ``parameters`` [elements] in place by one AdamW step, unless one of ``norms`` [groups] is not finite.

        Skipped updates are counted. The device decides whether to skip an update. A Python `if` would need a host sync,
        and every replay would repeat the decision that was made during the capture.
        """
        total = norms.sum()
        # `bad` is 1 if the total is infinite or NaN (total - total is then NaN, not equal to 0), otherwise 0.
        bad = (total - total).ne(0).float()
        self.skipped.add_(bad)
        self.step_count.add_(1).sub_(bad)
        torch._fused_adamw_(
            [parameters],
            [gradient],
            [self.exp_avg],
            [self.exp_avg_sq],
            [],
            [self.step_count],
            lr=self.learning_rate,
            beta1=self._config.beta1,
            beta2=self._config.beta2,
            weight_decay=self._config.weight_decay,
            eps=self._config.eps,
            amsgrad=False,
            maximize=False,
            found_inf=bad,
        )

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the tensors that `update_` changes in addition to the parameters."""
        return {
            "exp_avg": self.exp_avg,
            "exp_avg_sq": self.exp_avg_sq,
            "step_count": self.step_count,
            "skipped_steps": self.skipped,
        }
