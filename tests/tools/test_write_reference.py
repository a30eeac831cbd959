"""The pages of docs/reference/ are what their tables say, and name all that a reader may look up."""

from __future__ import annotations

import re
from pathlib import Path

import page_tables
import pytest
import reference_of_kinds
import write_reference
import write_site

from harness.contract.schema import part_model
from harness.kinds import BUILT_IN

FILLED = {Path(page).name for page in write_site.FILLED}
WRITTEN = sorted(path.name for path in write_reference.FOLDER.iterdir() if path.name not in FILLED)


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return write_reference.pages()


@pytest.mark.parametrize("name", WRITTEN)
def test_every_generated_reference_page_is_up_to_date(name: str, pages: dict[str, str]) -> None:
    written = (write_reference.FOLDER / name).read_text(encoding="utf-8")
    assert written == pages.get(name), "run tools/docs/write_reference.py"


def test_the_skill_file_is_the_page_for_programs() -> None:
    text = write_reference.skill()
    assert write_reference.SKILL.read_text(encoding="utf-8") == text, "run tools/docs/write_reference.py"
    links = re.findall(r"\]\(([^)#]+)", text)
    assert links
    assert all((write_reference.SKILL.parent / each).exists() for each in links)


def test_exactly_the_generated_pages_are_in_the_reference_folder(pages: dict[str, str]) -> None:
    assert sorted(pages) == WRITTEN


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
