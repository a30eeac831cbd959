"""Prose by rule: pages end their lines at 100 columns and use the field's words, each the same one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import write_site

ROOT = Path(__file__).parents[2]
WIDEST = 100
# A word of the house, as a pattern, and what to write.
REPLACEMENTS = {
    r"tells?|told": "report, record, print",
    r"beside": "next to, with",
    r"nobody|whoever": "name the actor",
    r"mend(s|ed|ing)?": "fix",
    r"(goes|go|going|went|gone) on with": "resume",
    r"strangers?": "user code, untrusted code",
    r"is no (?!longer\b|more\b)[a-z]+": "is not a",
    r"other than": "different from",
    r"in (the )?place of": "instead of",
    r"for want of": "without",
}
WRITTEN = [page for page in write_site.sources(ROOT) if not page.startswith("docs/reference/")]
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def prose(text: str) -> list[str]:
    """Return the lines without blocks of code and without what stands in backticks."""
    return re.sub(r"`[^`\n]*`", "", FENCED.sub("", text)).splitlines()


def complaints(text: str) -> list[str]:
    """Return what a page has against the rules, a line each. Rows of tables, links and comments may be longer."""
    wide = [
        line
        for line in FENCED.sub("", text).splitlines()
        if len(line) > WIDEST and not line.startswith(("|", "<!--")) and "](" not in line
    ]
    words = [
        f"{found[0]}: write {instead}"
        for line in prose(text)
        for word, instead in REPLACEMENTS.items()
        for found in re.finditer(rf"\b({word})\b", line, re.IGNORECASE)
    ]
    return [*(f"more than {WIDEST} columns: {line}" for line in wide), *words]


@pytest.mark.parametrize("page", WRITTEN)
def test_a_page_follows_the_prose_rules(page: str) -> None:
    assert complaints((ROOT / page).read_text(encoding="utf-8")) == []


def of_fragment(text: str) -> list[str]:
    """Return what a line of the next release has against the rules."""
    lines = text.strip().splitlines()
    count = [] if 1 <= len(lines) <= 2 else [f"{len(lines)} lines: write one or two"]
    return [*count, *complaints("\n  ".join(lines))]


def test_a_changelog_fragment_describes_its_change_in_one_or_two_lines() -> None:
    fragments = (ROOT / "changes").glob("*.*.md")
    assert {path.name: found for path in fragments if (found := of_fragment(path.read_text(encoding="utf-8")))} == {}
    assert of_fragment("Fixed: a step\nis read.\n") == []
    assert [of_fragment(text)[0][:7] for text in ("\n", "one\ntwo\nthree\n")] == ["0 lines", "3 lines"]


def test_the_prose_check_finds_all_written_pages() -> None:
    assert len(WRITTEN) >= 36


def test_each_broken_prose_rule_is_named_in_the_complaint() -> None:
    text = "It is told beside `nobody`.\n```\nbeside\n```\n" + "word " * 21 + "\n| " + "cell " * 30 + "|\n"
    assert [each.partition(":")[0] for each in complaints(text)] == ["more than 100 columns", "told", "beside"]


# What ruff's D401 takes for a verb and is none. `tools/museum`, examples and tests are still to be written so.
NO_VERBS = {
    *("Whether", "What", "As", "By", "Of", "That", "Those", "Which", "How", "Where", "When", "If", "In", "From", "For"),
    *("Each", "Every", "Also"),
}
WITH_VERBS = ("harness", "reference_impl", "benchmarks", "tools")


def without_verb(source: str) -> list[str]:
    """Return the first lines of docstrings of functions that begin with none."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    texts = [text.splitlines()[0] for node in functions if (text := ast.get_docstring(node))]
    return [text for text in texts if text.split()[0].strip("`,:") in NO_VERBS]


@pytest.mark.parametrize("folder", WITH_VERBS)
def test_docstrings_of_functions_begin_with_a_verb(folder: str) -> None:
    files = [path for path in sorted((ROOT / folder).rglob("*.py")) if path.parent.name != "museum"]
    assert len(files) > 10
    found = {str(path.relative_to(ROOT)): without_verb(path.read_text(encoding="utf-8")) for path in files}
    assert {file: texts for file, texts in found.items() if texts} == {}


def test_a_docstring_without_a_verb_is_found() -> None:
    texts = ("Whether it is.", "Return it.")
    source = "\n".join(f'def f():\n    """{text}"""' for text in texts)
    assert without_verb(source) == ["Whether it is."]
