"""The table of docs/ranks.md: two ranks end as one process in turn does, in every bit, and other orders do not."""

from __future__ import annotations

import pytest
import ranks_rounding


@pytest.mark.slow
def test_ranks_end_as_one_process_in_turn_does() -> None:
    in_turn, joined, parts = ranks_rounding.differences(seed=0, steps=4)
    assert in_turn == 0.0
    assert 0.0 < joined < 1e-3
    assert 0.0 < parts < 1e-3
