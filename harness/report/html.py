"""The report: one HTML file without scripts or outside requests."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from markupsafe import Markup

from harness.report import cards as unit_cards
from harness.report.blocks import Section
from harness.report.outcome import outcome, undecided
from harness.report.sections import capture, closing, gradients, kernels, throughput, trajectories
from harness.report.text import clean, line
from harness.report.view import RunView

if TYPE_CHECKING:
    from jinja2 import Environment


def render(run: RunView) -> str:
    """The whole report of one run as a self-contained HTML page. Pure: equal views give equal bytes."""
    evidence = _evidence(run)
    shown = unit_cards.cards(run, evidence)
    style = _template_text("style.css")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            style=style,
            style_digest=digest,
            title=_title(run),
            fault=line(run.fault) if run.fault else None,
            outcome=outcome(run),
            gate=run.gate,
            count_line=run.count_line(),
            contracts=[(line(item.id), clean(item.title, 400)) for item in run.contracts],
            facts=_facts(run),
            undecided=undecided(list(run.verdicts)),
            narrowed=_narrowed(run),
            cards=shown,
            sections=evidence,
            environment=closing.environment(run),
            command=closing.command(run),
            line=line,
        )
    )


def _evidence(run: RunView) -> list[Section]:
    """The sections of evidence that this run has, in reading order."""
    found = [
        closing.deaths(run),
        trajectories.section(run),
        gradients.section(run),
        throughput.section(run),
        *capture.sections(run),
        *kernels.sections(run),
        closing.kill_matrix(run),
    ]
    return [section for section in found if section is not None]


def _title(run: RunView) -> str:
    names = ", ".join(line(contract.id, 60) for contract in run.contracts[:3])
    more = f" and {len(run.contracts) - 3} more" if len(run.contracts) > 3 else ""
    return f"{'FIRE DRILL · ' if run.fault else ''}{outcome(run).word} · {names or 'no contract'}{more}"


def _facts(run: RunView) -> list[tuple[str, str]]:
    """What identifies the run at a glance; what is unknown is left out here and stands in no table."""
    places = {
        "commit": ("git", "commit"),
        "GPU": ("gpu", "name"),
        "driver": ("gpu", "driver"),
        "CPU": ("cpu", "model"),
        "Python": ("versions", "python"),
        "torch": ("versions", "torch"),
        "CUDA": ("versions", "cuda"),
        "Triton": ("versions", "triton"),
    }
    found = [(name, run.fact(*path)) for name, path in places.items()]
    started = run.run.get("started_at")
    found.append(("started", str(started) if started else None))
    return [(name, line(value, 120)) for name, value in found if value]


def _narrowed(run: RunView) -> str | None:
    """Which part of the contracts was asked for, if not all of it."""
    narrowed = run.run.get("narrowed")
    if not isinstance(narrowed, dict):
        return None
    said = [f"{kind}: {line(', '.join(map(str, names)))}" for kind, names in narrowed.items() if names]
    return "; ".join(said) or None


@cache
def _template_text(name: str) -> str:
    return files("harness.report").joinpath("templates", name).read_text(encoding="utf-8")


def _fit(value: object) -> object:
    """The last gate before the page: whatever a section let through is cleaned and bounded here."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else clean(value, 6000)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    return Environment(
        loader=FunctionLoader(_template_text),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_fit,
        trim_blocks=True,
        lstrip_blocks=True,
    )
