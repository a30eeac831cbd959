"""The museum of field bugs: each entry says what is recorded of it, and the page says what they do."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import field_bugs
import field_bugs_page
import pytest
import scorecard
from answer_field_bugs import needed_by
from budget import slow_but
from field_bug_results import FIRST, read_results
from field_bug_server import Ask, assert_recorded
from field_bugs import FORMS, ROOT

TOY = ROOT / "tests" / "examples" / "field_bugs_toy" / "doubled_updates.py"
# Those that need releases of their own, or more than torch, are tried in test_field_bug_packages.py.
RECORDED = [entry for entry in field_bugs.recorded() if not needed_by(entry)]
QUICK = [entry for entry in RECORDED if entry.stem in {"nemo_rl_lost_optimizer", "torchtitan_promoted_moments"}]


def test_a_field_bug_fails_at_its_step_and_its_fixed_form_passes(ask: Ask) -> None:
    buggy = ask(TOY, "buggy", "REPEATS", "SAME")
    assert [(each.claim, each.reason, each.step) for each in buggy] == [
        ("REPEATS", "held", None),
        ("SAME", "differs", 0),
    ]
    mended = ask(TOY, "mended")
    assert {each.claim: each.reason for each in mended if each.status != "PASS"} == {"MEMORY": "needs_cuda"}
    assert len(mended) == 7


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("entry", slow_but(QUICK, RECORDED), ids=lambda entry: entry.stem)
def test_a_field_bug_entry_repeats_its_recorded_verdicts(entry: Path, form: str, ask: Ask) -> None:
    assert_recorded(entry, form, ask)


def test_every_field_bug_is_found_or_explains_the_miss_and_fixed_forms_pass_unless_noted() -> None:
    for entry in field_bugs_page.entries():
        assert bool(entry.found) != bool(entry.bug.missed), entry.path.stem
        mended = [forms["mended"] for forms in entry.records.values()] or [(entry.first or {})["mended"]]
        held = all(field_bugs.is_right("mended", said) for said in mended)
        assert held or entry.bug.trouble, entry.path.stem


def test_each_field_bug_entry_belongs_to_a_different_issue_thread() -> None:
    threads = [bug.thread for bug in field_bugs.entries().values()]
    assert [thread for thread, times in Counter(threads).items() if times > 1] == []


def test_every_first_try_has_a_date() -> None:
    tried = {trial.name for trial in read_results() if trial.tried == FIRST}
    assert tried == scorecard.first_dates().keys()


def test_the_field_bugs_page_has_a_section_for_every_entry() -> None:
    sections = field_bugs_page.text().partition("## Each bug\n\n### ")[2].split("\n### ")
    assert [text.partition("\n")[0] for text in sections] == [bug.title for bug in field_bugs.entries().values()]
