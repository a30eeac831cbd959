from __future__ import annotations

import itertools
import re
import time
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import report_views as made
from report_views import CONTRACT, arm, contract, full_view, loss_curve, small_view, verdict, view_of

from harness.evidence import model
from harness.judge.verdict import Figure, Status
from harness.report.html import render
from harness.report.view import RunView

VOID = {"meta", "link", "img", "br"}


class Page(HTMLParser):
    """What a browser would read: tags in order, attributes, text; and whether every tag closes in its place."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.plots = re.findall(r"<svg .*?</svg>", html, re.DOTALL)
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def words(self) -> str:
        return " ".join(" ".join(self.text).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def full() -> tuple[str, Page]:
    html = render(full_view())
    return html, Page(html)


def images(page: Page) -> list[str]:
    return page.plots


def parsed(svg: str) -> ET.Element:
    """The image's root element; raises when it is not sound XML."""
    return ET.fromstring(svg)  # noqa: S314 - our own output


# --- what the page says ------------------------------------------------------------------------------------


def test_the_count_line_and_the_gate_stand_at_the_top(full: tuple[str, Page]) -> None:
    words = full[1].words()
    assert "7 planned · 3 held · 1 violated · 1 undecided · 1 not run · 1 errors" in words
    assert words.index("Judged as a gate") < words.index("Not decided") < words.index("F-GRAPH-BWD-001")


def test_commit_gpu_driver_and_versions_stand_at_the_top(full: tuple[str, Page]) -> None:
    words = full[1].words()
    head = words[: words.index("Not decided")]
    for fact in ("4afac30f0e0c2a1d", "NVIDIA H200", "580.65.06", "2.11.0+cu130", "3.6.0"):
        assert fact in head


def test_what_is_not_decided_says_what_would_decide_it(full: tuple[str, Page]) -> None:
    assert (
        "Needs CUDA: this machine has no CUDA device To decide: run it on a machine with a CUDA device."
        in full[1].words()
    )


def test_a_card_shows_sentence_figures_denominators_reason_and_causes(full: tuple[str, Page]) -> None:
    words = full[1].words()
    card = words[words.index("The losses differ from step 12 on") :]
    assert "A batch that was rebound instead of copied" in card
    assert "FAIL · differs : Equality in bits was demanded, and a value differs." in card
    assert "Figures first differing step 12 max abs difference 0.0321" in card
    assert "Out of steps 100" in card
    assert "Last fire drill: stale_batch: killed; frozen_learning_rate: SURVIVED" in card


def test_broken_and_violated_units_come_before_held_ones(full: tuple[str, Page]) -> None:
    cards = [str(item["class"]) for item in full[1].all("article") if str(item.get("class")).startswith("card")]
    assert cards == [
        "card error",
        "card violated",
        "card undecided",
        "card not-run",
        "card held",
        "card held",
        "card held",
    ]


def test_a_card_links_to_the_evidence_of_its_own_kind(full: tuple[str, Page]) -> None:
    cards = re.findall(r'<h3 id="[^"]+-title">.*?</span> (\S+) <span[^>]*>([^<]+).*?</article>', full[0], re.DOTALL)
    links = re.findall(r'class="links">Evidence: (.*?)</p>', full[0])
    titles = [re.findall(r">([^<]+)</a>", found) for found in links]
    assert dict(zip(cards, titles, strict=True)) == {
        ("F-GRAPH-BWD-002", "qwen2-1.5b"): ["What broke", "Captured work", "Host syncs"],
        ("F-GRAPH-BWD-001", "tiny"): ["Trajectories"],
        ("C-PREWARM-001", "qwen2-1.5b"): ["JIT timeline"],
        ("F-PTX-001", "tiny"): ["PTX targets"],
        ("F-GRAPH-BWD-001", "qwen2-1.5b"): ["Trajectories"],
        ("CGB-EQ-001", "qwen2-1.5b"): ["Gradients"],
        ("F-GRAPH-BWD-003", "qwen2-1.5b"): ["Throughput"],
    }


def test_a_long_list_of_figures_is_folded_after_eight() -> None:
    figures = {f"figure_{place}": Figure(value=place) for place in range(11)}
    html = render(small_view(verdicts=[verdict("F-GRAPH-BWD-001", figures=figures)]))
    before, _, after = html.partition("<summary>3 more figures</summary>")
    assert "figure 7" in before
    assert "figure 8" in after


def test_a_commit_is_quoted_short_with_its_changes() -> None:
    view = small_view(run={"environment": {"git": {"commit": "deb6570a964e" + "0" * 28 + "+changes"}}})
    assert "deb6570a964e+changes" in Page(render(view)).words()


def test_every_kind_of_evidence_has_its_section(full: tuple[str, Page]) -> None:
    headings = re.findall(r"<h2 id=\"[^\"]+\">([^<]+)</h2>", full[0])
    assert headings == [
        *(
            "Not decided",
            "Claims",
            "What broke",
            "Trajectories",
            "Gradients",
            "Throughput",
            "Captured work",
            "Host syncs",
        ),
        *("Device memory", "JIT timeline", "PTX targets", "Kernel accuracy", "Fire drill", "Environment"),
        "How to reproduce",
    ]


def test_sections_without_evidence_are_left_out() -> None:
    page = Page(render(view_of(Status.PASS)))
    assert re.findall(r"<h2 id=\"[^\"]+\">([^<]+)</h2>", render(view_of(Status.PASS))) == ["Claims"]
    assert page.plots == []


@pytest.mark.parametrize(
    "figure",
    [
        "graphed against ungraphed 100 12 0.03 99 0 1e-7 0.1",  # first differing step, largest, at step, …
        "2 1.388 43.5 60.3782 1 0.994047 16",  # a process: ratio, step times, A/A
        "sw_power_cap",
        "kernel 3,328 memset 141",
        "reference_impl/clip.py:41 aten._local_scalar_dense 168",
        "cross_entropy compile train 7.3",
        "sm_90a 46 no .target line 2",
        "SURVIVED F-GRAPH-BWD-001 frozen_learning_rate FAIL differs first_differing_step=1 PASS held would pass it",
        "versions.torch 2.11.0+cu130",
        "harness verify contracts/ --gate",
        "signal in the phase capture: SIGKILL",
    ],
)
def test_the_figures_of_a_section_stand_in_its_tables(full: tuple[str, Page], figure: str) -> None:
    assert figure in full[1].words()


def test_a_drill_is_marked_in_title_heading_and_banner() -> None:
    page = Page(render(made.drill_view()))
    words = page.words()
    assert words.startswith("FIRE DRILL · ")
    assert "The fault stale_batch was planted in this run on purpose." in words
    assert "Contract verification" not in words


def test_a_waived_unit_shows_its_waiver_and_does_not_count_as_violated() -> None:
    waiver = {"contract": CONTRACT["id"], "owner": "ada", "reason": "known", "expires": "2027-01-01"}
    words = Page(render(view_of(Status.PASS, Status.FAIL, waivers=[waiver]))).words()
    assert "Waived by ada until 2027-01-01: known" in words
    assert "0 violated · 0 undecided · 0 not run · 0 errors · 1 waived" in words


def test_a_narrowed_plan_is_told() -> None:
    words = Page(render(view_of(Status.PASS, narrowed={"claims": ["F-GRAPH-BWD-001"], "workloads": []}))).words()
    assert "Only a part of the contracts was planned: claims: F-GRAPH-BWD-001." in words


# --- what the page is ------------------------------------------------------------------------------------------


def test_every_tag_closes_in_its_place(full: tuple[str, Page]) -> None:
    assert full[1].open == []


def test_nothing_runs_and_nothing_is_requested(full: tuple[str, Page]) -> None:
    page = full[1]
    assert {"script", "iframe", "object", "embed", "form", "base"} & {tag for tag, _ in page.tags} == set()
    assert all(not name.startswith("on") and name != "style" for _, found in page.tags for name in found)
    sources = [str(found[name]) for _, found in page.tags for name in ("src", "href") if name in found]
    assert all(source.startswith(("data:", "#")) for source in sources)
    policy = next(
        found["content"] for found in page.all("meta") if found.get("http-equiv") == "Content-Security-Policy"
    )
    assert str(policy).startswith("default-src 'none'; style-src 'sha256-")


def test_every_link_inside_the_page_has_its_target_once(full: tuple[str, Page]) -> None:
    ids = [str(found["id"]) for _, found in full[1].tags if found.get("id")]
    assert len(ids) == len(set(ids))
    assert {str(found["href"])[1:] for found in full[1].all("a")} <= set(ids)


def test_headings_never_skip_a_level(full: tuple[str, Page]) -> None:
    levels = [int(tag[1]) for tag, _ in full[1].tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_images_have_words_and_are_sound_svg_without_outside_references(full: tuple[str, Page]) -> None:
    found = full[1].all("svg")
    assert len(found) == 7
    assert all(image["role"] == "img" and len(str(image["aria-label"])) > 30 for image in found)
    for svg in images(full[1]):
        assert parsed(svg).tag == "svg"
        assert re.findall(r"(?:href|url\()=?['\"(]?(?!#)(?:https?:|//|data:)", svg) == []
        assert "metadata" not in svg  # it would hold the date
        assert not re.search(r"#0102|#0101", svg)  # a placeholder of a colour


def test_no_character_of_an_image_can_end_its_attribute(full: tuple[str, Page]) -> None:
    for image in re.findall(r'src="([^"]*)"', full[0]):
        assert not set(image) & set('<>&"\n')


def test_the_same_run_gives_the_same_bytes() -> None:
    assert render(small_view()) == render(small_view())


def test_a_full_run_stays_below_400_kb(full: tuple[str, Page]) -> None:
    assert len(full[0].encode()) < 400_000


# --- ugly evidence ---------------------------------------------------------------------------------------------


def _with_losses(**losses: Any) -> RunView:
    run = model.RunEvidence("tiny-paired", "paired", {name: [arm(name, loss)] for name, loss in losses.items()})
    return small_view(evidence={run.run_id: run})


@pytest.mark.parametrize(
    "losses",
    [
        {"graphed": [], "ungraphed": []},
        {"graphed": [1.0], "ungraphed": []},
        {"graphed": [np.nan] * 3, "ungraphed": [np.nan] * 3},
        {"graphed": [1.0, np.inf], "ungraphed": [1.0, -np.inf]},
        {"graphed": [1e300, 1.0], "ungraphed": [-1e300, 1.0]},
        {"graphed": [5e-324], "ungraphed": [0.0]},
        {"graphed": [1.0] * 5, "ungraphed": [1.0] * 3},
        {"only": [1.0]},
    ],
)
def test_series_of_any_values_are_drawn(losses: dict[str, Any]) -> None:
    page = Page(render(_with_losses(**losses)))
    assert "Claims" in page.words()
    for svg in images(page):
        parsed(svg)


def test_a_nan_that_both_arms_have_is_counted() -> None:
    page = Page(render(_with_losses(ungraphed=[1.0, np.nan, 2.0], graphed=[1.0, np.nan, 2.0])))
    assert "graphed against ungraphed 3 – 0 – 1 – 0.1" in page.words()


def test_a_verdict_on_a_claim_that_the_contract_lost_still_has_its_card() -> None:
    view = small_view(verdicts=[verdict("GONE-001")])
    assert "This claim is not in the contract any more." in Page(render(view)).words()


def test_a_million_steps_render_in_five_seconds_and_keep_their_spike() -> None:
    curve = loss_curve(1_000_000)
    other = curve.copy()
    other[777_777] += 5.0
    view = _with_losses(ungraphed=curve, graphed=other)
    started = time.process_time()  # not the clock: another test may have the other core
    html = render(view)
    assert time.process_time() - started < 5
    assert "777,777" in html
    assert len(html) < 400_000


# --- hostile text ------------------------------------------------------------------------------------------------

HOSTILE = (
    '<script>alert(1)</script><img src=x onerror=alert(1)>"\'><b a="` ${{7*7}} $\\frac{1}{0}$ {{ x }} {% raw %} '
    "\x00\x07\x1b[31m\u202ereversed\u2066\ufffe ]]> --> &amp; %s %n \u0301\u0301"
)
# Values that the models restrict to a few words, and names that tie evidence to claims.
_FIXED = {
    "record",
    "mechanism",
    "per",
    "event",
    "detector",
    "cause",
    "probe",
    "status",
    "contract",
    "workload",
    "run_id",
}
_FIXED |= {"arm", "candidate", "baseline", "start", "runs"}


def poison(value: Any, text: str) -> Any:
    """The same structure with every free text replaced."""
    if isinstance(value, str):
        return text
    if isinstance(value, dict):
        return {key: item if key in _FIXED else poison(item, text) for key, item in value.items()}
    if isinstance(value, list):
        return [poison(item, text) for item in value]
    if hasattr(value, "model_copy"):
        fields = {name: getattr(value, name) for name in type(value).model_fields if name not in _FIXED}
        return value.model_copy(update={name: poison(item, text) for name, item in fields.items()})
    return value


def hostile_view(text: str) -> RunView:
    """The full run, with `text` in every field that a contract, a system, a worker or a machine may fill."""
    view = full_view()
    evidence = {
        run_id: replace(
            run,
            arms={name: [_hostile_arm(item, text) for item in items] for name, items in run.arms.items()} | {text: []},
            kernels=poison(run.kernels, text),
            prewarm=poison(run.prewarm, text),
            kernel_match=poison(run.kernel_match, text),
            telemetry=poison(run.telemetry, text),
            death=poison(run.death, text),
        )
        for run_id, run in view.evidence.items()
    }
    short = text[:3000].replace("\ud800", "") or " "
    claims = [
        dict(claim) | dict.fromkeys(("title", "why", "if_fails", "upstream"), short) for claim in CONTRACT["claims"]
    ]
    run = poison(dict(view.run), text) | {"units": view.run["units"], "fault": text}
    run |= {
        "environment": {text: text, "gpu": {"name": text}},
        "waivers": [{"claim": "F-GRAPH-BWD-001", "owner": text, "reason": text}],
    }
    verdicts = [_hostile_verdict(item, text) for item in view.verdicts]
    return replace(
        view,
        run=run,
        contracts=[contract(title=short, claims=claims)],
        verdicts=verdicts,
        evidence=evidence,
        drill=poison(view.drill, text),
    )


def _hostile_arm(item: model.ArmEvidence, text: str) -> model.ArmEvidence:
    return replace(
        item,
        start=item.start.model_copy(update={"facts": {text: text, "text_digest": text}}),
        gradients=poison(item.gradients, text),
        capture=poison(item.capture, text),
        syncs=poison(item.syncs, text),
    )


def _hostile_verdict(item: Any, text: str) -> Any:
    figures = {text: next(iter(item.figures.values()), None) or full_view().verdicts[1].figures["max_abs_difference"]}
    return item.model_copy(
        update={"message": text, "reason": text, "figures": figures, "denominators": {text: 3}, "mechanism": text}
    )


TEXTS = {
    "markup": HOSTILE,
    "surrogate": HOSTILE + "\ud800",
    "long": HOSTILE + "A" * 100_000,
    "dollars": "$" * 99,
    "empty": "",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_hostile_text_in_every_field_neither_runs_nor_breaks_nor_prevents_the_page(
    text: str, full: tuple[str, Page]
) -> None:
    html = render(hostile_view(text))
    page = Page(html)
    assert page.open == []
    # `i`, `b`, `script`: no tag appears that the friendly page does not have.
    assert {tag for tag, _ in page.tags} <= {tag for tag, _ in full[1].tags} | {"p", "code"}
    assert all(not name.startswith("on") for _, found in page.tags for name in found)
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", html)
    html.encode("utf-8")
    for svg in images(page):
        parsed(svg)


def test_100_kb_strings_do_not_swell_the_page() -> None:
    assert len(render(hostile_view("A" * 100_000)).encode()) < 800_000


@pytest.mark.parametrize("name", ["$", r"$\frac{$", r"$x^2$", "a$b$c"])
def test_dollars_in_a_label_are_letters_and_not_mathematics(name: str) -> None:
    [image] = images(Page(render(_with_losses(**{name: loss_curve(20)}))))
    # A label read as mathematics fails, or loses its dollars.
    assert name in [text.text for text in parsed(image).iter("text")]


def test_hostile_arm_names_are_drawn_as_plain_letters() -> None:
    loss = loss_curve(20)
    arms = {HOSTILE: loss, "_x": loss, "日本": loss, "graphed": loss + 0.01, "ungraphed": loss}
    page = Page(render(_with_losses(**arms)))
    assert len(images(page)) == 2
