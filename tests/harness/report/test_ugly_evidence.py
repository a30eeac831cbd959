"""Evidence that nobody would wish for: odd numbers, a million steps, hostile text in every field."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from report_page import Page, images, parsed, with_losses
from report_views import CONTRACT, contract, full_view, loss_curve, small_view, verdict, waiver

from harness.evidence import run_evidence
from harness.evidence.environment_records import Environment, GpuFacts
from harness.report.html import render
from harness.report.view import ReportView
from harness.run_directory.bundle import Digests, Header, Narrowed, WaiverRecord


@pytest.fixture(scope="module")
def full() -> tuple[str, Page]:
    html = render(full_view())
    return html, Page(html)


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
    page = Page(render(with_losses(**losses)))
    assert "Claims" in page.words()
    for svg in images(page):
        parsed(svg)


def test_a_nan_that_both_arms_have_is_counted() -> None:
    page = Page(render(with_losses(ungraphed=[1.0, np.nan, 2.0], graphed=[1.0, np.nan, 2.0])))
    assert "graphed against ungraphed 3 – 0 – 1 – 0.1" in page.words()


def test_a_verdict_on_a_claim_that_the_contract_lost_still_has_its_card() -> None:
    view = small_view(verdicts=[verdict("GONE-001")])
    assert "This claim is not in the contract any more." in Page(render(view)).words()


def test_a_million_steps_render_in_five_seconds_and_keep_their_spike() -> None:
    curve = loss_curve(1_000_000)
    other = curve.copy()
    other[777_777] += 5.0
    view = with_losses(ungraphed=curve, graphed=other)
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


def hostile_view(text: str) -> ReportView:
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
    short = text[:3000].replace("\ud800", "") + " x"  # a contract's text has a letter
    claims = [
        dict(claim) | dict.fromkeys(("title", "why", "if_fails", "upstream"), short) for claim in CONTRACT["claims"]
    ]
    verdicts = [_hostile_verdict(item, text) for item in view.verdicts]
    return replace(
        view,
        header=_hostile_header(view.header, text),
        altered=(text,),
        incomplete=(text,),
        contracts=[contract(title=short, claims=claims)],
        verdicts=verdicts,
        evidence=evidence,
        drill=poison(view.drill, text),
    )


def _hostile_header(header: Header, text: str) -> Header:
    """The header with its units. Without lone surrogates: a `run.json` that holds one is refused."""
    text = text.replace("\ud800", "")
    signed = waiver("tiny", owner=text, reason=text, expires=text)
    unknown: dict[str, Any] = {text: text}
    gpu = GpuFacts.model_construct(name=text, driver=text, **unknown)
    changes: dict[str, Any] = {
        "purpose": "fault",
        "fault": text,
        "command": [text],
        "started_at": text,
        "narrowed": Narrowed.model_construct(claims=[text], workloads=[text]),
        "environment": Environment.model_construct(gpu=gpu, versions={text: text, "torch": text}, **unknown),
        "digests": Digests.model_construct(contracts={text: text}, source=text),
        "waivers": [WaiverRecord.model_construct(**signed)],
    }
    return header.model_copy(update=changes)


def _hostile_arm(item: run_evidence.ArmEvidence, text: str) -> run_evidence.ArmEvidence:
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
    assert len(render(hostile_view("A" * 100_000)).encode()) < 400_000


@pytest.mark.parametrize("name", ["$", r"$\frac{$", r"$x^2$", "a$b$c"])
def test_dollars_in_a_label_are_letters_and_not_mathematics(name: str) -> None:
    [image] = images(Page(render(with_losses(**{name: loss_curve(20)}))))
    # A label read as mathematics fails, or loses its dollars.
    assert name in [text.text for text in parsed(image).iter("text")]


def test_hostile_arm_names_are_drawn_as_plain_letters() -> None:
    loss = loss_curve(20)
    arms = {HOSTILE: loss, "_x": loss, "日本": loss, "graphed": loss + 0.01, "ungraphed": loss}
    page = Page(render(with_losses(**arms)))
    assert len(images(page)) == 2


def test_markup_in_a_label_stays_text() -> None:
    name = """a<b>&"c'</svg>"""
    [image] = images(Page(render(with_losses(**{name: loss_curve(20)}))))
    assert name in [text.text for text in parsed(image).iter("text")]
    assert f"{name}: " in str(parsed(image).get("aria-label"))
