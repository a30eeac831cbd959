"""A part of the table of deaths in which every cause and every phase is; all of it: `.ci/long deaths`."""

from __future__ import annotations

import deaths
import pytest
from death_table import STRANGER_PHASES, Outcome, verified
from limits_passed import clock_of_limits
from waiting import LIMIT_S

pytestmark = pytest.mark.usefixtures("warm")
PART = (
    ("import", "sigabrt"),
    ("import", "exit_1"),
    ("describe", "exit_0"),
    ("describe", "nonsense"),
    ("import_in_worker", "raise"),
    ("open", "memory"),
    ("first_step", "nonsense"),
    ("later_step", "sigsegv"),
    ("capture", "system_exit"),
    ("state", "full_disk"),
    ("replay", "closed_output"),
    ("gradients", "no_directory"),
    ("end", "orphan"),
    ("write", "sigkill"),
    ("describe", "output"),
    ("describe", "hang"),
    ("first_step", "overrun"),
)

DESCRIBE_S = 20.0  # a fork that describes answers within a twentieth of a second, where it has a turn


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[Outcome]:
    """The wall limit of the worker that overruns passes as soon as it hangs; it is far from that of any other."""
    part = [deaths.combination(phase, cause) for phase, cause in PART]
    folder = tmp_path_factory.mktemp("deaths")
    clock = clock_of_limits(folder, "first_step_overrun.0: steps", deaths.OVERRUN_S)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("death_table.LEFT_S", LIMIT_S)
        patch.setattr("tempfile.tempdir", str(folder))
        patch.setattr("harness.execution.watched_worker.time", clock)
        patch.setattr("harness.execution.supervisor.ENDED_TOGETHER_S", 0.0)
        return verified(deaths.groups(part, len(part)), {"device": "cpu"}, steps=deaths.STEPS, describe_s=DESCRIBE_S)


def test_the_short_table_of_workers_deaths_covers_every_cause_and_every_phase() -> None:
    assert {phase for phase, _ in PART} == {*STRANGER_PHASES, *deaths.PHASES}
    assert {cause for _, cause in PART} == set(deaths.NAMED)


@pytest.mark.slow
def test_the_death_of_a_worker_is_named_and_fails_only_its_own_claim(outcomes: list[Outcome]) -> None:
    """Each outcome also includes the exit code, other claims, remaining processes and `judge --check`."""
    assert {outcome.combination.name: outcome.problems for outcome in outcomes} == {
        f"{phase}_{cause}": [] for phase, cause in PART
    }


@pytest.mark.slow
def test_each_worker_that_is_made_to_die_gives_the_verdict_error(outcomes: list[Outcome]) -> None:
    assert {str(outcome.verdict.status) for outcome in outcomes} == {"ERROR"}


@pytest.mark.slow
def test_the_check_counts_each_planted_death_of_a_worker_with_a_wrong_outcome(
    outcomes: list[Outcome], capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = Outcome(outcomes[0].combination, outcomes[0].verdict, ["a process is left"])
    assert deaths.print_outcomes([wrong, *outcomes[1:]], 0.0) == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].endswith("a process is left")
    assert f"{len(PART)} combinations of cause and phase, 0 false PASS, 1 wrong" in printed[-1]


def test_the_whole_table_of_workers_deaths_has_at_least_a_hundred_entries() -> None:
    names = [one.name for one in deaths.table()]
    assert len(set(names)) == len(names) >= 100
