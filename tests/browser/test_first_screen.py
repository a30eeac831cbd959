"""What a reviewer sees of a page on a laptop before scrolling, without JavaScript."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chromium import Browser
from first_screen import first_screen
from published_pages import REPORTS, PageOf
from report_in_browser import Variant, show
from report_views import decided_by, drilled, full_view, header, ratio_of, verdict

from harness.judging.verdict import Demanded, Figure, Status, Verdict
from harness.report.html import render
from harness.report.view import ReportView

TRAINER = "reference_impl.system:QLoRASystem"
RATIO = {"figures": {"mean_ratio": Figure(value=1.5312, unit="x")}, **ratio_of(1.5312, -0.0421, 0.0487)}


def made(*statuses: Status, purpose: str = "verify") -> ReportView:
    """Two claims, a ratio and a trajectory, of which the second has this status beside a third one's."""
    full = full_view()
    environment = {
        "git": {"commit": "4afac30f0e0c" + "0" * 28},
        "trainers": {TRAINER: {"commit": "9b1c2d3e4f50" + "0" * 28 + "+changes"}},
        "gpu": {"name": "NVIDIA H200"},
    }
    verdicts = [
        verdict("F-GRAPH-BWD-003", "qwen2-1.5b", denominators={"processes": 8}, **RATIO),
        *(_trajectory(workload, status) for workload, status in zip(("qwen2-1.5b", "tiny"), statuses, strict=True)),
    ]
    units = [unit.model_dump() for unit in full.header.units if not unit.claim.startswith(("C-", "F-PTX"))]
    head = header(environment=environment, units=units, runs=full.header.runs, purpose=purpose)
    drill = drilled(killed=[True, True, True])
    return replace(full, header=head, verdicts=verdicts, drill=drill, gate=False)


def _trajectory(workload: str, status: Status) -> Verdict:
    """The claim about trajectories; where it fails seven steps differ, where it is not decided a GPU was shared."""
    how: dict[Status, dict[str, Any]] = {
        Status.PASS: _differing(0),
        Status.FAIL: _differing(7) | {"reason": "differs", "message": "seven steps differ"},
        Status.INCONCLUSIVE: {"reason": "limits_exceeded", "message": "the GPU was shared"},
        Status.NOT_RUN: {"reason": "needs_cuda", "message": "this machine has no GPU"},
    }
    return verdict("F-GRAPH-BWD-001", workload, status, denominators={"steps": 100}, **how[status])


def _differing(number: int) -> dict[str, Any]:
    demanded = Demanded("steps_differing", number, "none", 0, "steps differ", of=100)
    return {"figures": {"steps_differing": Figure(value=number, unit="steps")}, **decided_by(demanded)}


IDENTITY = (
    f"trainer {TRAINER}; no author was recorded",
    "9b1c2d3e4f50 with uncommitted changes; harness 4afac30f0e0c",
    "NVIDIA H200",
    "A unit is one claim on one workload (model, batch, length, steps).",
)
HEAD = (
    *IDENTITY,
    "1.531x, at least 1.1x trimmed mean ratio",
    "1.489x to 1.580x: 99 % one-sided bounds over 8 processes",
    "Proven: 3 of 3 faults killed (planted on purpose, and noticed)",
    "with the baseline, arm ungraphed (capture none)",
    "4 × 512 tokens, 100 steps",
    "Loss of graphed over ungraphed (broad)",
)
MADE: dict[str, tuple[Callable[[], ReportView], tuple[str, ...]]] = {
    "passing": (
        lambda: made(Status.PASS, Status.PASS),
        ("HELD 3 units · 3 held Every planned unit held.", "0 of 100 steps differ, none may", "counted over 100 steps"),
    ),
    "failing": (
        lambda: made(Status.PASS, Status.FAIL),
        ("VIOLATED 3 units · 2 held · 1 violated 1 unit is violated.", "7 of 100 steps differ, none may"),
    ),
    "partly-decided": (
        lambda: made(Status.INCONCLUSIVE, Status.NOT_RUN),
        (
            "PARTLY DECIDED 3 units · 1 held · 1 undecided · 1 not run",
            "1 of 3 planned units held (1 undecided, 1 not run).",
            "To decide: repeat the timing on an otherwise idle machine whose GPU keeps its clock.",
            "1 not run: why, and what would decide them",
        ),
    ),
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", MADE)
def test_the_first_screen_of_a_report_shows_the_claim_and_the_deciding_fact(
    browser: Browser, tmp_path: Path, name: str, scheme: str
) -> None:
    view, own = MADE[name]
    page = tmp_path / f"{name}.html"
    page.write_text(render(view()), encoding="utf-8")
    seen = first_screen(browser, page, scheme=scheme)
    assert [text for text in (*HEAD, *own) if text not in seen] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_first_screen_of_a_drill_shows_faults_by_claim_instead_of_controls(
    browser: Browser, tmp_path: Path, scheme: str
) -> None:
    page = tmp_path / "drill.html"
    page.write_text(render(made(Status.PASS, Status.PASS, purpose="drill")), encoding="utf-8")
    seen = first_screen(browser, page, scheme=scheme)
    own = (
        *("HELD 3 units · 3 held All 3 planted faults were killed.", "3 faults planted on purpose, 0 survived"),
        "3 of 3 planned faults killed, 0 survived, 0 not run. The tolerances alone would have let 0 of 3 pass",
        *("F-GRAPH-BWD-001", "without a fault\n✓ held", "killed\n3 of 3", "tolerance would pass\n0 of 3"),
        *(f"fault{number}\n✓ killed" for number in range(3)),
    )
    assert [text for text in (*IDENTITY, *own) if text not in seen] == []


def test_units_not_run_are_folded_on_the_page(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(render(made(Status.PASS, Status.NOT_RUN)), encoding="utf-8")
    assert "This machine has no GPU" not in first_screen(browser, page, height=20_000)
    browser.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert "This machine has no GPU" in browser.evaluate("document.body.innerText")


def test_rows_of_a_printed_page_stay_low(browser: Browser, tmp_path: Path) -> None:
    """A row has at most four lines of text. A column that is too narrow would break its words letter by letter."""
    page = tmp_path / "page.html"
    page.write_text(render(made(Status.PASS, Status.FAIL)), encoding="utf-8")
    show(browser, page, Variant("print", media="print", width=800))
    heights = browser.evaluate("[...document.querySelectorAll('.claims tr')].map(row => row.offsetHeight)")
    assert len(heights) == 4
    assert max(heights) < 70


PUBLISHED = {
    "*-throughput-tiny": (
        "HELD 1 unit · 1 held",
        f"trainer {TRAINER}; no author was recorded",
        "of the trainer not recorded; harness 50660ea85c7e with uncommitted changes",
        "on model tiny, 4 × 64 tokens, 100 steps",
        "Even allowing for chance it is at least 16.871x (99 % confidence, 8 processes); at least 1.1x is required",
        "times as fast",
        "NVIDIA H200",
        "23.081x, at least 1.1x trimmed mean ratio",
        "16.871x to 31.484x: 99 % one-sided bounds over 8 processes",
        "no fault planted",
    ),
    "gates/*-gate-backward": (
        "28 units · 28 held",
        "369e2304ed40",
        "NVIDIA H200",
        "0 of 100 steps differ, none may",
        "Counted over 100 steps, 33 state tensors; nothing was estimated",
        "Not proven: no fault was planted on purpose",
    ),
    "drills/*-cpu-traced-step": (
        "HELD 4 units · 4 held",
        "ee90f0f387da",
        "none: no NVIDIA driver",
        "55 of 55 planned faults killed, 0 survived, 0 not run.",
        "The tolerances alone would have let",
    ),
    "*-h200-drill-untimed": (
        "All 251 planted faults were killed. Only a part of the claims was asked for: claims: F-GRAPH",
        "F-GRAPH-BWD-002-shapes and 41 more.",
        f"trainer {TRAINER} and 1 more; no author was recorded",
        "6a449f323b70",
        "NVIDIA H200",
        "251 of 251 planned faults killed, 0 survived, 0 not run.",
        "The tolerances alone would have let 47 of 95 pass",
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_first_screen_of_a_published_run_shows_its_result(
    browser: Browser, tmp_path: Path, published_page: PageOf, name: str
) -> None:
    page = tmp_path / "page.html"
    page.write_text(published_page(max(REPORTS.glob(name))), encoding="utf-8")
    seen = first_screen(browser, page)
    assert [text for text in PUBLISHED[name] if text not in seen] == []


@pytest.mark.parametrize(
    ("markup", "seen"),
    [
        ("<p>read</p>", True),
        ("<p style='position: absolute; top: 719px'>read</p>", False),
        ("<p style='visibility: hidden'>read</p>", False),
        ("<p style='position: absolute; left: -9px'>read</p>", False),
        ("<details><summary>more</summary>read</details>", False),
        ("<p>read</p><div style='position: absolute; inset: 0; background: white'></div>", False),
        ("<script>document.body.append('read')</script>", False),
    ],
    ids=["plain", "below", "hidden", "beside", "folded", "covered", "by-script"],
)
def test_first_screen_text_has_only_visible_words(browser: Browser, tmp_path: Path, markup: str, seen: bool) -> None:
    page = tmp_path / "page.html"
    page.write_text(f"<!DOCTYPE html><body style='margin: 0'>{markup}</body>", encoding="utf-8")
    assert ("read" in first_screen(browser, page)) is seen


PHONE: dict[str, Any] = {"width": 390, "height": 844}


@pytest.mark.parametrize("status", [Status.PASS, Status.FAIL, Status.INCONCLUSIVE])
def test_the_first_screen_on_a_phone_shows_claim_commit_gpu_confidence_and_next_step(
    browser: Browser, tmp_path: Path, status: Status
) -> None:
    page = tmp_path / "page.html"
    page.write_text(render(made(Status.PASS, status)), encoding="utf-8")
    seen = first_screen(browser, page, **PHONE).replace("\n", " ")
    wanted = ["The loss trajectory matches the ungraphed one", "Able to fail: Proven: 3 of 3 faults killed"]
    wanted += ["with the baseline, arm ungraphed", "How sure:", "What now:", "harness verify contracts/"]
    wanted += ["9b1c2d3e4f50 with uncommitted changes", "NVIDIA H200", "exit code"]
    assert [text for text in wanted if text not in seen] == []
