"""Comparisons of the kernel that adds LoRA's product to qkv and rotates qkv, and of rotary embedding's cos and sin."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from harness.system.protocol import KernelComparison
from reference_impl.kernels.rope import naive
from reference_impl.step_cases.heads import Heads
from reference_impl.step_cases.inputs import Setting

# Sizes of attention, and columns of the low-rank activations. A program handles 32 tokens and one or two heads.
RAGGED = (
    (Heads(2, 5, 3, 1, 24), 6),
    (Heads(3, 13, 4, 2, 16), 32),
    (Heads(1, 33, 2, 2, 8), 5),
    (Heads(2, 1, 1, 1, 2), 1),
)
_ROTARY = "torch, as transformers apply_rotary_pos_emb"
_EMBEDDING = "torch, as transformers Qwen2RotaryEmbedding"
_THETA = 1e5  # base of the angles for magnitude 1; times the magnitude, bases range from 10 to 1e10
# Sequence length and head_dim of each table.
_TABLES = ((7, 2), (33, 24), (700, 64))


def add_rotate(setting: Setting) -> Iterator[KernelComparison]:
    """Yield comparisons for qkv and low-rank activations of size `magnitude`. Angles are random, also at position 0."""
    config, model = setting.config, setting.model
    heads = Heads(config.batch_size, config.seq_len, model.num_heads, model.num_kv_heads, model.head_dim)
    for each in ((heads, 2 * config.rank), *RAGGED):
        yield _add_rotate(setting, *each)


def _add_rotate(setting: Setting, heads: Heads, factors: int) -> KernelComparison:
    shape, size = f"{heads.name} R{factors}", setting.magnitude
    inputs = setting.inputs("rope.add_rotate", shape)
    qkv = inputs.normal(heads.tokens, heads.width, scale=size)
    low_rank, b = inputs.normal(heads.tokens, factors, scale=size), inputs.normal(heads.width, factors)
    angles = inputs.uniform(heads.seq_len, heads.dim // 2, below=6.3)
    cos, sin = (inputs.between_nans(table, torch.float32) for table in (angles.cos(), angles.sin()))
    given = (low_rank, b, cos, sin, heads.seq_len, heads.query + heads.key_value, heads.dim)

    def in_dtype(dtype: torch.dtype) -> Tensor:
        added = qkv.to(dtype) + low_rank.to(dtype) @ b.to(dtype).t()
        return heads.rotated(added, cos, sin)

    def terms() -> dict[str, Tensor]:
        added = qkv.double().abs() + low_rank.double().abs() @ b.double().abs().t()
        return {"qkv": heads.rotated_terms(added, cos, sin)}

    return KernelComparison(
        operation="rope.add_rotate",
        dtype=setting.dtype_name,
        shape=shape,
        magnitude=size,
        written={},
        updated={"qkv": qkv},
        kernel=lambda outputs: setting.table.rope_add_rotate_(outputs["qkv"], *given),
        naive=lambda outputs: naive.add_rotate_(outputs["qkv"], *given),
        reference=lambda: {"qkv": in_dtype(torch.float64)},
        terms=terms,
        peer=(_ROTARY, lambda: {"qkv": in_dtype(setting.dtype)}),
    )


def tables(setting: Setting) -> Iterator[KernelComparison]:
    """Compare cos and sin of every position in fp32. The magnitude determines the base of the angles."""
    for seq_len, head_dim in ((setting.config.seq_len, setting.model.head_dim), *_TABLES):
        yield _tables(setting, seq_len, head_dim)


def _tables(setting: Setting, seq_len: int, head_dim: int) -> KernelComparison:
    theta, device = _THETA * setting.magnitude, setting.device

    def angles() -> tuple[Tensor, Tensor]:
        """Return the angles [seq_len, head_dim / 2] in fp64. Also return, for each angle, the factor by which its
        computation amplifies a relative rounding error."""
        share = torch.arange(0, head_dim, 2, dtype=torch.float64, device=device) / head_dim
        position = torch.arange(seq_len, dtype=torch.float64, device=device)
        return torch.outer(position, theta**-share), 1 + share * math.log(theta)

    def reference() -> dict[str, Tensor]:
        angle, _ = angles()
        return {"cos": angle.cos(), "sin": angle.sin()}

    def terms() -> dict[str, Tensor]:
        angle, amplified = angles()
        return dict.fromkeys(("cos", "sin"), 1 + angle * amplified)

    def named(found: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        return {"cos": found[0], "sin": found[1]}

    def twin(_outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return named(naive.tables(seq_len, head_dim, theta, device))

    empty = torch.empty(seq_len, head_dim // 2, dtype=torch.float32, device=device)
    return KernelComparison(
        operation="rope.tables",
        dtype=setting.dtype_name,
        shape=f"S{seq_len} D{head_dim}",
        magnitude=setting.magnitude,
        written={"cos": empty, "sin": empty},
        updated={},
        kernel=lambda _outputs: named(setting.table.rope_tables(seq_len, head_dim, theta, device)),
        naive=twin,
        reference=reference,
        terms=terms,
        peer=(_EMBEDDING, lambda: named(tables_like_transformers(seq_len, head_dim, theta, device))),
    )


def tables_like_transformers(seq_len: int, head_dim: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cos and sin [seq_len, head_dim / 2], computed as transformers' `Qwen2RotaryEmbedding` does."""
    inverse = 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.float, device=device) / head_dim))
    positions = torch.arange(seq_len, device=device).float()
    angles = (inverse[:, None] @ positions[None]).t()
    return angles.cos(), angles.sin()
