"""Images written small: what is drawn stays, what nobody sees goes."""

from __future__ import annotations

import re

import pytest

from harness.report.charts.compact import ID, UNITS, Scale, compact

LINE = "fill: none; stroke: #010201; stroke-width: 1.5; stroke-linecap: square"
MARK = "fill: #010202; stroke: #010202"


def image(drawn: str, defs: str = "") -> str:
    return (
        '<svg xmlns:xlink="http://www.w3.org/1999/xlink" width="30pt" height="15pt" viewBox="0 0 30 15" '
        f'xmlns="http://www.w3.org/2000/svg"><metadata>2026</metadata><g id="figure_1">{drawn}</g>'
        f"<defs>{defs}</defs></svg>"
    )


def body(drawn: str, defs: str = "") -> str:
    """What is drawn, without the definitions before it."""
    return compact(image(drawn, defs))[1].partition("</defs>")[2]


def path(d: str, style: str = LINE) -> str:
    return f'<g id="line2d_1"><path d="{d}" clip-path="url(#p1)" style="{style}"/></g>'


def test_lengths_in_a_compacted_plot_are_integers_with_two_units_per_css_pixel() -> None:
    box, _, looks = compact(image(path("M 0 0 L 3 6")))
    assert box == "0 0 80 40"
    assert round(72 / 96 * 2 * UNITS) == 4  # a CSS pixel is 72/96 of a point
    assert list(looks.values()) == ["fill:none;stroke:#010201;stroke-width:4;stroke-linecap:square"]


def test_a_compacted_path_uses_relative_steps_and_merges_straight_segments() -> None:
    assert "d='M0 0l24 48 8-16'" in body(path("M 0 0 L 3 6 L 6 12 L 9 18 L 12 12"))


def test_compacting_a_plot_keeps_a_point_where_a_straight_line_reverses() -> None:
    assert "d='M0 0l0 24 0-16'" in body(path("M 0 0 L 0 9 L 0 3"))


def test_compacting_keeps_closed_shapes_closed_and_new_starts_absolute() -> None:
    assert "d='M0 0l24 0 0 24zM3 3l8 0'" in body(path("M 0 0 L 9 0 L 9 9 z M 1 1 L 4 1"))


def test_compacted_svg_lines_of_equal_style_share_one_path_element() -> None:
    one = body(path("M 0 0 L 3 0") + path("M 0 3 L 3 3") + path("M 0 6 L 3 6", LINE.replace("1.5", "3")))
    assert re.findall(r" d='([^']*)'", one) == ["M0 0l8 0M0 8l8 0", "M0 16l8 0"]


def test_compacted_filled_shapes_of_equal_style_keep_separate_paths() -> None:
    filled = "fill: #010201; opacity: 0.2"
    assert body(path("M 0 0 L 3 0 L 3 3 z", filled) * 2).count("<path") == 2


def test_a_curve_drawn_in_two_styles_is_defined_once() -> None:
    zigzag = "M 0 0 " + " ".join(f"L {place} {place % 2 * 5}" for place in range(1, 40))
    markup = compact(image(path(zigzag) + path(zigzag, LINE.replace("#010201", "#010202"))))[1]
    assert markup.count(" d='") == 1
    assert markup.count(f"href='#{ID}") == 2


MARKS = {
    "square": ("M -1 1 L 1 1 L 1 -1 L -1 -1 z", "M24 19l6 0 0-6-6 0z"),
    "round": ("M 0 1.5 C 0.4 1.5 0.8 1.3 1.1 1.1 z", "M27 16h0"),
}


@pytest.mark.parametrize("name", list(MARKS))
def test_a_plot_mark_keeps_its_position_when_compacted(name: str) -> None:
    shape, drawn = MARKS[name]
    use = f'<use xlink:href="#m1" x="10" y="6" style="{MARK}"/>'
    assert f"d='{drawn}'" in body(f'<defs><path id="m1" d="{shape}" style="stroke: #010202"/></defs><g>{use}</g>')


def test_a_round_plot_mark_is_compacted_to_a_dot_of_its_width() -> None:
    use = f'<use xlink:href="#m1" x="10" y="6" style="{MARK}"/>'
    looks = compact(image(f'<defs><path id="m1" d="{MARKS["round"][0]}"/></defs>{use}'))[2]
    assert list(looks.values()) == [f"fill:none;stroke:#010202;stroke-width:{4 * UNITS:.3g};stroke-linecap:round"]


def test_plot_text_is_above_lines_and_escaped() -> None:
    place = 'x="3" y="3" transform="rotate(-0 3 3)"'
    letters = f'<text style="font-size: 9px; text-anchor: end" {place}>a &lt;b&gt; &amp; "c"</text>'
    drawn = body(letters + path("M 0 0 L 3 0"))
    assert drawn.index("<path") < drawn.index("<text")
    assert """x='8' y='8'>a &lt;b&gt; &amp; "c"</text>""" in drawn


def test_vertical_plot_text_stays_rotated_when_compacted() -> None:
    letters = '<text style="font-size: 9px" x="3" y="6" transform="rotate(-90 3 6)">loss</text>'
    assert "transform='rotate(-90 8 16)'" in body(letters)


def test_clipped_lines_stay_clipped_when_compacted() -> None:
    clip = (
        '<clipPath id="p1"><rect x="3" y="3" width="9" height="6"/></clipPath><clipPath id="unused"><rect/></clipPath>'
    )
    markup = compact(image(path("M 0 0 L 3 0"), clip))[1]
    assert f"<clipPath id='{ID}0'><rect x='8' y='8' width='24' height='16'/></clipPath>" in markup
    assert f"clip-path='url(#{ID}0)'" in markup
    assert markup.count("<clipPath") == 1


def test_compacting_a_plot_removes_the_date() -> None:
    assert "2026" not in compact(image(path("M 0 0 L 3 0")))[1]


def test_elements_read_by_the_script_keep_their_names() -> None:
    quoted = '<g id="series:a &quot;b&quot; &lt;c&gt; it&apos;s"><path d="M 0 0 L 3 6" style="fill: none"/></g>'
    bound = '<g id="mark:bound"><path d="M 0 3 L 3 3" style="fill: none"/></g>'
    tick = '<g id="xtick_1"><g id="text_1"><text style="font-size: 9px" x="3" y="3">7</text></g></g>'
    drawn = body(quoted + bound + tick)
    assert re.search(r"data-s='a \"b\" &lt;c&gt; it&#39;s' [^>]*d='M0 0l8 16'", drawn)
    assert re.search(r"data-n='bound' [^>]*d='M0 8l8 0'", drawn)
    assert re.search(r"<text data-t='' [^>]*>7</text>", drawn)
    assert drawn.count("data-t") == 1


def test_the_axis_scale_is_stored_at_the_nearest_clipping_rectangle() -> None:
    clips = '<clipPath id="p1"><rect x="3" y="3" width="9" height="6"/></clipPath>'
    clips += '<clipPath id="p2"><rect x="3" y="12" width="9" height="6"/></clipPath>'
    below = path("M 0 0 L 3 0").replace("#p1", "#p2")
    scales = [Scale(3.1, 11.9, {"data-x": "0 9", "data-l": "it's"}), Scale(3.0, 3.0, {"data-x": "0 5"})]
    defined = compact(image(path("M 0 0 L 3 0") + below, clips), scales)[1]
    assert re.findall(r"y='(\d+)'[^>]* data-x='([^']*)'", defined) == [("8", "0 5"), ("32", "0 9")]
    assert "data-l='it&#39;s'" in defined
