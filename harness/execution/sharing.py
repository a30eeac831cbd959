"""Execute once what several runs require alike: one run is the host of others, and its process executes for all.

Several contracts require the same of one trainer at one workload (the plain arm, its repetition, the untrained
control), and equal arms of one machine are equal in bits. Where that is untrue it shows in the host's own
repetition, which every guest reads too. Units, runs and judges stay as they are (`harness.evidence.serving`).
Paired runs are joined arm by arm; runs of any other probe, such as a timing, only if they are wholly equal.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.evidence import layout
from harness.evidence.plan_records import Run
from harness.evidence.read_run import read_records
from harness.evidence.run_evidence import Death
from harness.evidence.run_records import ArmFailed
from harness.evidence.serving import ALIKE, SAME, SHARED, Shared, lacks, of_arms, serves, widened
from harness.kinds import probe_named
from harness.numbers import dump_json
from harness.system.wrappers import SWAPPED_ARMS

# Repeat a run without the arm in which its worker died, for the claims that do not name that arm.
#
# The arm's end is recorded before the next worker begins. What the dead worker wrote stays in
# `attempt.<n>/`.


def without_the_arm(run: Run, directory: Path, death: Death, failed: dict[str, ArmFailed]) -> Run | None:
    """Prepare `directory` for the run without the arm in which its worker died, and return that run.

    None if the death is the run's own end: the phase names no arm, or every judgement names that arm and no other arm
    failed, whose cause would be lost. failed: how arms failed in earlier workers of the run, whose records this one may
    have removed; the arm is added. This ends after as many workers as the run has arms, since each leaves one out.
    """
    arm = _arm_in(run, death.phase)
    if arm is None:
        return None
    records, _ = read_records(directory)
    failed.update({record.arm: record for record in records if isinstance(record, ArmFailed)})
    failed.setdefault(
        arm, ArmFailed(arm=arm, cause=death.cause, detail=death.detail, phase=death.phase, stack=death.stack)
    )
    if set(failed) == {arm} and not run.needed(failed):
        return None
    rest = run.model_copy(update={"without": list(failed)})
    _set_aside(directory)
    write_run(rest, directory)
    _write(failed.values(), directory)
    return rest


def _write(records: Iterable[ArmFailed], directory: Path) -> None:
    lines = [dump_json(record.model_dump()) + "\n" for record in records]
    (directory / layout.RECORDS).write_text("".join(lines), encoding="utf-8")


def _arm_in(run: Run, phase: str | None) -> str | None:
    """Return the arm that a run's phase names (`arm.replica: what it does`); None if its probe has no such phases."""
    if not probe_named(run.probe).arm_by_arm or phase is None:
        return None
    return next((arm for arm in run.arms if re.match(rf"{re.escape(arm)}\.\d+: ", phase)), None)


def _set_aside(directory: Path) -> None:
    number = sum(path.name.startswith(layout.ATTEMPT) for path in directory.iterdir())
    kept = [path for path in directory.iterdir() if not path.name.startswith(layout.ATTEMPT)]
    aside = directory / f"{layout.ATTEMPT}{number}"
    aside.mkdir()
    for path in kept:
        path.rename(aside / path.name)


def write_run(run: Run, directory: Path) -> None:
    """Write `run.json`: what the worker reads, and what the evidence says was executed."""
    (directory / layout.RUN).write_text(run_text(run), encoding="utf-8")


def run_text(run: Run) -> str:
    """Return `run.json` as it is written. The order of the arms is the order of their execution."""
    return dump_json(run.model_dump(), indent=2, sort_keys=False) + "\n"


_WHERE_AND_HOW_LONG = ("workload", "wall_limit_s", "heartbeat_s")  # equal runs may need more or less of a machine
SAVED_AT_LEAST = 0.5  # of the guest's executions; with fewer it would only lengthen the host


@dataclass(frozen=True)
class Guest:
    """A run that another one's process executes. arms: its names of arms -> the host's."""

    run: Run
    arms: dict[str, str]


@dataclass
class Hosted:
    """A run to execute, for itself and for its guests."""

    run: Run
    guests: list[Guest] = field(default_factory=list)

    @property
    def runs(self) -> list[Run]:
        """Return the host's run, then its guests' runs."""
        return [self.run, *(guest.run for guest in self.guests)]

    def takes(self, guest: Run) -> bool:
        """Make the guest one of this run's if that saves enough. Return True if it is one now."""
        found = _joined(self.run, guest) if probe_named(guest.probe).arm_by_arm else _same(self.run, guest)
        if found is None:
            return False
        run, arms = found
        # what serves the new guest must still serve the earlier ones
        if lacks(run, guest, arms) or any(lacks(run, one.run, one.arms) for one in self.guests):
            return False
        self.run = run
        self.guests.append(Guest(guest, arms))
        return True


def hosted(runs: Iterable[Run]) -> list[Hosted]:
    """Return what to execute for all the runs, in their order."""
    found: list[Hosted] = []
    for run in runs:
        if not any(host.takes(run) for host in found):
            found.append(Hosted(run))
    return found


def write_guests(host: Hosted, directories: Mapping[str, Path]) -> None:
    """Write the directories of the guests' evidence, which say where it lies. directories: by the guests' ids."""
    for guest in host.guests:
        directory = directories[guest.run.id]
        directory.mkdir(parents=True)
        write_run(guest.run, directory)
        shared = Shared(run=host.run.id, arms=guest.arms)
        (directory / layout.SHARED).write_text(dump_json(shared.model_dump(), indent=2) + "\n", encoding="utf-8")


def _same(host: Run, guest: Run) -> tuple[Run, dict[str, str]] | None:
    """Return the host's run for an equal guest of another probe, such as a timing, and its arms; None if unequal."""
    if not serves(host, guest, SAME):
        return None
    joined = {name: SHARED[name].joined(getattr(host, name), getattr(guest, name)) for name in _WHERE_AND_HOW_LONG}
    return host.model_copy(update=joined), {arm: arm for arm in guest.arms}


def _joined(host: Run, guest: Run) -> tuple[Run, dict[str, str]] | None:
    """Return the host's run with all that the guest asks for, and guest's arms -> host's; None: not together."""
    # arms that change places are opened by one another's plan
    if not serves(host, guest, ALIKE) or host.fault == SWAPPED_ARMS:
        return None
    arms: dict[str, str] = {}
    saved = 0
    for name, planned in guest.arms.items():
        free = (other for other in host.arms if other not in arms.values())
        there = next((other for other in free if _fits(host, guest, {**arms, name: other}, name)), None)
        saved += 0 if there is None else planned.replicas
        arms[name] = there or _free_name(name, {*host.arms, *arms.values()})
    if saved < SAVED_AT_LEAST * sum(planned.replicas for planned in guest.arms.values()):
        return None
    return widened(host, of_arms(guest, arms)), arms


def _fits(host: Run, guest: Run, arms: Mapping[str, str], name: str) -> bool:
    """Return True if the host's arms can be the guest's as well, once they are repeated, watched and read as often as
    both ask. name: the last of `arms`, whose baseline leaves its gradients before its candidate is executed."""
    joined = widened(host, of_arms(guest, arms))
    order, baseline = list(joined.arms), guest.baseline_of.get(name)
    if baseline is not None and order.index(arms[baseline]) > order.index(arms[name]):
        return False
    return serves(joined, guest, SHARED, arms)


def _free_name(name: str, taken: Collection[str]) -> str:
    """Return a name for a guest's arm that the host lacks: its own or, if another arm has that, a new one."""
    free, number = name, 2
    while free in taken:
        free, number = f"{name}-{number}", number + 1
    return free
