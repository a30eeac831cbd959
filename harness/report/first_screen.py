"""Build the first screen of a page: what was run and where, and a small plot of what was compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from harness.contract.schema import AnyPart, Arm
from harness.errors import ExitCode
from harness.evidence.arm_records import RANDOM_WEIGHTS
from harness.evidence.environment_records import GitFacts, quoted
from harness.evidence.run_evidence import RunEvidence
from harness.judging.series import Compared
from harness.judging.verdict import Status, Verdict
from harness.report.cards import TELLING, ClaimRow, faults_killed, faults_of, lead
from harness.report.charts import sparkline
from harness.report.charts.sparkline import Box, around, finite
from harness.report.deciding import sure
from harness.report.glance import Ratios, glance, named_parts
from harness.report.headline import HELD, headline
from harness.report.text import label, line, number, opening, several
from harness.report.view import WORDS, ReportView
from harness.report.what_now import Step, what_now

if TYPE_CHECKING:
    from markupsafe import Markup

LABEL, LETTER = 11, 7  # height of a label in the small plot, and the largest width of its letters, in CSS pixels
SHOWN = 3  # number of trainers or workloads that are named; the others are only counted
WIDTH, HEIGHT = 400, 150  # width and height of the small plot, in CSS pixels
POINTS = 160


def now(view: ReportView) -> list[Step]:
    """Return the next steps for the reader. The text of the first step is shortened to fit the first screen. If nothing
    is left to do and every unit held or is waived, return one step that says so.

    If units are waived, the step also names the date on which the first waiver ends.
    """
    first, *others = what_now(view) or [Step("")]
    if first.text:
        return [replace(first, text=opening(first.text, 230)), *others]
    waivers = [waiver for verdict in view.verdicts if (waiver := view.waiver(verdict)) is not None]
    until = f" until {line(min(each.expires for each in waivers), 30)}, when a waiver ends" if waivers else ""
    return [Step(f"nothing{until}")] if headline(view).word.startswith(HELD) else []


def identity(view: ReportView) -> list[tuple[str, str]]:
    """Return facts that distinguish two runs, such as author, trainer, commits of trainer and harness, and GPU.

    For several run directories, list the different values of each fact, but at most the first few values.
    """
    views, systems, author = [part.view for part in view.parts] or [view], _systems(view), _author(view)
    more = f" and {len(systems) - 1} more" if systems[1:] else ""
    trainer = f"{_named(views, systems[0])}{more}" if systems else "no trainer"
    facts = {
        "Whose": f"{author}; {trainer}" if author else f"{trainer}; no author was recorded",
        "Commit": _commits(views),
        "GPU": _few(_gpu(each) for each in views),
        "Model, batch, length": _few(_workloads(view)) or "not recorded",
        "Captured": view.replayed(),
        "Author": author,
    }
    return [(name, line(text, 400)) for name, text in facts.items() if text]


def subject(view: ReportView) -> list[tuple[str, str]]:
    """Return the facts of `identity` that are shown at the top of a page."""
    return identity(view)[:3]


def details(view: ReportView) -> list[tuple[str, str]]:
    """Return the facts of `identity` that are shown neither at the top of a page (`subject`) nor next to the page's
    first claim."""
    shown = {"Captured", *(["Model, batch, length"] if len(_workloads(view)) > 1 else [])}
    return [(name, text) for name, text in identity(view) if name in shown]


def gate_words(view: ReportView) -> str:
    """Return a sentence that says whether the run is judged as a gate, whether the gate is open or closed, and which
    exit code follows."""
    # the run may have been created with `--gate`, although `harness report` draws the page again without this option
    gate = view.gate or "--gate" in view.header.command
    code = headline(replace(view, gate=gate)).code
    if gate:
        return f"Judged as a gate: {'open' if code is ExitCode.HELD else 'closed'}, exit code {code:d}."
    excused = code is ExitCode.HELD and any(each.status is Status.NOT_RUN for each in view.verdicts)
    why = ": units that were not run do not count as failures" if excused else ""
    return f"Not judged as a gate (--gate), exit code {code:d}{why}."


def _systems(view: ReportView) -> list[str]:
    """Return the trainers that the contracts name. The trainers of the page's first claim come first."""
    place = lead(view)
    first = view.contract(view.verdicts[place - 1].contract) if place else None
    contracts = [*([first] if first else []), *view.contracts]
    return list(dict.fromkeys(system for contract in contracts for system in contract.systems()))


def _named(views: Iterable[ReportView], system: str) -> str:
    """Return the name of a trainer with its `module:attribute`. Without a name, return only `module:attribute`."""
    recorded = [view.header.environment.trainers.get(system) for view in views]
    name = next((facts.name for facts in recorded if facts is not None and facts.name), None)
    return f"{line(name, 80)} ({system})" if name else f"trainer {system}"


def _commits(views: Sequence[ReportView]) -> str:
    """Return the commits of the trainers, or the two commits that are compared, and then the commit of the harness.

    The harness's commit is left out if it is also the trainer's commit.
    """
    lines = [item for each in views for item in each.commit_lines().items()]
    compared = [text if key == "commits" else f"{key} {text}" for key, text in lines]
    trainers = [each.header.environment.trainers.get(system) for each in views for system in _systems(each)]
    own = _few(compared or map(_commit, trainers))
    git = [each.header.environment.git for each in views]
    harness = _few(_commit(facts if facts.commit else None) for facts in git)
    if own in ("", "not recorded"):
        return f"of the trainer not recorded; harness {harness}"
    return f"{own} (trainer and harness)" if own == harness else f"{own}; harness {harness}"


def _gpu(view: ReportView) -> str:
    problem = view.header.environment.gpu.problem
    return view.gpus_used() or (f"none: {problem}" if problem else "not recorded")


def _author(view: ReportView) -> str:
    views = [part.view for part in view.parts] or [view]
    return _few(author for each in views if (author := each.header.environment.ci.author))


def ci_jobs(view: ReportView) -> list[tuple[str, str]]:
    """Return service and address (URL) of the CI jobs that created the page's run directories, at most `SHOWN` jobs."""
    views = [part.view for part in view.parts] or [view]
    jobs = dict.fromkeys((each.header.environment.ci.service, each.header.environment.ci.page) for each in views)
    return [(line(service or "job", 60), page) for service, page in jobs if page][:SHOWN]


def machine(view: ReportView) -> list[tuple[str, str]]:
    """Return further facts that distinguish two runs, such as CPU, versions and start. Unknown facts are left out."""
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


def _commit(facts: GitFacts | None) -> str:
    """Return a commit in short form. The page's environment section shows the complete commit."""
    if facts is None:
        return "not recorded"
    return "of no repository" if facts.commit is None else quoted(facts.commit)


def _workloads(view: ReportView) -> list[str]:
    """Return the workloads of the units that were run or, if none was run, of all units."""
    names = dict.fromkeys((unit.contract, unit.workload) for unit in view.header.units if unit.runs)
    names = names or dict.fromkeys((verdict.contract, verdict.workload) for verdict in view.verdicts)
    shapes = [_shape(view, contract, name) for contract, name in names]
    return list(dict.fromkeys(filter(None, shapes)))


def _shape(view: ReportView, contract: str, name: str) -> str:
    """Return model, size and number of steps of a workload, and whether its weights are random. Return "" for an
    unknown workload."""
    workload = view.workload(contract, name)
    if workload is None:
        return ""
    called = "" if name == workload.model else f" (workload {name})"
    sized = f" {size}," if (size := workload.size()) else ""
    weights = " with random weights" if view.states(contract, name, RANDOM_WEIGHTS) else ""
    return f"{workload.model}{weights},{sized} {several(workload.steps, 'step')}{called}"


def _few(texts: Iterable[str]) -> str:
    each = list(dict.fromkeys(texts))
    return "; ".join(each[:SHOWN]) + (f" and {len(each) - SHOWN} more" if len(each) > SHOWN else "")


@dataclass(frozen=True)
class Course:
    """A small plot of the data of the page's first unit: two series, or the ratios of processes.

    outcome: the largest difference of the series, or the range of the ratios. demanded: the smallest allowed ratio, or
    "" for series. anchor: the anchor of the unit's card.
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


@dataclass(frozen=True)
class Leading:
    """The claim that a page begins with, in phrases: why the claim comes first, its workload, the arms that it
    compares (`compared`), how sure its verdict is, and whether planted faults proved that its check can fail.

    row: the claim's row of the table of claims, reduced to the unit that comes first.
    """

    row: ClaimRow
    why: str
    workload: str
    compared: str
    sure: str
    proven: str


def claimed(view: ReportView, rows: Sequence[ClaimRow]) -> Leading | None:
    """Return the claim of the unit that comes first on the page, or None if no unit was run."""
    place = lead(view)
    found = (replace(row, workloads=(each,)) for row in rows for each in row.workloads if each[1] == f"unit-{place}")
    row = next(found, None)
    if place is None or row is None:
        return None
    unit, parts, runs = view.judged()[place - 1]
    shape = _shape(view, unit.contract, unit.workload)
    return Leading(
        row=row,
        why=_why_first(view, unit, parts),
        workload=f"on model {shape}" if shape else f"on workload {row.workloads[0][0]}",
        compared=_compared(view, unit, parts, runs),
        sure=sure(unit),
        proven=_proven(view, unit),
    )


def _why_first(view: ReportView, unit: Verdict, parts: Sequence[AnyPart]) -> str:
    """Return why the page begins with this unit, which `cards.lead` chose. If the page has only one unit, this reason
    is left out. For a waived unit, add the status that the unit has without the waiver."""
    word, units = view.word(unit), len(view.verdicts)
    alike = sum(view.word(each) == word for each in view.verdicts)
    without = f"{WORDS[unit.status]} without its waiver" if word == "waived" else ""
    survivors = view.drill.survivors if view.drill and view.of_controls else []
    if any((row.contract, row.claim) == (unit.contract, unit.claim) for row in survivors):
        return "shown first because a planted fault survived in it"
    ended = {"error": "with an error", "held": "that held"}.get(word, f"that {'is' if alike == 1 else 'are'} {word}")
    among = f"as the only one of {several(units, 'unit')}" if alike == 1 else f"of the {several(alike, 'unit')}"
    telling = word == "held" and any(part.kind == TELLING for part in parts)
    why = f"shown first {among} {ended}{', because it compares two trainings step by step' if telling else ''}"
    return "; ".join(filter(None, [why if units > 1 else "", without]))


def _compared(view: ReportView, unit: Verdict, parts: Sequence[AnyPart], runs: Sequence[RunEvidence]) -> str:
    """Return the arms that were compared, each with its role and with the settings in which the arms differ. Return ""
    without arms.

    An arm whose capture failed is marked.
    """
    arms = next((part.arms() for part, _ in named_parts(view, unit, parts)), {})
    contract, commits = view.contract(unit.contract), view.header.commits
    # A role is the first word of the field of the claim that names the arm, such as `baseline` or `control.arm`. Arms
    # of guards are left out, because they only show that the check can distinguish arms.
    roles = {arm: path.partition(".")[0] for path, arm in arms.items() if not path.startswith("guards.")}
    if contract is None or not roles:
        return ""
    settings = {arm: contract.arms[arm].model_dump(exclude_none=True) for arm in roles}
    for arm, own in settings.items():
        if commits is not None and len(roles) > 1:
            own["commit"] = quoted((commits.baseline if roles[arm] == "baseline" else commits.candidate).commit)
    usual = [Arm().model_dump()] if len(roles) == 1 else []
    alike = set.intersection(*(set(own.items()) for own in (*settings.values(), *usual)))
    told: list[str] = []
    for arm, own in settings.items():
        words = ", ".join(f"{key} {line(value, 60)}" for key, value in own.items() if (key, value) not in alike)
        if any(run.capture_failed(arm) for run in runs):
            words = "; ".join(filter(None, [words, "its capture failed"]))
        role = f"the {roles[arm].replace('_', ' ')}, " if told else ""
        told.append(f"{role}arm {line(arm, 60)}{f' ({words})' if words else ''}")
    return f"{told[0]} with {' and '.join(told[1:]) or 'no other arm'}"


def _proven(view: ReportView, unit: Verdict) -> str:
    """Return a sentence that says whether planted faults proved that the claim's check can fail."""
    found = faults_of(view, unit)
    if found is None:
        planted = view.header.fault
        without = "It failed here, and" if unit.status is Status.FAIL else "Not proven:"
        return f"{without} no fault was planted on purpose" if planted is None else f"The fault {planted} was planted"
    whole = found.killed == found.planted and not found.not_run
    word = "Not proven" if not found.killed else "Proven" if whole else "Proven in part"
    return f"{word}: {faults_killed(view, unit)} (planted on purpose, and noticed)"


def course(view: ReportView) -> Course | None:
    """Return the small plot of the page's first unit, or None if it cannot be drawn.

    The plot of another unit is never used instead, because readers would take it for the plot of the first unit.
    """
    place = lead(view)
    if place is None:
        return None
    row = view.judged()[place - 1]
    return _course(f"unit-{place}", row[0], glance(view, *row))


def _course(anchor: str, verdict: Verdict, found: Compared | Ratios | None) -> Course | None:
    """Return the small plot of compared data, or None for two series of different lengths, or for too few values."""
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
    """Return an image with a dot for each process and a line at the demanded ratio. Return None if fewer than two
    processes have a finite ratio above 0, or if the demanded ratio is not above 0.

    Labels at the left show the demanded, the smallest and the largest ratio.
    """
    from markupsafe import Markup

    values = list(ratios.by_process.values())
    box = around([np.array([*values, ratios.demanded])], Box(0, 24, 0, HEIGHT - 52))
    places = {value: float(box.y(value)) + 4 for value in (ratios.demanded, box.low, box.high)}
    left, labels = _labels([(places[value], value) for value in apart(places)])
    dots = sparkline.dots(ratios.by_process, ratios.demanded, replace(box, left=left, width=WIDTH - 12 - left))
    if dots is None:
        return None
    titles = _titles(left, {"times as fast": 10}, "process", min(ratios.by_process), max(ratios.by_process))
    return Markup(f"{dots}{labels}{titles}")  # noqa: S704 - numbers, and titles that were escaped


def _labels(values: Sequence[tuple[float, float]]) -> tuple[int, str]:
    """Return the left edge of the axes, which leaves room for the longest label, and the markup of the labels.

    values: (vertical position, number) of each label.
    """
    texts = [(y, number(float(f"{value:.3g}"))) for y, value in values]
    left = 8 + LETTER * max(len(text) for _, text in texts)
    return left, "".join(f'<text x="{left - 6}" y="{y:g}">{text}</text>' for y, text in texts)


def _titles(left: int, upright: Mapping[str, int], below: str, first: int, last: int) -> str:
    """Return the markup of the titles of axes. upright: the title of each vertical axis, with its height. below: the
    title of the horizontal axis, which is drawn between its ends `first` and `last`. left: the left edge of the axes.
    """
    from markupsafe import escape

    titles = "".join(f'<text x="{left}" y="{y}" class="start">{escape(title)}</text>' for title, y in upright.items())
    ends = f'<text x="{left}" y="147" class="start">{first}</text><text x="{WIDTH - 4}" y="147">{last}</text>'
    return f'{titles}{ends}<text x="{(left + WIDTH) // 2}" y="147" class="middle">{below}</text>'


def apart(places: Mapping[float, float]) -> list[float]:
    """Return the values that get a label. A value is left out if its label would overlap the label of an earlier value.

    places: value -> the vertical position of its label.
    """
    kept: list[float] = []
    for value, at in places.items():
        if all(abs(at - places[other]) >= LABEL for other in kept):
            kept.append(value)
    return kept


def _image(pair: Compared) -> Markup | None:
    """Return an image of both series, with their absolute difference below. Return None if one of them has fewer than
    two finite values.

    Labels at the left show the largest and the smallest value.
    """
    from markupsafe import Markup

    ours, theirs, apart = pair.ours, pair.theirs, pair.distances
    if not (finite(ours) and finite(theirs)):
        return None
    last = float(len(ours) - 1)
    box = around([ours, theirs], Box(0, 18, 0, 66))
    shown = apart if finite(apart) else np.zeros(2)
    largest = float(np.nanmax(shown[np.isfinite(shown)]))
    ticks = [(22, box.high), (86, box.low), *([(110, largest)] if largest else []), (131, 0.0)]
    left, labels = _labels(ticks)
    box = replace(box, left=left, width=WIDTH - 4 - left)
    below = replace(box, top=106, height=22, low=0.0, high=largest or 1.0)
    body = [
        labels,
        _titles(left, {label(pair.metric, 30): 10, "difference": 101}, "step", 0, int(last)),
        f'<path class="axis" d="M{left} {box.top + box.height + 4:g}H{WIDTH - 4}M{left} 131H{WIDTH - 4}"/>',
        box.path("baseline", theirs, last, POINTS),
        box.path("candidate", ours, last, POINTS),
        below.path("apart", shown, float(len(shown) - 1), POINTS),
    ]
    return Markup("".join(body))  # noqa: S704 - numbers, and titles that were escaped
