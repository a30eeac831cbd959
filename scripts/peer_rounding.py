"""Why the peer's losses lag at 28 layers: transformers' step with and without its double roundings.

    PYTHONPATH=. python scripts/peer_rounding.py MODEL SEQ_LEN STEPS cpu|cuda

One seed of the peer beside the reference: as it is, with each norm's product with its gain rounded once, with the sum
of a product and its LoRA part rounded once, and with both. Printed are mean differences of losses from step 5 on
(docs/step-accuracy.md).
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from harness.contract.schema import Arm, Workload
from reference_impl.system import QLoRASystem
from reference_impl.transformers_twin.peer import TransformersPeer

FROM_STEP = 5
Patch = Callable[[nn.Module], None]
OPTIONS = {"rank": 16, "alpha": 32.0, "warmup_steps": 5, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}


def norms_round_once(model: nn.Module) -> None:
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = _norm(module)


def _norm(module: Any) -> Callable[[Tensor], Tensor]:
    def forward(hidden: Tensor) -> Tensor:
        wide = hidden.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + module.variance_epsilon)
        normalized: Tensor = module.weight.float() * (wide * scale)
        return normalized.to(hidden.dtype)

    return forward


def lora_rounds_once(model: nn.Module) -> None:
    for module in model.modules():
        if hasattr(module, "lora_A"):
            module.forward = _linear(module)


def _linear(module: Any) -> Callable[[Tensor], Tensor]:
    def forward(hidden: Tensor) -> Tensor:
        base, first, second = module.base_layer, module.lora_A["default"], module.lora_B["default"]
        part = second(first(hidden.to(first.weight.dtype))).float() * module.scaling["default"]
        with torch.autocast(hidden.device.type, enabled=False):
            rounded, bias = hidden.to(base.weight.dtype).float(), None if base.bias is None else base.bias.float()
            product = nn.functional.linear(rounded, base.weight.float(), bias)
        whole: Tensor = (product + part).to(base.weight.dtype)
        return whole

    return forward


def losses(workload: Workload, dtype: str, directory: str, patches: tuple[Patch, ...] = ()) -> list[float]:
    arm = Arm.model_validate({"dtype": dtype, "learning_rate": 2e-4, "max_norm": 0.1})
    with TransformersPeer().open(workload, arm, model_directory=directory) as run:
        for patch in patches:
            patch(run._model)
        return [float(run.step(index)) for index in range(workload.steps)]


def main() -> int:
    model, seq_len, steps, device = sys.argv[1:]
    settings = {"model": model, "batch_size": 4, "seq_len": int(seq_len), "steps": int(steps), "options": OPTIONS}
    workload = Workload.model_validate({**settings, "needs": {"device": device}})
    arms: dict[str, tuple[Patch, ...]] = {
        "as it is": (),
        "norms round once": (norms_round_once,),
        "LoRA's sum rounds once": (lora_rounds_once,),
        "both": (norms_round_once, lora_rounds_once),
    }
    with tempfile.TemporaryDirectory() as folder:
        directory = str(QLoRASystem().checkpoint(workload, Path(folder), model_directory=None))
        exact = losses(workload, "float64" if model == "tiny" else "float32", directory)[FROM_STEP:]
        for name, patches in arms.items():
            own = losses(workload, "bfloat16", directory, patches)[FROM_STEP:]
            differences = [a - b for a, b in zip(own, exact, strict=True)]
            above = sum(difference > 0 for difference in differences)
            mean = sum(differences) / len(differences)
            print(f"{name}: {mean:+.5f} on average, {above} of {len(differences)} above")
    return 0


if __name__ == "__main__":
    sys.exit(main())
