"""Make what a page shows before anybody scrolls: what was run and where, and the course of both arms."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from harness.contract.schema import Workload
from harness.evidence.environment_records import CHANGES, GitFacts, GpuFacts
from harness.judging.verdict import WORST_FIRST, Verdict
from harness.report.charts.decimate import Doubles, absolute_difference, first_differing
from harness.report.charts.sparkline import Box, around, finite
from harness.report.claim_rows import losses
from harness.report.text import clean, label, line, number, several
from harness.report.view import ReportView

if TYPE_CHECKING:
    from markupsafe import Markup

SHOWN = 3  # trainers, and workloads, that are named; the others are counted
WIDTH, HEIGHT = 400, 150  # of the course, CSS pixels
POINTS = 160


def identity(view: ReportView) -> list[tuple[str, str]]:
    """Return what was judged: trainer and harness with their commits, model with batch and length, GPU.

    With several run directories each value stands once, and only the first few are named.
    """
    views = [part.view for part in view.parts] or [view]
    facts = [
        ("Trainer", _few_of(trainer for each in views for trainer in _trainers(each))),
        *((name.capitalize(), clean(text, 300)) for name, text in view.commit_lines().items()),
        ("Harness", _few_of(_commit(each.header.environment.git) for each in views)),
        ("Model, batch, length", _few(_workloads(view)) or "not recorded"),
        ("GPU", _few_of(_gpu(each.header.environment.gpu) for each in views)),
    ]
    return [(name, line(text, 400)) for name, text in facts]


def _gpu(facts: GpuFacts) -> str:
    return facts.name or (f"none: {facts.problem}" if facts.problem else "not recorded")


def machine(view: ReportView) -> list[tuple[str, str]]:
    """Return other facts that tell two runs apart at a glance; unknown facts are left out."""
    collected = view.header.environment
    facts = {
        "driver": collected.gpu.driver,
        "CPU": collected.cpu.model,
        "Python": collected.versions.get("python"),
        "torch": collected.versions.get("torch"),
        "CUDA": collected.versions.get("cuda"),
        "Triton": collected.versions.get("triton"),
        "started": view.header.started_at,
        "CI": view.repeated_job(),
        "Resumed": view.resumed_sentence(),
        "Excuses": view.excused_sentence(),
    }
    return [(name, line(value, 120)) for name, value in facts.items() if value]


def _trainers(view: ReportView) -> list[str]:
    """Return each system that the contracts name, with its repository's commit unless two commits are compared."""
    recorded = view.header.environment.trainers
    systems = dict.fromkeys(system for contract in view.contracts for system in contract.systems())
    if view.header.commits is not None:  # that of either arm stands beside it
        return list(systems)
    return [f"{system}, {_commit(recorded.get(system, GitFacts()), recorded=system in recorded)}" for system in systems]


def _commit(facts: GitFacts, *, recorded: bool = False) -> str:
    """Return a commit as people quote it; the environment section has all of it."""
    if facts.commit is None:
        return "of no repository" if recorded else "commit not recorded"
    commit = facts.commit.removesuffix(CHANGES)
    short = commit[:12] if re.fullmatch(r"[0-9a-f]{40}", commit) else commit
    return f"commit {short}{', changed since' if facts.commit.endswith(CHANGES) else ', unchanged'}"


def _workloads(view: ReportView) -> list[str]:
    """Return the workloads of the units that were run, or of all units if none was run."""
    names = dict.fromkeys((unit.contract, unit.workload) for unit in view.header.units if unit.runs)
    names = names or dict.fromkeys((verdict.contract, verdict.workload) for verdict in view.verdicts)
    found = [(name, view.workload(contract, name)) for contract, name in names]
    return list(dict.fromkeys(_shape(name, workload) for name, workload in found if workload is not None))


def _shape(name: str, workload: Workload) -> str:
    lengths = workload.seq_len if isinstance(workload.seq_len, list) else [workload.seq_len]
    tokens = "/".join(str(length) for length in lengths[:4]) + ("/…" if len(lengths) > 4 else "")
    called = "" if name == workload.model else f" ({name})"
    return f"{workload.model}, {workload.batch_size} × {tokens} tokens, {several(workload.steps, 'step')}{called}"


def _few_of(texts: Iterable[str]) -> str:
    return _few(list(dict.fromkeys(texts)))


def _few(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return "; ".join(texts[:SHOWN]) + more


@dataclass(frozen=True)
class Course:
    """The losses of a candidate over its baseline's, with their difference below; `anchor` is the unit's."""

    image: Markup
    candidate: str
    baseline: str
    outcome: str
    claim: str
    workload: str
    anchor: str


def course(view: ReportView) -> Course | None:
    """Return the course of the unit that says most: trajectory claims first, then the worst verdict, as planned."""
    found = min(_compared(view), key=lambda each: each[0], default=None)
    return found[1]() if found is not None else None


def _compared(view: ReportView) -> Iterator[tuple[tuple[bool, int, int], Callable[[], Course]]]:
    """Yield every pair of losses that a claim compares, as its rank and a function that draws it."""
    for place, (verdict, parts, runs) in enumerate(view.judged(), start=1):
        for part in parts:
            arms = part.arms()
            candidate, baseline = arms.get(part.candidate_path), arms.get("baseline")
            ours, theirs = losses(candidate, runs), losses(baseline, runs)
            if ours is None or theirs is None or len(ours) != len(theirs) or not (finite(ours) and finite(theirs)):
                continue
            rank = (part.kind != "trajectory_match", WORST_FIRST.index(verdict.status), place)
            names = (label(candidate), label(baseline))
            yield rank, partial(_course, f"unit-{place}", verdict, names, ours, theirs)


def _course(anchor: str, verdict: Verdict, names: tuple[str, str], ours: Doubles, theirs: Doubles) -> Course:
    apart, first = absolute_difference(ours, theirs), first_differing(ours, theirs)
    steps = len(apart)
    if first is None:
        outcome = f"equal in every bit at {'all ' if steps != 1 else ''}{several(steps, 'step')}"
    elif not np.isfinite(apart).all():
        outcome = f"not finite at {int((~np.isfinite(apart)).sum()):,} of {several(steps, 'step')}"
    else:
        largest = f"largest {float(apart.max()):.3g}, at step {int(apart.argmax()):,}"
        outcome = f"{largest}; first differing step {first:,}"
    image = _image(ours, theirs, apart)
    return Course(image, *names, outcome, line(verdict.claim, 80), line(verdict.workload, 60), anchor)


def _image(ours: Doubles, theirs: Doubles, apart: Doubles) -> Markup:
    """Draw the losses above and their absolute difference below, with the largest and smallest value at the left."""
    from markupsafe import Markup

    last = float(max(len(ours), len(theirs)) - 1)
    box = around([ours, theirs], Box(52, 8, WIDTH - 56, 78))
    shown = apart if finite(apart) else np.zeros(2)
    largest = float(np.nanmax(shown[np.isfinite(shown)]))
    below = Box(52, 104, WIDTH - 56, 24, 0.0, largest or 1.0)
    ticks = [(12, box.high), (88, box.low), *([(110, largest)] if largest else []), (131, 0.0)]
    body = [
        *(f'<text x="46" y="{y}">{number(float(f"{value:.3g}"))}</text>' for y, value in ticks),
        f'<text x="52" y="147" class="start">step 0</text><text x="{WIDTH - 4}" y="147">{int(last)}</text>',
        f'<path class="axis" d="M52 {box.top + box.height + 4:g}H{WIDTH - 4}M52 131H{WIDTH - 4}"/>',
        box.path("baseline", theirs, last, POINTS),
        box.path("candidate", ours, last, POINTS),
        below.path("apart", shown, float(len(shown) - 1), POINTS),
    ]
    return Markup("".join(body))  # noqa: S704 - numbers alone
