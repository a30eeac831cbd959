"""An observed step of a shipped example ends in the bits of the unobserved one, plain or captured."""

from __future__ import annotations

from pathlib import Path

import pytest
from observed_steps import observed_steps, require_own_bits, run_of_example


@pytest.mark.slow
@pytest.mark.parametrize("example", ["plain_loop", "accelerate_loop", "peft_lora"])
def test_an_observed_step_ends_in_the_bits_of_the_unobserved_one(example: str, tmp_path: Path) -> None:
    require_own_bits(*observed_steps(run_of_example(example, {}), tmp_path, 0))
