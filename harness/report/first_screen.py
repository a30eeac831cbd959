"""Make the first screen of a page: what was run and where, and a small plot of what was compared (the course)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from harness.contract.schema import Workload
from harness.evidence.environment_records import GitFacts, TrainerFacts, quoted
from harness.judging.series import Compared
from harness.judging.verdict import Verdict
from harness.numbers import counted
from harness.report.cards import ClaimRow, lead
from harness.report.charts import sparkline
from harness.report.charts.sparkline import Box, around, finite
from harness.report.glance import Ratios, glance
from harness.report.headline import HELD, headline
from harness.report.text import clean, label, line, number, opening, several
from harness.report.view import WORDS, ReportView
from harness.report.what_now import Step, what_now

if TYPE_CHECKING:
    from markupsafe import Markup

LABEL = 11  # height of a label in the drawn course of the training, in CSS pixels
SHOWN = 3  # number of trainers or workloads that are named; the others are only counted
WIDTH, HEIGHT = 400, 150  # width and height of the drawn course of the training, in CSS pixels
POINTS = 160


def now(view: ReportView) -> list[Step]:
    """Return what to do next, with the first step shortened for the first screen; only `nothing` if every unit held."""
    first, *others = what_now(view) or [Step("")]
    if first.text:
        return [replace(first, text=opening(first.text, 230)), *others]
    waivers = [waiver for verdict in view.verdicts if (waiver := view.waiver(verdict)) is not None]
    until = f" until {line(min(each.expires for each in waivers), 30)}, when a waiver ends" if waivers else ""
    return [Step(f"nothing{until}")] if headline(view).word.startswith(HELD) else []


def identity(view: ReportView) -> list[tuple[str, str]]:
    """Return what was judged: trainer and harness with their commits, model with batch and length, GPU.

    Of several run directories, list each distinct value once, and only the first few values.
    """
    views = [part.view for part in view.parts] or [view]
    facts = [
        ("Trainer", _trainers(views)),
        *((name[:1].upper() + name[1:], clean(text, 300)) for name, text in view.commit_lines().items()),
        ("Harness", _few(_commit(each.header.environment.git) for each in views)),
        ("Model, batch, length", _few(_workloads(view)) or "not recorded"),
        ("GPU", _few(_gpu(each) for each in views)),
        *((name, text) for name, text in (("Captured", view.replayed()), ("Author", _few(_authors(views)))) if text),
    ]
    return [(name, line(text, 400)) for name, text in facts]


def _gpu(view: ReportView) -> str:
    problem = view.header.environment.gpu.problem
    return view.gpus_used() or (f"none: {problem}" if problem else "not recorded")


def _authors(views: Iterable[ReportView]) -> Iterator[str]:
    return (author for view in views if (author := view.header.environment.ci.author))


def ci_jobs(view: ReportView) -> list[tuple[str, str]]:
    """Return service and address of the CI jobs that made the page's run directories, at most `SHOWN` jobs."""
    views = [part.view for part in view.parts] or [view]
    jobs = dict.fromkeys((each.header.environment.ci.service, each.header.environment.ci.page) for each in views)
    return [(line(service or "job", 60), page) for service, page in jobs if page][:SHOWN]


def machine(view: ReportView) -> list[tuple[str, str]]:
    """Return other facts by which a reader can distinguish two runs. Leave out unknown facts."""
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


def _trainers(views: Iterable[ReportView]) -> str:
    """Return the trainers, each by its recorded name and the system that the contracts name.

    Trainers of one commit form a group, followed by the commit. If two commits are compared, no commit is named.
    """
    of_commit: dict[str, dict[str, str]] = {}
    for view in views:
        recorded = view.header.environment.trainers
        for system in dict.fromkeys(each for contract in view.contracts for each in contract.systems()):
            facts = recorded.get(system, TrainerFacts())
            # If two commits are compared, the page shows both commits at another place.
            commit = "" if view.header.commits else _commit(facts, recorded=system in recorded)
            names = of_commit.setdefault(commit, {})  # evidence from before the recording of names has no name here
            names[system] = f"{line(facts.name, 80)} ({system})" if facts.name else names.get(system, system)
    return "; ".join(
        _few(names.values(), ", ") + (f", {'each ' if len(names) > 1 else ''}{commit}" if commit else "")
        for commit, names in of_commit.items()
    )


def _commit(facts: GitFacts, *, recorded: bool = False) -> str:
    """Return a commit in short form; the environment section has the whole commit."""
    if facts.commit is None:
        return "of no repository" if recorded else "commit not recorded"
    return f"commit {quoted(facts.commit)}"


def _workloads(view: ReportView) -> list[str]:
    """Return the workloads of the units that were run. If none was run, return those of all units."""
    names = dict.fromkeys((unit.contract, unit.workload) for unit in view.header.units if unit.runs)
    names = names or dict.fromkeys((verdict.contract, verdict.workload) for verdict in view.verdicts)
    found = [(name, view.workload(contract, name)) for contract, name in names]
    return list(dict.fromkeys(_shape(name, workload) for name, workload in found if workload is not None))


def _shape(name: str, workload: Workload) -> str:
    lengths = workload.seq_len if isinstance(workload.seq_len, list) else [workload.seq_len]
    tokens = "/".join(str(length) for length in lengths[:4]) + ("/…" if len(lengths) > 4 else "")
    called = "" if name == workload.model else f" ({name})"
    # A workload that does not state a size is recorded as 1 × 1 tokens. An example is a function that makes its own
    # batches.
    sized = f" {workload.batch_size} × {tokens} tokens," if (workload.batch_size, lengths) != (1, [1]) else ""
    return f"{workload.model},{sized} {several(workload.steps, 'step')}{called}"


def _few(texts: Iterable[str], between: str = "; ") -> str:
    each = list(dict.fromkeys(texts))
    return between.join(each[:SHOWN]) + (f" and {len(each) - SHOWN} more" if len(each) > SHOWN else "")


@dataclass(frozen=True)
class Course:
    """A small plot of what the judge of the page's first unit compared: two series in one plot, or ratios of processes.

    outcome: the largest difference of the series, or the range of the ratios. demanded: the minimum ratio; "" for
    series. anchor: the unit's.
    """

    image: Markup
    candidate: str
    baseline: str
    metric: str
    demanded: str
    outcome: str
    claim: str
    workload: str
    anchor: str


def claimed(view: ReportView, rows: Sequence[ClaimRow]) -> tuple[ClaimRow, str] | None:
    """Return the row of the page's first unit, reduced to this unit, and how many other units share its result."""
    anchor = f"unit-{lead(view)}"
    found = (replace(row, workloads=(each,)) for row in rows for each in row.workloads if each[1] == anchor)
    row = next(found, None)
    others = sum(row is not None and view.word(unit) == row.word for unit in view.verdicts) - 1
    if row is None:
        return None
    unit = view.verdicts[(lead(view) or 1) - 1]
    without = [f"{WORDS[unit.status]} without its waiver"] if view.waiver(unit) is not None else []
    return row, "; ".join([*without, *([f"{counted(others, 'other unit')} {row.word}"] if others else [])])


def course(view: ReportView) -> Course | None:
    """Return the course of the page's first unit. None if it cannot be drawn: another unit's course would mislead."""
    place = lead(view)
    if place is None:
        return None
    row = view.judged()[place - 1]
    return _course(f"unit-{place}", row[0], glance(view, *row))


def _course(anchor: str, verdict: Verdict, found: Compared | Ratios | None) -> Course | None:
    """Draw what was compared. Return None if two series differ in length, or if there is too little to draw."""
    if isinstance(found, Ratios):
        image, metric, demanded = _image_of_ratios(found), "", f"{found.demanded:g}x"
        low, high = min(found.by_process.values()), max(found.by_process.values())
        outcome = f"{low:.3f}x to {high:.3f}x over {several(len(found.by_process), 'process', 'es')}"
    elif found is not None and len(found.ours) == len(found.theirs) == len(found.distances):
        image, metric, demanded = _image(found), label(found.metric, 30), ""
        outcome = _outcome(found)
    else:
        return None
    if image is None:
        return None
    names = label(found.candidate), label(found.baseline)
    return Course(image, *names, metric, demanded, outcome, line(verdict.claim, 80), line(verdict.workload, 60), anchor)


def _outcome(pair: Compared) -> str:
    found, wild = pair.difference(), int((~np.isfinite(pair.distances)).sum())
    if found.first_differing is None:
        return f"equal in every bit at {'all ' if found.steps != 1 else ''}{several(found.steps, 'step')}"
    if wild:
        return f"not finite at {wild:,} of {several(found.steps, 'step')}"
    largest = f"largest {found.largest:.3g}, at step {found.largest_step:,}"
    return f"{largest}; first differing step {found.first_differing:,}"


def _image_of_ratios(ratios: Ratios) -> Markup | None:
    """Draw a dot for each process and a line at the demanded ratio. Label demand, minimum and maximum at the left."""
    from markupsafe import Markup

    values = list(ratios.by_process.values())
    box = around([np.array([*values, ratios.demanded])], Box(52, 12, WIDTH - 64, HEIGHT - 40))
    dots = sparkline.dots(ratios.by_process, ratios.demanded, box)
    if dots is None:
        return None
    places = {value: float(box.y(value)) + 4 for value in (ratios.demanded, box.low, box.high)}
    body = "".join(f'<text x="46" y="{places[value]:g}">{value:.3g}</text>' for value in apart(places))
    below = f'<text x="52" y="147" class="start">process {min(ratios.by_process)}</text>'
    below += f'<text x="{WIDTH - 12}" y="147">{max(ratios.by_process)}</text>'
    return Markup(f"{dots}{body}{below}")  # noqa: S704 - numbers alone


def apart(places: Mapping[float, float]) -> list[float]:
    """Return the values whose labels do not overlap a previous kept label. places: each value's label height."""
    kept: list[float] = []
    for value, at in places.items():
        if all(abs(at - places[other]) >= LABEL for other in kept):
            kept.append(value)
    return kept


def _image(pair: Compared) -> Markup | None:
    """Draw the series, and below them their absolute difference. Label the largest and smallest value at the left."""
    from markupsafe import Markup

    ours, theirs, apart = pair.ours, pair.theirs, pair.distances
    if not (finite(ours) and finite(theirs)):
        return None
    last = float(len(ours) - 1)
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
