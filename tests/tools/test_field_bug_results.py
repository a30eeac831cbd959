"""The museum's results: what a row keeps of a claim, and what a new trial replaces."""

from __future__ import annotations

from pathlib import Path

import pytest
from field_bug_results import CPU, FIRST, NOW, Said, Trial, keep_results, read_results

from examples.field_bugs.bug import bug_of

BUGGY = Trial("an_entry", NOW, CPU, 0, "buggy")
FAILED = Said("SAME", "FAIL", "differs", 3, 0.5, "in examples/field_bugs/an_entry.py:12:\nthe losses, differ")
HELD = Said("REPEATS", "PASS", "held", None, 0.5, "equal in bits")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results.csv"


def test_a_failing_claim_keeps_its_figures_without_the_source_line(results: Path) -> None:
    keep_results({BUGGY: [HELD, FAILED]}, results)
    message = "in examples/field_bugs/an_entry.py: the losses, differ"
    assert read_results(results) == {
        BUGGY: [Said("REPEATS", "PASS", "held"), Said("SAME", "FAIL", "differs", 3, 0.5, message)]
    }


def test_a_first_try_stores_only_status_and_reason(results: Path) -> None:
    first = Trial("an_entry", FIRST, CPU, 0, "buggy")
    keep_results({first: [FAILED]}, results)
    assert read_results(results) == {first: [Said("SAME", "FAIL", "differs")]}


def test_a_repeated_trial_replaces_only_its_own_result(results: Path) -> None:
    others = [Trial("an_entry", NOW, CPU, 1, "buggy"), Trial("an_entry", NOW, "NVIDIA H200", 0, "buggy")]
    keep_results({trial: [HELD] for trial in (BUGGY, *others)}, results)
    keep_results({BUGGY: [FAILED]}, results)
    kept = read_results(results)
    assert [kept[trial][0].status for trial in (BUGGY, *others)] == ["FAIL", "PASS", "PASS"]


def test_storing_the_same_results_again_changes_nothing(results: Path) -> None:
    keep_results({BUGGY: [HELD, FAILED]}, results)
    before = results.read_bytes()
    keep_results(read_results(results), results)
    assert results.read_bytes() == before


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("BUG = Bug(title='t', thread='o/n#1', users_saw='', cause='', fix='', moral='none')", TypeError),
        ("BUG = Bug(title='t')", TypeError),
        ("BUG = Bug('t', 'o/n#1', '', '', '')", ValueError),
        ("BUG = Bug(title=f'{1}', thread='o/n#1', users_saw='', cause='', fix='')", ValueError),
    ],
    ids=["an unknown fact", "facts missing", "facts without names", "a fact that is computed"],
)
def test_bug_facts_that_are_not_literals_are_refused(source: str, error: type[Exception], tmp_path: Path) -> None:
    entry = tmp_path / "entry.py"
    entry.write_text(f"{source}\n")
    with pytest.raises(error):
        bug_of(entry)


def test_a_module_without_a_bug_is_not_an_entry(tmp_path: Path) -> None:
    module = tmp_path / "shared.py"
    module.write_text("RATE = 0.1\n")
    assert bug_of(module) is None
