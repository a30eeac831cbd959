"""Planted faults of the kernels for LoRA's gradients and the gains' gradients. Importable without torch.

The kernels split a sum over tokens into chunks, compute two products in one loop, and keep two factors in one matrix.
Each fault is a mistake in one of these three parts of the kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.system.protocol import Expectation
from reference_impl.faults.registry import KERNELS, fault

if TYPE_CHECKING:
    from torch import Tensor

    from reference_impl.kernel_table import KernelTable

CHUNK = 128  # smallest number of tokens that one program of the kernel sums over
_WRONG = {"kernel_match": Expectation("FAIL", "exceeds_tolerance")}


@fault(KERNELS, "LoRA's gradients leave out the last chunk of tokens, which is not full", _WRONG)
def lora_without_last_chunk(table: KernelTable) -> None:
    write = table.lora_gradients

    def without(grad_qkv: Tensor, low_rank: Tensor, grad_low_rank: Tensor, *given: Tensor) -> None:
        low_rank, grad_low_rank = low_rank.clone(), grad_low_rank.clone()
        whole = len(grad_qkv) // CHUNK * CHUNK
        low_rank[whole:].zero_()
        grad_low_rank[whole:].zero_()
        write(grad_qkv, low_rank, grad_low_rank, *given)

    table.lora_gradients = without


@fault(KERNELS, "the gradient of LoRA's A leaves out the norm's scale of the input", _WRONG)
def lora_without_norm(table: KernelTable) -> None:
    write = table.lora_gradients

    def without(grad_qkv: Tensor, low_rank: Tensor, grad_low_rank: Tensor, rstd: Tensor, *given: Tensor) -> None:
        write(grad_qkv, low_rank, grad_low_rank, rstd.new_ones(rstd.shape), *given)

    table.lora_gradients = without


@fault(KERNELS, "the gradient of LoRA's B is also multiplied by the norm's scale", _WRONG)
def lora_b_scaled_as_a(table: KernelTable) -> None:
    write = table.lora_gradients

    def scaled(grad_qkv: Tensor, low_rank: Tensor, grad_low_rank: Tensor, rstd: Tensor, *given: Tensor) -> None:
        twice = (low_rank * rstd[:, None]).to(low_rank.dtype)
        write(grad_qkv, twice, grad_low_rank, rstd, *given)

    table.lora_gradients = scaled


@fault(KERNELS, "the low-rank factors of q and of v are swapped in LoRA's gradients", _WRONG)
def lora_factors_exchanged(table: KernelTable) -> None:
    write = table.lora_gradients

    def exchanged(grad_qkv: Tensor, low_rank: Tensor, grad_low_rank: Tensor, *given: Tensor) -> None:
        half = low_rank.shape[1] // 2
        write(grad_qkv, low_rank.roll(half, dims=1), grad_low_rank.roll(half, dims=1), *given)

    table.lora_gradients = exchanged


@fault(KERNELS, "the gradients of a block's two gains are swapped when they are reduced", _WRONG)
def lora_gains_exchanged(table: KernelTable) -> None:
    write = table.lora_gradients

    def exchanged(*given: Tensor) -> None:
        *operands, gain_partials, grad_b, grad_a, grad_norms = given
        write(*operands, gain_partials.flip(0), grad_b, grad_a, grad_norms)

    table.lora_gradients = exchanged
