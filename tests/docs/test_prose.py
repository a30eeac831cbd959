"""Prose by rule: fragments of the changelog, and docstrings of functions."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from judge_cases_tables import EVERYTHING
from prose_rules import house_words, too_wide
from syntax_trees import parsed

ROOT = Path(__file__).parents[2]


def of_fragment(text: str) -> list[str]:
    """Return what a line of the next release has against the rules."""
    lines = text.strip().splitlines()
    count = [] if 1 <= len(lines) <= 2 else [f"{len(lines)} lines: write one or two"]
    return [*count, *too_wide("\n  ".join(lines)), *house_words(text)]


def test_a_changelog_fragment_describes_its_change_in_one_or_two_lines() -> None:
    fragments = (ROOT / "changes").glob("*.*.md")
    assert {path.name: found for path in fragments if (found := of_fragment(path.read_text(encoding="utf-8")))} == {}
    assert of_fragment("Fixed: a step\nis read.\n") == []
    assert [of_fragment(text)[0][:7] for text in ("\n", "one\ntwo\nthree\n")] == ["0 lines", "3 lines"]


def test_names_of_judge_cases_have_plain_words() -> None:
    names = {case.name for cases in EVERYTHING.values() for case in cases}
    assert {name: found for name in sorted(names) if (found := house_words(name))} == {}


def test_each_broken_prose_rule_is_named_in_the_complaint() -> None:
    text = "It is told beside `nobody`.\n```\nbeside\n```\n" + "word " * 21 + "\n| " + "cell " * 30 + "|\n"
    assert [each.partition(":")[0] for each in too_wide(text) + house_words(text)] == [
        "more than 100 columns",
        "told",
        "beside",
    ]


# What ruff's D401 takes for a verb and is none. `tools/museum`, examples and tests are still to be written so.
NO_VERBS = {
    *("Whether", "What", "As", "By", "Of", "That", "Those", "Which", "How", "Where", "When", "If", "In", "From", "For"),
    *("Each", "Every", "Also"),
}
WITH_VERBS = ("harness", "reference_impl", "benchmarks", "tools")


def without_verb(source: str) -> list[str]:
    """Return the first lines of docstrings of functions that begin with none."""
    functions = [node for node in ast.walk(parsed(source)) if isinstance(node, ast.FunctionDef)]
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
