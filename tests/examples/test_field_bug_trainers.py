"""Correct trainers under the contracts by which bugs of the field are found: they hold every claim."""

from __future__ import annotations

import field_bugs
import pytest
from budget import slow_but
from field_bug_results import Said
from field_bug_server import Ask, Server
from field_bugs import ROOT
from public_trainers import TRAINERS

PUBLIC = ROOT / "tests" / "support" / "public_trainers.py"


@pytest.mark.parametrize("trainer", slow_but(["micro_batches_for_one"], TRAINERS))
def test_a_correct_field_bug_trainer_passes_every_claim(trainer: str, ask: Ask) -> None:
    said = ask(PUBLIC, trainer)
    assert [each for each in said if each.status not in field_bugs.GOOD] == []
    assert sum(each.status == "PASS" for each in said) >= 3
    assert all(is_lacking(each) for each in said if each.status == "NOT_RUN")


@pytest.mark.slow
def test_correct_field_bug_trainers_are_recorded_as_passing_every_claim(field_bug_server: Server) -> None:
    """The shipped examples have their own contracts and are verified by other tests.

    One of them is judged again here.
    """
    recorded = field_bugs.correct_trainers()
    assert set(recorded) == {*field_bugs.SHIPPED, *TRAINERS}
    assert [name for name, said in recorded.items() if not field_bugs.is_right("mended", said)] == []
    again = field_bug_server.example("plain_loop")
    assert [(each.claim, each.reason) for each in again] == [
        (each.claim, each.reason) for each in recorded["plain_loop"]
    ]


def is_lacking(said: Said) -> bool:
    """Whether a claim was not run for a capability of the step, or for want of a GPU."""
    return "lacks the capability" in said.message or said.reason == "needs_cuda"
