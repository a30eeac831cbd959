"""The pages of docs/reference/ are what their tables say, and name all that a reader may look up."""

from __future__ import annotations

import re

import page_tables
import pytest
import reference_of_kinds
import reference_tables
import write_skill

from harness.contract.schema import part_model
from harness.judging.reasons import REASONS
from harness.kinds import BUILT_IN
from harness.report.wording import glossary
from harness.system.protocol import CAPABILITIES


def test_the_skill_file_is_the_page_for_programs() -> None:
    text = write_skill.skill()
    assert write_skill.SKILL.read_text(encoding="utf-8") == text, "run tools/docs/write_skill.py"
    links = re.findall(r"\]\(([^)#]+)", text)
    assert links
    assert all((write_skill.SKILL.parent / each).exists() for each in links)


def test_the_reference_lists_every_reason_code_term_and_capability_once() -> None:
    for table, names in [
        (reference_tables.reason_codes(), [f"`{code}`" for code in REASONS]),
        (reference_tables.glossary(), list(glossary())),
        (reference_tables.capabilities(), [f"`{name}`" for name in CAPABILITIES]),
    ]:
        rows = re.findall(r"^\| (.+?) \| ", table, re.MULTILINE)
        assert sorted(set(rows) - {"code", "term", "capability", "---"}) == sorted(names)


def test_the_page_of_exit_codes_has_their_docstrings() -> None:
    page = (reference_tables.ROOT / "docs" / "reference" / "exit-codes.md").read_text(encoding="utf-8")
    assert page.endswith(f"\n\n{reference_tables.exit_codes()}\n")


@pytest.mark.parametrize("kind", BUILT_IN)
def test_a_section_of_the_page_of_claim_kinds_has_a_row_for_every_field_of_its_kind(kind: str) -> None:
    section = reference_of_kinds.text().partition(f"\n## {kind}\n")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| `")]
    fields = part_model(kind).model_fields
    assert {row[0].strip("| `") for row in rows} == fields.keys() - {"kind"}
    assert {row[0].strip("| `") for row in rows if row[2] == "must be given"} == {
        name for name, field in fields.items() if field.is_required() and name != "kind"
    }


def test_a_field_is_shown_with_its_values_its_default_and_its_docstring() -> None:
    section = reference_of_kinds.text().partition("\n## peak_memory\n")[2].partition("\n## ")[0]
    row = next(line for line in section.splitlines() if line.startswith("| `of`"))
    meaning = "The bytes that count. `allocated`: bytes of tensors. `reserved`: bytes that torch took from the device."
    assert row == f"| `of` | `allocated`, `reserved` | `allocated` | {meaning} |"


def test_text_in_a_table_cell_is_escaped_to_stay_in_one_line_and_one_column() -> None:
    assert page_tables.table(("a",), [("one\n  |two|",)]).splitlines() == ["| a |", "| --- |", "| one \\|two\\| |"]
