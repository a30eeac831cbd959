"""Terms that cancel: a loss near 0 rounds as what it is a sum of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from claims_in_process import CLAIM, WITH_CONTROL, contract_of, executed, planned_of
from torch import Tensor

from harness.system.replay.operations import LossTerms

VALUES = torch.tensor([3.0, -1.0, -2.0])


def divergence(apart: Tensor) -> Tensor:
    """Of two policies by their log-probabilities: 0 where they are equal."""
    return (apart.exp() - apart - 1).mean()


LOSSES: dict[str, tuple[Callable[[], Tensor], float]] = {
    "a sum": (VALUES.sum, 6.0),
    "a mean": (lambda: -(VALUES.mean() / 2), 1.0),
    "a sum of sums": (lambda: (VALUES[:1].sum() + VALUES[1:].sum() * 0.5).detach().clone(), 4.5),
    "added in place": (lambda: torch.zeros(()).add_(VALUES.sum()).sub_(1.0), 7.0),
    "a margin that is met": (lambda: (1.25 - VALUES).relu().mean(), 1.25 + 2.0),
    "a divergence by its estimate": (lambda: divergence(VALUES * 0.0), 2.0),
    "sums of rows": (lambda: (VALUES.view(1, 3) - VALUES).sum(-1).mean(), 12.0),
    "of no terms": (VALUES.prod, 6.0),
    "of booleans": (lambda: (VALUES > 0).float().mean() - 1.0, 4 / 3),
}


@pytest.mark.parametrize("name", LOSSES)
def test_loss_terms_are_added_by_their_absolute_values(name: str) -> None:
    loss, expected = LOSSES[name]
    with LossTerms() as terms:
        found = loss()
    assert float(terms.size_of(found)) == pytest.approx(expected)


def test_a_baseline_records_the_size_of_its_loss_terms(tmp_path: Path) -> None:
    [run] = planned_of(contract_of("step_function_systems:Regression", CLAIM | WITH_CONTROL)).runs
    evidence = executed(run, tmp_path / "run")
    ends = {arm: [each.end for each in executions] for arm, executions in evidence.arms.items()}
    terms = {arm: [each.loss_terms is not None for each in of_arm if each] for arm, of_arm in ends.items()}
    assert terms == {"plain": [True, False], "captured": [False], "untrained": [True]}
    largest = max(evidence.arms["plain"][0].series.loss)
    watched = ends["plain"][0]
    assert watched is not None
    assert watched.loss_terms is not None
    assert watched.loss_terms <= largest


def test_loss_term_tracking_recomputes_no_write_into_an_output_buffer() -> None:
    buffer = torch.empty(())
    with LossTerms() as terms:
        torch.sum(VALUES, (0,), out=buffer)
    assert buffer.item() == 0.0
    assert float(terms.size_of(buffer)) == 0.0
