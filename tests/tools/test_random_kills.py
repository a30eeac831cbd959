"""A dozen random kills of one command; 300 of three: `.ci/long kills`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import random_kills
import warm_start
from budget import slow_but
from waiting import LIMIT_S

pytestmark = pytest.mark.usefixtures("warm_commands", "forked")


@pytest.fixture(scope="module")
def forked() -> Iterator[None]:
    """The commands that are killed are forks; `.ci/long kills` starts them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random_kills, "subprocess", warm_start.Subprocess())
        patch.setattr(random_kills, "LIMIT_S", LIMIT_S)
        patch.setattr(random_kills, "LEFT_S", LIMIT_S)
        yield


@pytest.fixture(scope="module")
def whole(warm_commands: None, forked: None) -> tuple[dict[str, float], bytes]:
    return random_kills.unkilled("verify")


@pytest.mark.parametrize("number", slow_but(range(2), range(12)))
def test_a_killed_command_leaves_no_open_gate_and_no_process(
    whole: tuple[dict[str, float], bytes], number: int
) -> None:
    choice = random.Random(number)
    phase = random_kills.PHASES[number % len(random_kills.PHASES)]
    sent = tuple(choice.choices(random_kills.SIGNALS, k=1 + number % 2))
    seconds, expected = whole
    _, problems = random_kills.kill("verify", phase, sent, choice.uniform(0.0, seconds.get(phase, 0.0)), expected)
    assert problems == []


def test_a_gate_opened_by_an_unfinished_run_is_reported(whole: tuple[dict[str, float], bytes], tmp_path: Path) -> None:
    """A gate with other verdicts than those of a complete run is reported in the same way."""
    random_kills.prepare(tmp_path)
    command = random_kills.Command("verify", tmp_path, f"{random_kills.MARK}=told")
    assert command.process.wait(LIMIT_S) == 0
    [directory] = command.directories()
    assert random_kills.accepted(directory, whole[1], drilled=False) == []
    assert random_kills.accepted(directory, b"other verdicts", drilled=False) == [
        "the gate is open for run, whose run did not finish"
    ]
