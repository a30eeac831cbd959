"""The report: one HTML file without scripts or outside requests."""

from __future__ import annotations

import re

from harness.judge.verdict import Status
from harness.report import cards as unit_cards
from harness.report.blocks import Section
from harness.report.budget import BYTES, page_within
from harness.report.outcome import outcome, undecided
from harness.report.page import render_page
from harness.report.sections import capture, closing, gradients, kernels, throughput, trajectories
from harness.report.text import clean, line
from harness.report.view import RunView


def render(run: RunView) -> str:
    """The whole report of one run as a self-contained HTML page. Pure: equal views give equal bytes."""
    evidence = _evidence(run)
    values = {
        "title": _title(run),
        "warnings": [clean(warning, 3000) for warning in run.warnings()],
        "fault": line(run.fault) if run.fault else None,
        "of_controls": run.of_controls,
        "drill_sentence": clean(run.drill_sentence()),
        "outcome": outcome(run),
        "gate": run.gate,
        "count_line": run.count_line(),
        "contracts": [(line(item.id), clean(item.title, 400)) for item in run.contracts],
        "facts": _facts(run),
        "undecided": undecided(list(run.verdicts)),
        "narrowed": run.narrowed(),
        "cards": unit_cards.cards(run, evidence),
        "environment": closing.environment(run),
        "command": closing.command(run),
    }
    return page_within(
        BYTES, evidence, _in_question(run), lambda sections: render_page("report.html.j2", sections, **values)
    )


def _in_question(run: RunView) -> set[str]:
    """The runs of units that did not hold."""
    units = [item for item in run.verdicts if item.status is not Status.PASS]
    return {seen.run_id for item in units for seen in run.runs_of(item.contract, item.claim, item.workload)}


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
    return [(name, line(_short(value), 120)) for name, value in found if value]


def _short(value: str) -> str:
    """A commit as people quote it; the whole of it stands in the environment."""
    return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{28}\b", r"\1", value)
