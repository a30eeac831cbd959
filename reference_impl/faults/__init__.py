"""Faults that can be planted in the trainer. Each fault is a small change of one opened run. Importable without torch.

A fault is planted only if a run names it. Each of these faults occurs in the code of the upstream projects, which first
made the claims, or is described in a public issue of these projects. Each module contains the faults of one part of the
trainer, such as the `step`, the `replay` or the `plan` of kernels. Importing this package registers all faults.
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
