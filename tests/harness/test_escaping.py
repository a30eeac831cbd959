"""One function takes the power from what a terminal or a CI system would obey."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from obeyed import HOSTILE, obeyed

from harness.errors import HarnessError, escaped, escaped_json, escaped_lines

TEXTS = st.text(st.one_of(st.sampled_from("#[:-+~^ vso\n\r\x1b\x9b\u202e\u2028\ud800\\"), st.characters()))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a line of text: 3 ± 1 µs, “naïve”, 模型", "a line of text: 3 ± 1 µs, “naïve”, 模型"),
        ("a\nb\rc\td", r"a\nb\rc\td"),
        ("a\x0bb\x0cc\x85d\u2028e\u2029f", r"a\x0bb\x0cc\x85d\u2028e\u2029f"),
        ("\x1b[31mred\x9b0m", r"\x1b[31mred\x9b0m"),
        ("a\u202eb\u2066c\u200bd\ufeffe\xadf", r"a\u202eb\u2066c\u200bd\ufeffe\xadf"),
        ("a\ud800b\U000e0041c\ue000d\xa0e", r"a\ud800b\U000e0041c\ue000d\xa0e"),
        ("::set-output name=a::b", r"\x3a:set-output name=a::b"),
        ("  ::error::a", r"  \x3a:error::a"),
        ("a::b", "a::b"),
        ("a ##[error]b", r"a #\x23[error]b"),
        ("##vso[task.complete]###[a", r"#\x23vso[task.complete]##\x23[a"),
        ("## a heading", "## a heading"),
        ("--- a group", r"\x2d-- a group"),
        ("+++ a group", r"\x2b++ a group"),
        ("[red]a[/red] C:\\new", "[red]a[/red] C:\\new"),
    ],
)
def test_control_characters_are_shown_in_escaped_form(text: str, shown: str) -> None:
    assert escaped(text) == shown


@given(TEXTS)
def test_escaped_text_contains_no_control_characters_and_escaping_is_idempotent(text: str) -> None:
    shown = escaped(text)
    assert obeyed(shown) == []
    assert escaped(shown) == shown


@given(TEXTS)
def test_escaping_several_lines_keeps_the_line_breaks(text: str) -> None:
    assert obeyed(escaped_lines(text)) == []
    assert escaped_lines(text).count("\n") == text.count("\n")


@given(st.recursive(TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner)))
def test_escaped_json_keeps_its_value_and_contains_no_active_control_sequence(value: object) -> None:
    shown = escaped_json(json.dumps(value, ensure_ascii=False, indent=2))
    assert json.loads(shown) == value
    assert obeyed(shown) == []


def test_an_error_with_hostile_quotes_is_one_escaped_line() -> None:
    error = HarnessError("a rule", where=HOSTILE, got=HOSTILE, remedy=HOSTILE)
    assert "\n" not in str(error)
    assert obeyed(str(error)) == []
