"""Which commit is the trainer's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from report_views import CONTRACT, contract, view_with

from harness.report.first_screen import identity
from harness.report.history import NOT_RECORDED, harness_commit, trainer_commit, trainers
from harness.report.view import ReportView, RunPart

OWN = CONTRACT["system"]
STRANGER = "a_package.of_a_stranger:Trainer"
FIRST, SECOND, THIRD = ("1" * 40, "2" * 40, "3" * 40)


def view_of_system(
    *systems: str,
    git: str | None = FIRST,
    recorded: dict[str, str | None] | None = None,
    named: str | None = None,
    **header: Any,
) -> ReportView:
    known = {name: {"commit": commit, "name": named} for name, commit in (recorded or {}).items()}
    contracts = [contract().model_copy(update={"system": system}) for system in systems]
    return view_with(contracts=contracts, environment={"git": {"commit": git}, "trainers": known}, **header)


@pytest.mark.parametrize(
    ("view", "commit"),
    [
        (view_of_system(OWN), "1" * 12),
        (view_of_system(OWN, git=f"{FIRST}+changes"), f"{'1' * 12} with uncommitted changes"),
        (view_of_system(OWN, git=None), NOT_RECORDED),
        (view_of_system(STRANGER), NOT_RECORDED),
        (view_of_system(STRANGER, recorded={STRANGER: f"{SECOND}+changes"}), f"{'2' * 12} with uncommitted changes"),
        (view_of_system(STRANGER, recorded={STRANGER: None}), NOT_RECORDED),
        (view_of_system(OWN, recorded={OWN: None}), NOT_RECORDED),
        (view_of_system(OWN, recorded={STRANGER: SECOND}), NOT_RECORDED),
        (view_of_system(OWN, STRANGER, recorded={OWN: SECOND, STRANGER: SECOND}), "2" * 12),
        (view_of_system(OWN, STRANGER, recorded={OWN: SECOND, STRANGER: THIRD}), f"{'2' * 12}, {'3' * 12}"),
    ],
)
def test_the_commit_of_a_trainer_is_that_of_its_own_repository(view: ReportView, commit: str) -> None:
    assert trainer_commit(view) == commit


@pytest.mark.parametrize(("changes", "end"), [(0, ""), (2, " with uncommitted changes")])
def test_the_trainer_commit_of_two_compared_commits_is_the_candidates(changes: int, end: str) -> None:
    facts = {"subject": "x", "changes": changes}
    commits = {"candidate": {"commit": SECOND, **facts}, "baseline": {"commit": THIRD, "subject": "y"}}
    assert trainer_commit(view_of_system(STRANGER, commits=commits)) == "2" * 12 + end


def test_the_harness_commit_is_recorded_separately() -> None:
    assert harness_commit(view_of_system(STRANGER)) == "1" * 12
    assert harness_commit(view_of_system(STRANGER, git=None)) == NOT_RECORDED


def test_each_trainer_of_several_parts_is_named_once() -> None:
    assert trainers(view_of_system(OWN, STRANGER, OWN)) == [OWN, STRANGER]


@pytest.mark.parametrize("names", [(None, "a trainer"), ("a trainer", None)])
def test_a_trainer_is_shown_once_if_one_of_two_runs_recorded_its_name(
    names: tuple[str | None, str | None],
) -> None:
    views = [view_of_system(STRANGER, recorded={STRANGER: SECOND}, named=named) for named in names]
    page = replace(views[0], parts=tuple(RunPart(name, view) for name, view in zip("ab", views, strict=True)))
    assert dict(identity(page))["Whose"] == f"a trainer ({STRANGER}); no author was recorded"
