"""Compare a run that resumes with the one that was begun, and find the first difference, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harness.evidence.environment_records import Environment, quoted
from harness.run_directory.bundle import Header, Narrowed
from harness.run_directory.journal import JournalFile

_MACHINE = ("gpu", "cpu", "host_memory_gib", "platform", "variables", "redacted")


def another_header(begun: Header, now: Header) -> str | None:
    """Return the first difference between what was begun and what is requested now; None where there is none."""
    return next(_differences(begun, now), None)


def another_machine(begun: Environment, now: Environment) -> str | None:
    """Return the first difference of machine, packages or sources since a run was begun; None where there is none."""
    return next(_environment(begun, now), None)


def another_plan(begun: JournalFile, now: JournalFile) -> str | None:
    """Return the first option that neither header nor contracts hold, or the first run, that differs; else None."""
    for name, digest in now.options.items():
        if begun.options.get(name) != digest:
            return f"another {name}, or other files under it"
    runs = [run for run in {**begun.plan, **now.plan} if begun.plan.get(run) != now.plan.get(run)]
    return f"another plan: run {runs[0]} is executed otherwise" if runs else None


def other_commits(begun: Environment, now: Environment) -> Iterator[tuple[str, str, str]]:
    """Yield the systems that were at another commit, or changed since it in one of the two, each with both commits.

    An unknown commit is not another one: of a system that only one run has, or that lies in no repository.
    """
    for system in sorted({*begun.trainers} & {*now.trainers}):
        there, here = begun.trainers[system].commit, now.trainers[system].commit
        if there is not None and here is not None and there != here:
            yield system, there, here


def _differences(begun: Header, now: Header) -> Iterator[str]:
    if (begun.purpose, begun.fault) != (now.purpose, now.fault):
        yield f"{_purpose(now)}, it was begun as {_purpose(begun)}"
    if begun.narrowed != now.narrowed:
        yield f"{_narrowed(now.narrowed)}, it was begun with {_narrowed(begun.narrowed)}"
    yield from _digests("contract", begun.digests.contracts, now.digests.contracts)
    if begun.commits != now.commits:
        yield "other commits of candidate or baseline"
    yield from _digests("sources of the package", begun.digests.packages, now.digests.packages)
    if begun.digests.source != now.digests.source:
        yield "other sources"
    for system, there, here in other_commits(begun.environment, now.environment):
        yield f"the trainer {system} at the commit {quoted(here)}, it was begun at {quoted(there)}"
    yield from _environment(begun.environment, now.environment)
    waivers = [[waiver.model_dump(exclude={"expired"}) for waiver in header.waivers] for header in (begun, now)]
    if waivers[0] != waivers[1]:
        yield "other waivers"
    if begun.units != now.units or begun.runs != now.runs:
        yield "another plan: its units or runs are others"


def _purpose(header: Header) -> str:
    return f"the fault {header.fault}" if header.fault is not None else f"a {header.purpose} without --fault"


def _narrowed(narrowed: Narrowed) -> str:
    named = [*(f"--claim {name}" for name in narrowed.claims), *(f"--workload {name}" for name in narrowed.workloads)]
    return " ".join(named) or "all claims and workloads"


def _digests(what: str, begun: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for name in {**begun, **now}:
        if begun.get(name) != now.get(name):
            yield f"{what} {name} with digest {_short(now.get(name))}, it was begun with {_short(begun.get(name))}"


def _short(digest: str | None) -> str:
    return "none" if digest is None else digest[:12]


def _environment(begun: Environment, now: Environment) -> Iterator[str]:
    for field in _MACHINE:
        if (there := getattr(begun, field)) != (here := getattr(now, field)):
            yield f"another machine: {field} {_shown(here)}, it was begun with {_shown(there)}"
    if (there := begun.job.node) != (here := now.job.node):
        yield f"another node: {_shown(here)}, it was begun on {_shown(there)}"
    for package in sorted({*begun.versions, *now.versions}):
        if (there := begun.versions.get(package)) != (here := now.versions.get(package)):
            yield f"{package} {here}, it was begun with {package} {there}"
    if begun.git != now.git:
        here, there = (quoted(each.commit) if each.commit else "none" for each in (now.git, begun.git))
        yield f"the commit {here}, it was begun at {there}"


def _shown(facts: object) -> str:
    return f"({facts})"[:200]
