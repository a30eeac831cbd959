"""Print results on stdout for a terminal, with the count line (number of units by result) first. rich obeys
`NO_COLOR`."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from statistics import mean
from typing import Self, TextIO

from harness.evidence.plan_records import Run
from harness.judging.sheet import some
from harness.judging.verdict import Status, Verdict
from harness.kinds import probe_named
from harness.numbers import counted
from harness.platform.standard_streams import StatusLine, print_line
from harness.report import cards
from harness.report.advice import Advice, advice, split, telling_figures
from harness.report.deciding import decided
from harness.report.headline import Undecided, headline, undecided
from harness.report.text import figure, line, opening, words
from harness.report.together import notes, part_lines
from harness.report.view import WORDS, ReportView
from harness.run_directory.verdict_file import Row

FAILED = ("violated", "error")
FEW = 3  # largest number of claims that a line about several units names
STYLES = {
    "held": "green",
    "violated": "bold red",
    "undecided": "yellow",
    "not run": "dim",
    "error": "bold magenta",
    "waived": "blue",
}


def print_results(view: ReportView, stream: TextIO | None = None) -> None:
    """Print the count line, a line for each unit (worst first), advice about failures, and what would decide undecided
    units.

    Units that were not run for the same reason share a line. On a machine without a GPU these are most units. Units
    that ended with the same error share a line, too.
    """
    out = stream or sys.stdout
    print_line((view.count_line(), "bold"), file=out)
    for title, text in view.notices():
        style = "bold red" if title == "Warning" else "bold yellow"
        print_line((f"{title.upper()}: {line(text, 2000)}", style), file=out)
    commits = (f"{name}: {text}" for name, text in view.commit_lines().items())
    for note in (
        *part_lines(view),
        *notes(view),
        *commits,
        view.repeated_job(),
        view.resumed_sentence(),
        view.excused_sentence(),
        view.unchecked_sentence(),
        view.recorded_sentence(),
    ):
        if note:
            print_line(note, file=out)
    alike: dict[object, list[Verdict]] = {}
    for verdict in cards.worst_first(view.verdicts):
        alike.setdefault(_line_shared(view, verdict), []).append(verdict)
    for units in alike.values():
        _print_units(out, view, units)
    _print_remedies(out, undecided(view))
    print_line((str(headline(view)), "bold"), file=out)


def _print_remedies(out: TextIO, groups: Sequence[Undecided]) -> None:
    """Print what would decide the undecided units, with a line for each remedy."""
    remedies = Counter[tuple[str, str]]()
    for group in groups:
        if group.remedy:
            remedies[line(group.units[0].reason, 60), group.remedy] += len(group.units)
    for (reason, remedy), number in remedies.items():
        print_line(f"To decide {counted(number, 'unit')} ({reason}): {remedy}.", file=out)


def _line_shared(view: ReportView, verdict: Verdict) -> object:
    """Return a key that is equal for units that share a line: units with the same message that were not run or that
    ended with an error."""
    if verdict.status in {Status.NOT_RUN, Status.ERROR} and view.waiver(verdict) is None:
        return verdict.status, verdict.reason, verdict.message
    return id(verdict)


def _print_units(out: TextIO, view: ReportView, units: Sequence[Verdict]) -> None:
    """Print one unit, or several units with the same status and message. Several units that were not run get one line
    without advice. If units share an error, the first one is printed with advice, and a second line counts the others.
    """
    first, *others = units
    if others and first.status is Status.NOT_RUN:
        word = (f"{view.word(first):>9}  ", STYLES[view.word(first)])
        print_line(word, f"{_counted(units)}: {line(first.message, 400)}", file=out, hang=11)
        return
    _print_unit(out, view, first)
    if others:
        print_line(f"           {_counted(others)}: the same error", file=out)


def _counted(units: Sequence[Verdict]) -> str:
    """Return the number of units and a few of their claims, as text."""
    claims = list(dict.fromkeys(line(unit.claim, 80) for unit in units))
    return f"{counted(len(units), 'unit')} ({some(claims, FEW)})"


def _print_unit(out: TextIO, view: ReportView, verdict: Verdict) -> None:
    word = view.word(verdict)
    print_line((f"{word:>9}  ", STYLES[word]), verdict_line(verdict), file=out, hang=11)
    for beside in (cards.waiver_line(view, verdict), cards.accepted_line(view, verdict), view.tried(verdict)):
        if beside:
            print_line(f"           {beside}", file=out)
    causes, further = split(advice(view, verdict)) if word != "waived" else ([], [])
    figures = telling_figures(verdict, view.claim(verdict.contract, verdict.claim)) if word in FAILED else {}
    for each in (
        *causes,
        *(Advice(words(name), figure(value, name)) for name, value in list(figures.items())[:8]),
        *further,
    ):
        print_line(f"           {each.label}: {each.text}", file=out, whole=each.command)


def verdict_line(verdict: Verdict) -> str:
    """Return a line with a unit and the judge's message or, if the unit held, the deciding figure and its demand."""
    found = decided(verdict) if verdict.status is Status.PASS else None
    seen = opening(verdict.message, 400) if found is None else " ".join(filter(None, (found.text, found.name)))
    return f"{line(verdict.claim, 80)} on {line(verdict.workload, 60)}: {seen}"


# The code below shows the progress of a session on stderr: as one line at the bottom of a terminal or, in a log, as a
# new line every `QUIET_S` seconds.
#
# Results are printed only at the end of a session. Therefore each unit is printed once, even if stdout and stderr are
# shown in the same place.

# A function that takes runs and returns, by run id, the seconds that a similar run took in an earlier session.
Recorded = Callable[[Sequence[Run]], Mapping[str, float]]
QUIET_S = 300.0  # Seconds between two lines in a log. Some CI services end a job after ten minutes without output.


class Progress:
    """Shows the progress of a session within a `with` block. Several threads call its methods.

    recorded: a function that returns the seconds that similar runs took in earlier sessions. The function is called in
    the thread `lookup`, while the first runs execute. stages: True to also print a line for each run with the arms that
    it will train, and a line whenever an arm begins to train. These lines begin with the time since this object was
    created.
    """

    def __init__(self, recorded: Recorded | None = None, stream: TextIO | None = None, *, stages: bool = False) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._tally = Counter[str]()  # number of units and planted faults by outcome
        self._status, self._lock, self._over = StatusLine(self._stream), threading.Lock(), threading.Event()
        self._recorded, self._to_go = recorded, TimeToGo([])
        # for each run that is executing: its phase, and the start of the phase
        self._phases: dict[str, tuple[str, float]] = {}
        self._began = self._logged = self._opened = time.monotonic()
        self._entered: set[tuple[str, str]] = set()  # pairs of run id and arm's execution whose training has begun
        self._tells_stages = stages
        self.lookup = threading.Thread()

    def __enter__(self) -> Self:
        threading.Thread(target=self._tick, daemon=True).start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._over.set()
        with self._lock:
            self._status.clear()

    def begins(self, runs: Sequence[Run]) -> None:
        self._to_go, self._began = TimeToGo(runs), time.monotonic()
        self._entered = set()
        for run in runs:
            often = {arm: counted(each.replicas, "time") for arm, each in run.arms.items() if each.replicas > 1}
            arms = [f"{arm} {often[arm]}" if arm in often else arm for arm in run.arms]
            with self._lock:
                self._tell(f"{run.probe}: to train {', '.join(arms)}, {counted(run.workload.steps, 'step')} each")
        if self._recorded is not None and runs:
            self.lookup = threading.Thread(target=self._look_up, args=(self._recorded, runs), daemon=True)
            self.lookup.start()

    def moves(self, run: Run, phase: str, seconds: float) -> None:
        with self._lock:
            if self._has_begun(run.id):
                self._to_go.moves(run.id, seconds, over=not phase)
            self._enters(run, phase)
            if phase:
                self._phases[run.id] = phase, time.monotonic() - seconds
            else:
                self._phases.pop(run.id, None)
            self._show()

    def _enters(self, run: Run, phase: str) -> None:
        """Print that an arm begins to train, once for each execution of the arm. The phases of an execution have names
        such as `ARM.REPLICA: …`."""
        execution, is_of_an_arm, _ = phase.partition(": ")
        if is_of_an_arm and (run.id, execution) not in self._entered:
            self._entered.add((run.id, execution))
            arm, _, replica = line(execution, 60).partition(".")
            self._tell(f"{run.probe}: training {arm}{' again' if replica.strip('0') else ''}")

    def _tell(self, text: str) -> None:
        """Print a line with the time since this object was created."""
        if self._tells_stages:
            minutes, seconds = divmod(int(time.monotonic() - self._opened), 60)
            self._status.clear()
            print_line(f"{minutes:3}:{seconds:02}  {text}", file=self._stream)
            self._stream.flush()

    def judged(self, verdict: Verdict) -> None:
        self._counts(WORDS[verdict.status])

    def drilled(self, row: Row) -> None:
        self._counts("killed" if row.killed else "SURVIVED")

    def _counts(self, word: str) -> None:
        with self._lock:
            self._tally[word] += 1
            self._show()

    @contextmanager
    def out_of_the_way(self) -> Iterator[None]:
        """Remove the terminal's status line while code in the `with` block prints, and show it again afterwards."""
        with self._lock:
            self._status.clear()
            yield
            self._show()

    def _has_begun(self, name: str) -> bool:
        """Return True if the session planned this run. Only planned runs count in `n of m runs`."""
        return any(run.id == name for run in self._to_go.runs)

    def _time_to_go(self) -> str:
        seconds = self._to_go.seconds(time.monotonic() - self._began)
        return "" if seconds is None or len(self._to_go.ended) == len(self._to_go.runs) else in_words(seconds)

    def parts(self) -> list[str]:
        """Return the parts of the status line, the most important first, or an empty list if no run is executing."""
        if not self._phases:
            return []
        name, (phase, began) = list(self._phases.items())[-1]
        others = f" (+{len(self._phases) - 1} more)" if len(self._phases) > 1 else ""
        known = (
            f"{len(self._to_go.ended)} of {counted(len(self._to_go.runs), 'run')}" if self._has_begun(name) else "",
            ", ".join(f"{number} {word}" for word, number in self._tally.items()),
            self._time_to_go(),
            f"{line(name, 60)}{others}",
            f"{line(phase, 60)}, {time.monotonic() - began:.0f} s",
        )
        return [part for part in known if part]

    def _show(self) -> None:
        """Show the status line. In a log, print it only every `QUIET_S` seconds, to show that the session goes on."""
        parts = self.parts()
        if parts and self._status.live:
            self._status.show(parts)
        elif parts and time.monotonic() - self._logged >= QUIET_S:
            self._logged = time.monotonic()
            print_line(" · ".join(parts), file=self._stream)
            self._stream.flush()

    def _tick(self) -> None:
        while not self._over.wait(1.0):
            with self._lock:
                for name, (_, began) in self._phases.items():
                    self._to_go.under_way[name] = time.monotonic() - began
                if not self._over.is_set():
                    self._show()

    def _look_up(self, recorded: Recorded, runs: Sequence[Run]) -> None:
        with suppress(Exception):  # an error here must not end the session, because only the estimate would be missing
            found = recorded(runs)
            with self._lock:
                self._to_go.recorded = found


@dataclass
class TimeToGo:
    """An estimate of the remaining time of one session.

    recorded: by run id, the seconds that a similar run took before. For a run without such a record, the estimate uses
    the mean of this session's completed runs with the same probe.
    """

    runs: Sequence[Run]
    recorded: Mapping[str, float] = field(default_factory=dict)
    under_way: dict[str, float] = field(default_factory=dict)  # for runs that are executing: run id -> seconds so far
    ended: dict[str, float] = field(default_factory=dict)  # for completed runs: run id -> total seconds

    def moves(self, run: str, seconds: float, *, over: bool) -> None:
        """Record how many seconds a run has taken so far. over: True if the run has ended, so that these are its total
        seconds."""
        self.under_way.pop(run, None)
        (self.ended if over else self.under_way)[run] = seconds

    def seconds(self, elapsed: float) -> float | None:
        """Return the remaining seconds, or None if they are unknown. elapsed: seconds since the first run began.

        Runs that are not timed execute in parallel. Their remaining seconds are therefore divided by the mean number of
        runs that executed at the same time so far. Timed runs begin together but execute one after another, so their
        remaining seconds are added up.
        """
        expected = self._expected()
        left = [run for run in self.runs if run.id not in self.ended]
        if elapsed <= 0 or any(run.id not in expected for run in left):
            return None
        so_far = self.ended | self.under_way
        spent = sum(so_far.get(run.id, 0.0) for run in self.runs if not _timed(run))
        work = sum(max(0.0, expected[run.id] - so_far.get(run.id, 0.0)) for run in left if not _timed(run))
        timed = [run.id for run in self.runs if _timed(run) and run.id in expected]
        waited = max((so_far.get(name, 0.0) for name in timed), default=0.0)
        return work / max(1.0, spent / elapsed) + max(0.0, sum(expected[name] for name in timed) - waited)

    def _expected(self) -> dict[str, float]:
        here: defaultdict[str, list[float]] = defaultdict(list)
        for run in self.runs:
            # leave out timed runs, because their seconds include waiting for other timed runs
            if run.id in self.ended and not _timed(run):
                here[run.probe].append(self.ended[run.id])
        like_it = {run.id: mean(here[run.probe]) for run in self.runs if here[run.probe]}
        return like_it | {run.id: self.recorded[run.id] for run in self.runs if run.id in self.recorded}


def _timed(run: Run) -> bool:
    return probe_named(run.probe).timed


def in_words(seconds: float) -> str:
    """Return a phrase such as `about 40 s to go`, `about 3 min to go` or `about 1 h 20 min to go`, rounded up."""
    if seconds < 55:
        return f"about {max(5, -int(-seconds // 5) * 5)} s to go"
    minutes = -int(-seconds // 60)
    if minutes < 60:
        return f"about {minutes} min to go"
    return f"about {minutes // 60} h {minutes % 60} min to go"
