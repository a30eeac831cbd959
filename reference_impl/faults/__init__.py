"""The planted faults, off by default. Each is a small, readable change of one opened run. Importable without torch.

Every fault occurs in upstream's code or in upstream's public threads. A module contains the faults that change one
thing: the `step` and its `gradients`, the `replay`, the `kernels`, the `plan` of kernels. Importing this package
registers all faults.
"""

from reference_impl.faults import (
    accumulation,
    adam_kernel,
    attention_kernels,
    between_steps,
    fallback,
    fp8,
    fp8_products,
    gradients,
    head_kernels,
    kernel_launches,
    kernel_ranges,
    kernel_results,
    kernels,
    lora_kernels,
    operators,
    plain_step,
    plan,
    products,
    ranks,
    replay,
    row_kernels,
    settings,
    step,
)
from reference_impl.faults.kernels_in_trainer import plant_kernels
from reference_impl.faults.registry import BETWEEN, FAULTS, KERNELS, PLAN, REPLAY, STEP, change_of, plant

__all__ = [
    "BETWEEN",
    "FAULTS",
    "KERNELS",
    "PLAN",
    "REPLAY",
    "STEP",
    "accumulation",
    "adam_kernel",
    "attention_kernels",
    "between_steps",
    "change_of",
    "fallback",
    "fp8",
    "fp8_products",
    "gradients",
    "head_kernels",
    "kernel_launches",
    "kernel_ranges",
    "kernel_results",
    "kernels",
    "lora_kernels",
    "operators",
    "plain_step",
    "plan",
    "plant",
    "plant_kernels",
    "products",
    "ranks",
    "replay",
    "row_kernels",
    "settings",
    "step",
]
