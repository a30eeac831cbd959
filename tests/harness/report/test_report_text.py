from __future__ import annotations

import math

import pytest

from harness.judging.verdict import Figure
from harness.report import text


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (True, "yes"),
        (12345, "12,345"),
        (0.1, "0.1"),
        (1e-7, "1e-7"),
        (1.0, "1"),
        (1e6, "1,000,000"),
        (math.nan, "NaN"),
        (math.inf, "∞"),
        (-math.inf, "−∞"),
        (None, "–"),
        ("sm_90a", "sm_90a"),
    ],
)
def test_numbers_are_printed_as_a_person_would_write_them(value: object, shown: str) -> None:
    assert text.number(value) == shown


def test_a_figure_is_printed_with_its_unit() -> None:
    assert text.figure(Figure(value=1.25, unit="ms")) == "1.25 ms"


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ("needs CUDA", "Needs CUDA"),
        ("gradient_match: differs", "gradient_match: differs"),
        ("sm_90 is missing", "sm_90 is missing"),
        ("100 steps", "100 steps"),
        ("", ""),
    ],
)
def test_a_sentence_starts_with_a_capital_letter_unless_it_starts_with_a_name(message: str, sentence: str) -> None:
    assert text.sentence(message) == sentence


def test_names_of_figures_are_printed_as_words() -> None:
    assert text.words("capture.first_differing_step") == "capture: first differing step"
    assert text.words("speed.mean_ratio") == "speed: trimmed mean ratio"  # the judge leaves out the outermost processes
    assert text.words("generous_mean_ratio") == "trimmed mean ratio in the candidate's favour"


def test_control_characters_and_direction_marks_become_visible() -> None:
    assert text.clean("a\x00b\x1b[31mc\u202ed\ud800e\ufffef") == r"a\x00b\x1b[31mc\u202ed\ud800e\ufffef"


def test_line_ends_and_tabs_stay_in_prose_and_become_spaces_in_a_line() -> None:
    assert text.clean("a\n\tb") == "a\n\tb"
    assert text.line("a\r\n\tb") == "a b"


def test_a_shortened_text_keeps_both_ends_and_states_how_much_is_left_out() -> None:
    shown = text.clean("a" * 500 + "b" * 500, 100)
    assert shown == "a" * 75 + " … (900 characters left out) … " + "b" * 25


def test_a_text_is_cut_between_words() -> None:
    words = [f"word{number}" for number in range(300)]
    for limit in range(60, 400):
        first, note, last = text.clean(" ".join(words), limit).split(" … ")
        first_words, last_words = first.split(), last.split()
        assert (first_words, last_words) == (words[: len(first_words)], words[-len(last_words) :])
        assert note == f"({len(' '.join(words)) - len(first) - len(last):,} characters left out)"


def test_a_long_line_is_shortened() -> None:
    assert len(text.line("x y " * 25_000, 200)) < 260


@pytest.mark.parametrize("hostile", ["", "___", "\u202e", "$x$" * 100, "日本語", "a\nb"])
def test_a_label_is_never_empty_and_has_only_characters_of_the_font(hostile: str) -> None:
    label = text.label(hostile)
    assert label
    assert not label.startswith("_")
    assert len(label) <= 36
    assert all(" " <= sign <= "ÿ" for sign in label)


@pytest.mark.parametrize(
    ("count", "shown"), [(10, "10 B"), (2048, "2 KiB"), (3 * 2**20, "3 MiB"), (5 * 2**30, "5 GiB")]
)
def test_byte_sizes_are_printed_in_binary_units(count: int, shown: str) -> None:
    assert text.size(count) == shown


def test_a_unit_that_repeats_the_name_of_its_figure_is_left_out() -> None:
    replays = Figure(value=0, unit="replays")
    assert text.rows({"replays": replays, "steps_run": Figure(value=40, unit="steps")}) == [
        ("replays", "0"),
        ("steps run", "40"),
    ]
    assert text.rows({"captures": replays}) == [("captures", "0 replays")]
