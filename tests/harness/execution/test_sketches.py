"""Sketches: sums of a tensor's numbers under fixed signs, by which runs are compared that share no process."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.execution.watchers import reductions
from harness.execution.watchers.reductions import sketches


def sums(tensor: Tensor, name: str = "weight") -> np.ndarray:
    return np.array(sketches({name: tensor})[name][2:])


def test_signed_sums_of_a_sketch_are_linear_and_estimate_the_square_of_a_difference() -> None:
    """A sketch is a short summary of a tensor: sums of its elements with fixed signs."""
    generator = torch.Generator().manual_seed(0)
    one, other = (torch.randn(64, 9, generator=generator, dtype=torch.float64) for _ in range(2))
    assert sums(one) - sums(other) == pytest.approx(sums(one - other))
    apart = float((one - other).norm())
    found = [np.mean((sums(one, str(name)) - sums(other, str(name))) ** 2) for name in range(400)]
    assert math.sqrt(float(np.mean(found))) == pytest.approx(apart, rel=0.1)


def test_signs_of_a_sketch_depend_on_name_and_position_and_not_on_the_size_of_a_chunk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sketch is a short summary of a tensor: sums of its elements with fixed signs."""
    tensor = torch.arange(1.0, 101.0)
    at_once = sums(tensor)
    assert len(set(np.abs(at_once))) > 1
    assert not np.allclose(at_once, sums(tensor, "another"))
    assert not np.allclose(at_once, sums(tensor.flip(0)))
    monkeypatch.setattr(reductions, "_SKETCHED", 7)
    assert sums(tensor) == pytest.approx(at_once)


def mixed(word: int) -> int:
    """The finalizer of splitmix64, of Python's numbers."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) % 2**64
    return word ^ (word >> 31)


def test_sketch_signs_follow_the_documented_formula() -> None:
    """A sketch sums the elements of a tensor with fixed signs.

    Equal signs make the sketches of two machines comparable.
    """
    start = int.from_bytes(hashlib.sha256(b"weight").digest()[:4], "little")
    words = [mixed((start + place) * 0x9E3779B97F4A7C15 % 2**64) for place in range(1, 17)]
    documented = [[1 - 2 * (word >> bit & 1) for bit in range(4)] for word in words]
    assert [sums(row).tolist() for row in torch.eye(16)] == documented


def test_a_sketch_begins_with_epsilon_and_norm_and_integers_have_none() -> None:
    """A sketch is a short summary of a tensor: sums of its elements with fixed signs.

    Integer tensors have no sketch.
    """
    tensors = {"half": torch.full((4,), 2.0, dtype=torch.bfloat16), "count": torch.tensor(3), "none": torch.empty(0)}
    found = sketches(tensors)
    assert set(found) == {"half", "none"}
    assert found["half"][:2] == (2.0**-7, 4.0)
    assert found["none"][1:] == (0.0,) * 5


def test_sketches_distinguish_infinite_elements_and_stay_finite() -> None:
    """A sketch is a short summary of a tensor: sums of its elements with fixed signs."""
    masks = [torch.tensor([0.0, math.inf]), torch.tensor([math.inf, 0.0]), torch.tensor([0.0, -math.inf])]
    found = [sums(mask) for mask in masks]
    assert np.isfinite(found).all()
    assert len({tuple(each) for each in found}) == 3
