"""Training that is saved and loaded again and again: each process loads what the one before it saved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from between_steps import RESUME, STEPS, fork_other_processes
from budget import slow_but
from claims_in_process import judged

from harness.evidence.read_run import read_run
from harness.evidence.run_evidence import ArmEvidence
from harness.judging.verdict import Verdict

SAVES = [5, 7]  # an epoch's end, and a step within the next one


@pytest.fixture(autouse=True)
def forked(warm: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All processes on one thread: sums in another order have other bits."""
    fork_other_processes(monkeypatch)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def chained(system: str, directory: Path, *, fault: str | None = None, **claim: Any) -> Verdict:
    wanted = RESUME | {"save_at": SAVES, "steps": STEPS - SAVES[-1]} | claim
    return judged(system, directory, wanted, fault=fault)


def recorded(directory: Path) -> list[ArmEvidence]:
    [run] = directory.iterdir()
    return read_run(run)[1].arms["plain"]


def test_each_part_of_a_resume_chain_trains_in_its_own_process(tmp_path: Path) -> None:
    verdict = chained("checkpoint_systems:Right", tmp_path)
    assert verdict.reason == "held", verdict.message
    assert verdict.message.endswith(
        "of which the last 5 were made in another process from the state saved after step 6, whose process had resumed "
        "from the state saved after step 4"
    )
    parts = recorded(tmp_path)
    assert [len(part.series.loss) for part in parts] == [5, 2, 5, 12]
    saved = [(part.saved.steps, part.saved.steps_after) for part in parts if part.saved is not None]
    assert saved == [(5, 2), (7, 2)]
    processes = [part.saved.process for part in parts if part.saved is not None]
    processes += [part.loaded.process for part in parts[2:] if part.loaded is not None]
    assert len({*processes}) == 3


RIGHT: list[tuple[str, dict[str, Any]]] = [
    ("checkpoint_systems:Right", {"candidate": "captured", "baseline": "plain"}),
    ("checkpoint_systems:Right", {"candidate": "captured", "baseline": "plain", "steps_before_load": 2}),
    ("checkpoint_systems:ByIndex", {}),
    ("chained_checkpoint_systems:CountedWhole", {"save_at": [3, 5, 7, 11], "steps": 1}),
    ("chained_checkpoint_systems:NextEpoch", {}),
    ("chained_checkpoint_systems:CopiesBeforeItWrites", {}),
    ("chained_checkpoint_systems:BindsBoth", {}),
]


@pytest.mark.parametrize("right", slow_but(RIGHT[:1], RIGHT), ids=lambda right: f"{right[0]} {[*right[1].values()]}")
def test_a_correct_checkpoint_passes_a_resume_chain(right: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    system, claim = right
    verdict = chained(system, tmp_path, **claim)
    assert verdict.reason == "held", verdict.message


# by what each fails, and the first step or what was not restored
WRONG = {
    "SecondResume": ("unequal_batches", 7, ""),
    "EpochAgain": ("unequal_batches", 5, ""),
    "WritesInAThread": ("not_restored", 5, "buffers, optimizer, parameters"),
    "WritesWithTheNextStep": ("not_restored", 5, "buffers, generators, optimizer, parameters"),
    "SavesWhatItLoadedFrom": ("end_differs", None, ""),
}


@pytest.mark.parametrize("system", slow_but(["SecondResume", "WritesWithTheNextStep"], WRONG))
def test_a_defect_that_only_a_second_save_shows_fails_with_its_reason(system: str, tmp_path: Path) -> None:
    verdict = chained(f"chained_checkpoint_systems:{system}", tmp_path)
    figures = verdict.figures
    found = (verdict.reason, figures["first_differing_step"].value, figures["not_restored"].value)
    assert (str(verdict.status), *found) == ("FAIL", *WRONG[system]), verdict.message


def test_a_checkpoint_of_only_weights_fails(tmp_path: Path) -> None:
    verdict = chained("checkpoint_systems:ByIndex", tmp_path, fault="weights_alone")
    assert (verdict.reason, verdict.figures["not_restored"].value) == ("unequal_batches", "generators, optimizer")
    assert "at step 5, " in verdict.message
