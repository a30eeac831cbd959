"""The museum of field bugs: each entry says what is recorded of it, and correct trainers hold the same contracts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import field_bugs
import pytest
import write_field_bugs_page
from field_bug_server import Ask, Server
from field_bugs import FORMS, LONG, ROOT, Said
from public_trainers import TRAINERS

TOY = ROOT / "tests" / "examples" / "field_bugs_toy" / "doubled_updates.py"
PUBLIC = ROOT / "tests" / "support" / "public_trainers.py"
# Those that need releases of their own are tried in test_field_bug_packages.py.
RECORDED = [
    entry
    for entry in field_bugs.entries()
    if "installed" not in field_bugs.facts_of(entry) and 0 in field_bugs.record_of(entry)
]


def test_a_bug_is_found_at_its_step_and_its_mended_form_holds(ask: Ask) -> None:
    buggy = ask(TOY, "buggy", "REPEATS", "SAME")
    assert [(each.claim, each.reason, each.step) for each in buggy] == [
        ("REPEATS", "held", None),
        ("SAME", "differs", 0),
    ]
    mended = ask(TOY, "mended")
    assert {each.claim: each.reason for each in mended if each.status != "PASS"} == {"MEMORY": "needs_cuda"}
    assert len(mended) == 8


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("entry", RECORDED, ids=lambda entry: entry.stem)
def test_an_entry_says_what_is_recorded_of_it(entry: Path, form: str, ask: Ask) -> None:
    recorded = [each for each in field_bugs.record_of(entry)[0][form] if each.claim != LONG]
    tried = [each.claim for each in recorded if each.status != "NOT_RUN"]
    said = {each.claim: each for each in ask(entry, form, *tried)}
    found = [(each.claim, each.status, each.reason) for each in said.values()]
    assert found == [(each.claim, each.status, each.reason) for each in recorded if each.status != "NOT_RUN"], said


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_correct_trainer_holds_every_claim(trainer: str, ask: Ask) -> None:
    said = ask(PUBLIC, trainer)
    assert [each for each in said if each.status not in field_bugs.GOOD] == []
    assert sum(each.status == "PASS" for each in said) >= 3
    assert all(is_lacking(each) for each in said if each.status == "NOT_RUN")


def test_correct_trainers_are_recorded_to_hold_every_claim(field_bug_server: Server) -> None:
    """The shipped examples are verified elsewhere, by contracts of their own; one is tried again here."""
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


def test_every_bug_is_found_or_says_what_would_find_it_and_mended_forms_hold_but_where_trouble_is_told() -> None:
    for bug in write_field_bugs_page.bugs():
        if not bug.records:
            continue
        assert (not bug.found) == ("missed" in bug.facts), bug.entry.stem
        held = all(field_bugs.is_right("mended", forms["mended"]) for forms in bug.records.values())
        assert held or "trouble" in bug.facts, bug.entry.stem


def test_no_thread_is_counted_twice() -> None:
    threads = [field_bugs.facts_of(entry)["thread"] for entry in field_bugs.entries()]
    assert [thread for thread, times in Counter(threads).items() if times > 1] == []


def test_the_page_is_what_the_entries_and_their_records_say() -> None:
    text = write_field_bugs_page.written(write_field_bugs_page.bugs(), write_field_bugs_page.facts_without_entry())
    assert write_field_bugs_page.PAGE.read_text(encoding="utf-8") == text
