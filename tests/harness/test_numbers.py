"""Numbers in sentences have six digits, or as many more as tell two of them apart."""

from __future__ import annotations

import math
import random

import pytest

from harness.numbers import told_apart


@pytest.mark.parametrize(
    ("one", "other", "texts"),
    [
        (0.003000000026077032, 0.0003, ("0.003", "0.0003")),
        (0.1 * 0.2 + 1e-18, 0.1, ("0.02", "0.1")),
        (2.2626593112945557, 2.2626590728759766, ("2.2626593", "2.2626591")),
        (1000000.0, 1000001.0, ("1000000", "1000001")),
        (1.0, math.nextafter(1.0, 2.0), ("1", "1.0000000000000002")),
        (math.nan, math.inf, ("nan", "inf")),
        (math.nan, math.nan, ("nan", "nan")),
    ],
)
def test_two_close_numbers_are_printed_with_enough_digits_to_differ(
    one: float, other: float, texts: tuple[str, str]
) -> None:
    assert told_apart(one, other) == texts


def test_adjacent_floating_point_numbers_are_printed_differently() -> None:
    drawn = random.Random(0)
    for _ in range(1000):
        value = drawn.uniform(-1, 1) * 10 ** drawn.randint(-30, 30)
        one, other = told_apart(value, math.nextafter(value, math.inf))
        assert one != other
