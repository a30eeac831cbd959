from __future__ import annotations

import base64
import hashlib
import itertools
import re
from dataclasses import replace

import pytest
import report_views as views
from evidence_builders import cuda_graph
from report_page import Page, images, parsed
from report_views import decided_by, full_view, small_view, verdict, view_of

from harness.judging.verdict import Demanded, Figure, Status
from harness.report.cards import MOST_ROWS
from harness.report.charts import svg
from harness.report.headline import headline
from harness.report.html import render
from harness.report.view import ReportView


@pytest.fixture(scope="module")
def full() -> tuple[str, Page]:
    html = render(full_view())
    return html, Page(html)


# --- the headline ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("view", "word", "style"),
    [
        (view_of(Status.PASS), "HELD", "held"),
        (view_of(Status.PASS, Status.NOT_RUN), "PARTLY DECIDED", "partly-decided"),
        (view_of(Status.PASS, Status.INCONCLUSIVE, gate=True), "PARTLY DECIDED", "partly-decided"),
        (
            view_of(Status.PASS, Status.FAIL, header=views.header(waivers=[views.waiver("w1")])),
            "HELD, 1 waived",
            "waived",
        ),
        (view_of(Status.PASS, altered=("a: changed",)), "ERROR", "error"),
        (view_of(Status.PASS, incomplete=("run",)), "ERROR", "error"),
    ],
    ids=["held", "partly", "closed gate", "waived", "altered", "incomplete"],
)
def test_heading_and_title_of_a_report_have_the_headline_word(view: ReportView, word: str, style: str) -> None:
    page = Page(render(view))
    [heading] = [item for item in page.all("p") if str(item.get("class")).startswith("headline")]
    assert heading["class"] == f"headline {style}"
    assert f"<title>{word} · cuda-graph-backward-v1</title>" in render(view)
    counted = [] if view.altered or view.incomplete else [view.count_line()]  # nothing was proven to count
    assert " ".join([word, *counted, headline(view).sentence]) in page.words()


def test_only_a_passing_headline_has_the_passing_colour() -> None:
    found = re.findall(r"(\.headline\.[^{}]+)\{ color: var\(--([a-z-]+)\)", _style())
    rules = {one.strip().removeprefix(".headline."): colour for names, colour in found for one in names.split(",")}
    assert rules == {
        "held": "held",
        "violated": "violated",
        "partly-decided": "undecided",
        "not-decided": "undecided",
        "held-separately": "undecided",
        "error": "error",
        "waived": "waived",
    }


def _style() -> str:
    html = render(view_of(Status.PASS))
    return html[html.index("<style>") : html.index("</style>")]


# --- what the page says ------------------------------------------------------------------------------------


def test_unit_counts_and_gate_are_at_the_top_of_the_report(full: tuple[str, Page]) -> None:
    words = full[1].words()
    assert "7 units · 3 held · 1 violated · 1 undecided · 1 not run · 1 error" in words
    assert words.index("Judged as a gate") < words.index("Claims verdict claim") < words.index("1 not run: why")


def test_commit_gpu_driver_and_versions_stand_at_the_top(full: tuple[str, Page]) -> None:
    words = full[1].words()
    head = words[: words.index("Claims verdict claim")]
    for fact in ("4afac30f0e0c", "NVIDIA H200", "580.65.06", "2.11.0+cu130", "3.6.0"):
        assert fact in head


def test_the_report_states_what_would_decide_an_undecided_unit(full: tuple[str, Page]) -> None:
    assert (
        "Needs CUDA: this machine has no CUDA device To decide: run it on a machine with a CUDA device."
        in full[1].words()
    )


def test_a_card_shows_sentence_figures_denominators_reason_and_causes(full: tuple[str, Page]) -> None:
    words = full[1].words()
    card = words[words.index("The losses differ from step 12 on") :]
    assert "A batch that was rebound instead of copied" in card
    assert "differs : The claim demands equal bits, and a value differs." in card
    assert "Figures first differing step 12 max abs difference 0.0321" in card
    assert "Out of steps 100" in card
    assert "Last fire drill: stale_batch: killed; frozen_learning_rate: SURVIVED" in card


def test_report_cards_list_errors_and_violations_first_and_unrun_units_last(full: tuple[str, Page]) -> None:
    cards = [str(item["class"]) for item in full[1].all("article") if str(item.get("class")).startswith("card")]
    assert cards == [
        "card error",
        "card violated",
        "card undecided",
        "card held",
        "card held",
        "card held",
        "card not-run",
    ]


def test_a_report_card_links_to_the_evidence_of_its_kind(full: tuple[str, Page]) -> None:
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


def test_the_report_shows_a_short_commit_and_its_uncommitted_changes() -> None:
    view = small_view(header=views.header(environment={"git": {"commit": "deb6570a964e" + "0" * 28 + "+changes"}}))
    assert "harness deb6570a964e with uncommitted changes" in Page(render(view)).words()


def test_every_kind_of_evidence_has_its_section(full: tuple[str, Page]) -> None:
    headings = re.findall(r"<h2 id=\"[^\"]+\">([^<]+)</h2>", full[0])
    assert headings == [
        *(
            "Claims",
            "What broke",
            "Trajectories",
            "Gradients",
            "Throughput",
            "Captured work",
            "Host syncs",
        ),
        *("Device memory", "JIT timeline", "PTX targets", "Kernel accuracy", "Where the time went"),
        *("Environment", "How to reproduce"),
    ]


def test_sections_without_evidence_are_left_out() -> None:
    page = Page(render(view_of(Status.PASS)))
    assert re.findall(r"<h2 id=\"[^\"]+\">([^<]+)</h2>", render(view_of(Status.PASS))) == [
        "Claims",
        "Environment",
        "How to reproduce",
    ]
    assert page.plots == []


@pytest.mark.parametrize(
    "figure",
    [
        "graphed against ungraphed 100 12 0.03 99 0 1e-7 0.1",  # first differing step, largest, at step, …
        "2 1.37255 43.5 60.3782 1 1.01953 16",  # a process: ratio, step times, A/A
        "sw_power_cap",
        "kernel 3,328 memset 141",
        "reference_impl/clip.py:41 aten._local_scalar_dense 168",
        "cross_entropy compile train 7.3",
        "sm_90a 46 no .target line 2",
        "versions.torch 2.11.0+cu130",
        "harness verify contracts/ --gate",
        "signal in the phase capture: SIGKILL",
    ],
)
def test_the_report_tables_contain_the_figures_of_each_section(full: tuple[str, Page], figure: str) -> None:
    assert figure in full[1].words()


def test_a_drill_is_marked_in_title_heading_and_banner() -> None:
    page = Page(render(views.drill_view()))
    words = page.words()
    assert words.startswith("FIRE DRILL · ")
    assert "The fault stale_batch was planted in this run on purpose" in words
    assert "Verification" not in words


def test_the_report_of_a_drill_begins_with_its_faults() -> None:
    words = Page(render(views.whole_drill_view(killed=[True, False]))).words()
    assert "VIOLATED 1 unit · 1 held 1 of 2 planted faults survived: those claims prove nothing." in words
    assert "2 faults planted on purpose, 1 survived; the units are the controls, run without a fault." in words
    assert words.index("Faults by claims 1 of 2 planned faults killed, 1 survived, 0 not run.") < words.index(
        " Claims "
    )


def test_undecided_units_with_one_reason_are_listed_once_by_claim() -> None:
    view = view_of(Status.NOT_RUN, Status.NOT_RUN)
    alike = [each.model_copy(update={"reason": "needs_cuda", "message": "no device"}) for each in view.verdicts]
    words = Page(render(replace(view, verdicts=alike))).words()
    assert (
        "No device To decide: run it on a machine with a CUDA device. 2 units, by claim: F-GRAPH-BWD-001 Cards" in words
    )


def test_a_waived_unit_shows_its_waiver_and_does_not_count_as_violated() -> None:
    signed = views.header(waivers=[views.waiver("w1")])
    words = Page(render(view_of(Status.PASS, Status.FAIL, header=signed))).words()
    assert "Waived by ada until 2027-01-01: known" in words
    assert "2 units · 1 held · 1 waived" in words


def test_a_large_page_where_everything_held_has_no_empty_table() -> None:
    """A large page leaves out rows of units that held, so the table would have a header and no rows."""
    view = view_of(*[Status.PASS] * (MOST_ROWS + 1))
    different = [
        unit.model_copy(update={"denominators": {"steps": 100 + at}, **decided_by(steps_apart(at))})
        for at, unit in enumerate(view.verdicts)
    ]
    page = render(replace(view, verdicts=different))
    assert '<table class="claims">' not in page
    assert f"{views.CONTRACT['id']} {MOST_ROWS + 1} of {MOST_ROWS + 1} units held." in Page(page).words()
    one_failed = [different[0].model_copy(update={"status": Status.FAIL}), *different[1:]]
    assert '<table class="claims">' in render(replace(view, verdicts=one_failed))


def steps_apart(number: int) -> Demanded:
    return Demanded("steps_differing", 0, "none", 0, "steps differ", of=100 + number)


def test_an_arm_whose_capture_failed_is_never_drawn_as_captured() -> None:
    """The steps of this arm ran uncaptured, so equal curves show nothing about a captured step."""
    of_small = views.small_view()
    run = of_small.evidence["tiny-paired"]
    failed = cuda_graph(captured=False, failure="a host sync", captures=0, replays=0, nodes=[], device_work=None)
    arms = {**run.arms, "graphed": [replace(run.arms["graphed"][0], capture=failed)]}
    never = {"reason": "candidate_not_captured", "mechanism": "cuda_graph"}
    unit = views.verdict("F-GRAPH-BWD-001", status=Status.INCONCLUSIVE, **never)
    page = render(replace(of_small, verdicts=[unit], evidence={run.run_id: replace(run, arms=arms)}))
    words = Page(page).words()
    assert words.count("The capture of arm graphed failed: its steps ran uncaptured.") == 2  # one for each section
    assert "Loss of graphed (capture failed) over ungraphed" in words
    assert "arm graphed (capture step; its capture failed) with the baseline, arm ungraphed" in words
    assert page.count("graphed (capture failed) (candidate)") >= 1
    assert "CUDA graph" not in words


def test_the_report_states_that_the_plan_was_narrowed() -> None:
    narrowed = views.header(narrowed={"claims": ["F-GRAPH-BWD-001"], "workloads": []})
    words = Page(render(view_of(Status.PASS, header=narrowed))).words()
    assert "Only a part of the claims was asked for: claims: F-GRAPH-BWD-001." in words


# --- what the page is ------------------------------------------------------------------------------------------


def test_every_html_tag_of_the_report_is_closed(full: tuple[str, Page]) -> None:
    assert full[1].open == []


def test_the_report_allows_one_script_and_no_requests(full: tuple[str, Page]) -> None:
    page = full[1]
    assert {"iframe", "object", "embed", "form", "base"} & {tag for tag, _ in page.tags} == set()
    assert page.all("script") == [{}]
    assert all(not name.startswith("on") and name != "style" for _, found in page.tags for name in found)
    sources = [str(found[name]) for _, found in page.tags for name in ("src", "href") if name in found]
    assert all(source.startswith(("data:", "#")) for source in sources)
    policy = next(
        found["content"] for found in page.all("meta") if found.get("http-equiv") == "Content-Security-Policy"
    )
    style, script = (re.search(f"<{tag}>(.*?)</{tag}>", full[0], re.DOTALL) for tag in ("style", "script"))
    assert style is not None
    assert script is not None
    assert str(policy).startswith(
        f"default-src 'none'; style-src 'sha256-{digest(style[1])}'; script-src 'sha256-{digest(script[1])}'; "
    )


def digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def test_every_link_inside_the_page_has_its_target_once(full: tuple[str, Page]) -> None:
    ids = [str(found["id"]) for _, found in full[1].tags if found.get("id")]
    assert len(ids) == len(set(ids))
    assert {str(found["href"])[1:] for found in full[1].all("a")} <= set(ids)


def test_headings_never_skip_a_level(full: tuple[str, Page]) -> None:
    levels = [int(tag[1]) for tag, _ in full[1].tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_images_have_words_and_are_sound_svg_without_outside_references(full: tuple[str, Page]) -> None:
    drawn = full[1].all("svg")
    assert {each.get("aria-hidden") for each in drawn if each.get("class") == "spark"} == {"true"}
    found = [each for each in drawn if each.get("class") != "spark"]
    assert len(found) == 7
    assert all(image["role"] == "img" and len(str(image["aria-label"])) > 30 for image in found)
    for drawing in images(full[1]):
        assert parsed(drawing).tag == "svg"
        assert re.findall(r"(?:href|url\()=?['\"(]?(?!#)(?:https?:|//|data:)", drawing) == []
        assert "metadata" not in drawing  # it would hold the date
        assert not re.search(r"#0102|#0101", drawing)  # a placeholder of a colour


def test_rendering_the_same_run_twice_gives_equal_bytes() -> None:
    page = render(small_view())
    svg.forget()
    assert render(small_view()) == page


def test_the_page_of_a_run_with_every_kind_of_evidence_stays_below_400_kb(full: tuple[str, Page]) -> None:
    assert len(full[0].encode()) < 400_000
