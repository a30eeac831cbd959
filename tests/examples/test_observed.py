"""An observed step of a shipped trainer ends in the bits of the unobserved one, plain or captured."""

from __future__ import annotations

from pathlib import Path

import pytest
from observed_steps import observed_steps, require_own_bits, run_of_example
from reference_where import run_of_reference

from harness.judging.first_difference import answer_of
from harness.report.located import located

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("example", ["plain_loop", "accelerate_loop", "peft_lora"])
def test_an_observed_step_ends_with_the_bits_of_the_unobserved_step(example: str, tmp_path: Path) -> None:
    require_own_bits(*observed_steps(run_of_example(example, {}), tmp_path, 0))


def test_a_forward_pass_outside_the_captured_graph_aligns_with_the_plain_pass(tmp_path: Path) -> None:
    run, steps = observed_steps(run_of_reference("cpu", capture="backward"), tmp_path, 0)
    require_own_bits(run, steps)
    answer = answer_of(run, steps)
    assert answer.found == "does_not_repeat", located(answer)
    plain = next(each.operators or [] for each in steps if each.arm == "plain" and each.operators)
    assert next(row.operators or 0 for row in answer.path if row.part == "forward") > 0.99 * len(plain)
