"""Split and rotate the heads of attention, for references and for implementations by other libraries (peers)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Heads:
    """Sizes of grouped-query attention. Packed heads have the shape [batch * seq_len, heads * dim], and unpacked heads
    [batch, heads, seq_len, dim]."""

    batch: int
    seq_len: int
    query: int
    key_value: int
    dim: int

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        return self.batch, self.seq_len, self.query, self.key_value, self.dim

    @property
    def tokens(self) -> int:
        return self.batch * self.seq_len

    @property
    def width(self) -> int:
        return (self.query + 2 * self.key_value) * self.dim

    @property
    def name(self) -> str:
        return f"B{self.batch} S{self.seq_len} N{self.query} Nkv{self.key_value} D{self.dim}"

    def unpacked(self, packed: Tensor) -> Tensor:
        return packed.view(self.batch, self.seq_len, -1, self.dim).transpose(1, 2)

    def packed(self, heads: Tensor) -> Tensor:
        return heads.transpose(1, 2).reshape(self.tokens, -1)

    def _parts(self, qkv: Tensor) -> tuple[Tensor, ...]:
        return torch.split(self.unpacked(qkv), [self.query, self.key_value, self.key_value], dim=1)

    def split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the unpacked query, key and value heads of packed qkv.

        Key and value heads are repeated, once for each query head that uses them.
        """
        query, key, value = self._parts(qkv)
        group = self.query // self.key_value
        return query, key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)

    def shared(self, per_query_head: Tensor) -> Tensor:
        """Return, for each key head, the sum of `per_query_head` over the query heads that use this key head."""
        return per_query_head.view(self.batch, self.key_value, -1, self.seq_len, self.dim).sum(dim=2)

    def rotated(self, qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return packed qkv with its query and key heads rotated; cos, sin [seq_len, dim / 2].

        In fp64, the rotation is computed with complex numbers, as in its definition (Su et al. 2021, arXiv 2104.09864,
        section 3.2). In other data types, the operations are those of transformers' `apply_rotary_pos_emb`.
        """
        query, key, value = self._parts(qkv)
        turn = _turned if qkv.dtype == torch.float64 else _turned_like_transformers
        return self.packed(torch.cat((turn(query, cos, sin), turn(key, cos, sin), value), dim=1))

    def rotated_back(self, grad: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the gradient of the input of `rotated`, computed by autograd. grad: the gradient of its result."""
        start = torch.zeros_like(grad, requires_grad=True)
        with torch.enable_grad():
            [result] = torch.autograd.grad(self.rotated(start, cos, sin), start, grad)
        return result

    def rotated_terms(self, terms: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the terms (see `inputs.py`) of the result of `rotated` or `rotated_back`. terms: those of the input.

        A rotation mixes both halves of a head, so a result contains terms of both halves.
        """
        turned = self.query + self.key_value
        halves = terms.view(self.batch, self.seq_len, -1, 2, self.dim // 2)
        c, s = (table.double().abs()[None, :, None, None, :] for table in (cos, sin))
        mixed = halves[:, :, :turned] * c + halves[:, :, :turned].flip(3) * s
        return torch.cat((mixed, halves[:, :, turned:]), dim=2).reshape_as(terms)


def _turned(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate heads and return them: the complex number of elements j and j + dim / 2 is multiplied by cos + i sin."""
    turned = torch.complex(*heads.chunk(2, dim=-1)) * torch.complex(cos.double(), sin.double())
    return torch.cat((turned.real, turned.imag), dim=-1)


def _turned_like_transformers(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    cosine, sine = (torch.cat((table, table), dim=-1).to(heads.dtype) for table in (cos, sin))
    first, second = heads.chunk(2, dim=-1)
    return heads * cosine + torch.cat((-second, first), dim=-1) * sine
