"""Planted faults of attention and of rotary embedding, forward and backward. Importable without torch.

Each fault is a common mistake in such kernels: a wrong mask, scale, head group or rotation sign, or missing last rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.system.protocol import Expectation
from reference_impl.faults.registry import KERNELS, fault

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from reference_impl.kernel_table import KernelTable

BLOCK = 32  # number of rows in a tile of attention's fp32 kernel
COARSE = 2.0**-17  # relative size of a rounding step that is 64 times as large as that of fp32
_WRONG = {"kernel_match": Expectation("FAIL", "exceeds_tolerance")}


@fault(KERNELS, "a query also attends to the key after its own position", _WRONG)
def attention_mask_off_by_one(table: KernelTable) -> None:
    def forward(
        qkv: Tensor, batch: int, seq_len: int, heads: int, kv_heads: int, head_dim: int
    ) -> tuple[Tensor, Tensor]:
        import torch

        parts = torch.split(qkv.float().view(batch, seq_len, -1, head_dim), [heads, kv_heads, kv_heads], dim=2)
        query, key, value = (part.transpose(1, 2) for part in parts)
        key, value = (each.repeat_interleave(heads // kv_heads, dim=1) for each in (key, value))
        later = torch.ones(seq_len, seq_len, dtype=torch.bool, device=qkv.device).triu(2)
        scores = (query @ key.transpose(2, 3) / head_dim**0.5).masked_fill(later, -torch.inf)
        output = (scores.softmax(dim=-1) @ value).transpose(1, 2).reshape(batch * seq_len, -1)
        return output.to(qkv.dtype), scores.logsumexp(dim=-1)

    table.attention_forward = forward


@fault(KERNELS, "scores are not divided by the square root of head_dim", _WRONG)
def attention_without_scale(table: KernelTable) -> None:
    forward = table.attention_forward

    def unscaled(
        qkv: Tensor, batch: int, seq_len: int, heads: int, kv_heads: int, head_dim: int
    ) -> tuple[Tensor, Tensor]:
        larger = qkv.clone()
        larger[:, : heads * head_dim] *= head_dim**0.5
        return forward(larger, batch, seq_len, heads, kv_heads, head_dim)

    table.attention_forward = unscaled


@fault(KERNELS, "query heads read the key and value head of the next group", _WRONG)
def attention_other_group(table: KernelTable) -> None:
    forward = table.attention_forward

    def next_group(
        qkv: Tensor, batch: int, seq_len: int, heads: int, kv_heads: int, head_dim: int
    ) -> tuple[Tensor, Tensor]:
        other = qkv.clone()
        turned = other[:, heads * head_dim :].view(len(qkv), 2, kv_heads, head_dim)
        turned.copy_(turned.roll(1, dims=2))
        return forward(other, batch, seq_len, heads, kv_heads, head_dim)

    table.attention_forward = next_group


@fault(KERNELS, "keys and values of a sequence's last, ragged block are read as zeros", _WRONG)
def attention_lost_tail(table: KernelTable) -> None:
    forward = table.attention_forward

    def without_tail(
        qkv: Tensor, batch: int, seq_len: int, heads: int, kv_heads: int, head_dim: int
    ) -> tuple[Tensor, Tensor]:
        cut = qkv.clone()
        cut.view(batch, seq_len, -1)[:, seq_len // BLOCK * BLOCK :, heads * head_dim :] = 0
        return forward(cut, batch, seq_len, heads, kv_heads, head_dim)

    table.attention_forward = without_tail


@fault(KERNELS, "attention's backward leaves out the softmax's correction, rowsum(dO * O)", _WRONG)
def attention_backward_without_delta(table: KernelTable) -> None:
    backward = table.attention_backward

    def without_delta(grad_output: Tensor, qkv: Tensor, output: Tensor, *saved: Tensor | int) -> Tensor:
        return backward(grad_output, qkv, output * 0, *saved)

    table.attention_backward = without_delta


@fault(KERNELS, "attention's backward rotates dQ and dK forward again, instead of back", _WRONG)
def rotation_backward_sign(table: KernelTable) -> None:
    backward = table.attention_backward

    def further(
        grad_output: Tensor,
        qkv: Tensor,
        output: Tensor,
        log_sum_exp: Tensor,
        cos: Tensor,
        sin: Tensor,
        *sizes: int,
    ) -> Tensor:
        return backward(grad_output, qkv, output, log_sum_exp, cos, -sin, *sizes)

    table.attention_backward = further


@fault(KERNELS, "the rotation has the opposite direction", _WRONG)
def rotation_sign(table: KernelTable) -> None:
    rotate_ = table.rope_add_rotate_

    def other_way_(
        qkv: Tensor,
        low_rank: Tensor,
        b: Tensor,
        cos: Tensor,
        sin: Tensor,
        seq_len: int,
        heads_to_rotate: int,
        head_dim: int,
    ) -> None:
        rotate_(qkv, low_rank, b, cos, -sin, seq_len, heads_to_rotate, head_dim)

    table.rope_add_rotate_ = other_way_


@fault(KERNELS, "value heads are rotated, too", _WRONG)
def rotated_values(table: KernelTable) -> None:
    rotate_ = table.rope_add_rotate_

    def all_heads_(
        qkv: Tensor,
        low_rank: Tensor,
        b: Tensor,
        cos: Tensor,
        sin: Tensor,
        seq_len: int,
        _heads_to_rotate: int,
        head_dim: int,
    ) -> None:
        rotate_(qkv, low_rank, b, cos, sin, seq_len, qkv.shape[1] // head_dim, head_dim)

    table.rope_add_rotate_ = all_heads_


@fault(KERNELS, "LoRA's addition to queries, keys and values is left out before the rotation", _WRONG)
def rotation_without_lora(table: KernelTable) -> None:
    rotate_ = table.rope_add_rotate_

    def without_(qkv: Tensor, low_rank: Tensor, b: Tensor, cos: Tensor, sin: Tensor, *sizes: int) -> None:
        rotate_(qkv, low_rank * 0, b, cos, sin, *sizes)

    table.rope_add_rotate_ = without_


@fault(KERNELS, "the rotation's tables are computed for base 10000, not for the model's base", _WRONG)
def rotation_base(table: KernelTable) -> None:
    tables = table.rope_tables
    table.rope_tables = lambda seq_len, head_dim, _theta, device: tables(seq_len, head_dim, 1e4, device)


@fault(KERNELS, "the rotation's angles are computed in fp16", {"kernel_match": Expectation("FAIL", "non_finite")})
def table_angles_in_fp16(table: KernelTable) -> None:
    def tables(seq_len: int, head_dim: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
        import torch

        share = torch.arange(0, head_dim, 2, device=device).half() / head_dim
        powers = torch.full((), theta, dtype=torch.float16, device=device) ** share
        angles = torch.outer(torch.arange(seq_len, device=device).half(), powers) / powers**2
        return angles.float().cos(), angles.float().sin()

    table.rope_tables = tables


@fault(
    KERNELS,
    "the rotation's tables are wrong in their last seven bits",
    {"kernel_match": Expectation("FAIL", "exceeds_peer")},
)
def coarse_tables(table: KernelTable) -> None:
    tables = table.rope_tables

    def coarse(seq_len: int, head_dim: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
        cos, sin = tables(seq_len, head_dim, theta, device)
        return cos * (1 + COARSE), sin * (1 + COARSE)

    table.rope_tables = coarse
