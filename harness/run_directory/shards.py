"""Find the evidence that decides each unit, in one run directory or in the shards of a gate. A shard is a run of some
of the gate's units, with its own run directory.

Each unit is judged by the evidence of its earliest attempt. A later attempt never replaces the earliest one. A shard
made no attempt at a unit if it only reported that its machine cannot execute this unit. If a timing could be repeated
until it passes, its error rates would be higher than stated. Therefore every attempt is counted: attempts in the other
run directories of the reports folder, attempts in the shards of a gate, and attempts of the CI job.

Shards must be timed on equally fast machines. Machines of one kind can differ in speed, because of a locked GPU clock
or a CPU governor. The clock also depends on the workload. Therefore the highest clocks during timings of the same claim
are compared. These clocks may differ as much as the claim allows for the clocks of one process (`sm_clock_spread`).
Processors are compared by their pace, the shortest time that a fixed piece of work took.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from harness.contract.schema import Contract, parts_of
from harness.errors import EvidenceError
from harness.evidence import layout
from harness.evidence.base import Obstacle
from harness.evidence.environment_records import TwoCommits
from harness.evidence.files import readable
from harness.evidence.plan_records import Run, Unit
from harness.evidence.run_evidence import RunEvidence
from harness.evidence.run_records import DISTURBED, disturbed
from harness.judging.verdict import Verdict
from harness.kinds import probe_named
from harness.kinds.speed.model import ThroughputRatio
from harness.run_directory.bundle import Attempts, Bundle, Header, TimedBefore
from harness.run_directory.interrupted_run import other_commits

_Timing = tuple[str, str, str]  # names of contract, claim and workload
# The environment variables in which CI services store the number of a job's attempt, each with the number of the first
# attempt.
CI_ATTEMPTS = {
    "GITHUB_RUN_ATTEMPT": 1,
    "BUILDKITE_RETRY_COUNT": 0,
    "SYSTEM_JOBATTEMPT": 1,  # the variable of Azure Pipelines
}


def attempts_before(header: Header, reports: Path, environment: Mapping[str, str]) -> Attempts:
    """Return the attempts before the run of `header`. The folder `reports` does not contain this run yet.

    A run in `reports` counts, whatever its verdict is, if it planned to time the same unit with equal sources, an equal
    contract and an equal baseline commit. Drills do not count. Directories without a readable `run.json` are ignored.
    """
    return Attempts(timings=_together(timings(header), _same_sources(header, reports)), ci=_of_ci(environment))


def joined_attempts(headers: Mapping[str, Header]) -> Attempts:
    """Return all attempts at each unit except the earliest attempt, which decides the unit.

    headers: the headers of the directories that are judged together, by name. Attempts before these runs count, too.
    """
    by_start = sorted(headers, key=lambda name: (headers[name].started_at, name))
    timed = {name: timings(headers[name]) for name in by_start}
    found = []
    for unit in dict.fromkeys(unit for units in timed.values() for unit in units):
        first, *others = [name for name in by_start if unit in timed[name]]
        before = [each for name in (first, *others) for each in headers[name].attempts.directories(unit)]
        names = [name for name in dict.fromkeys([*before, *others]) if name != first]
        found += [_timed_before(unit, names)] if names else []
    numbers = [header.attempts.ci for header in headers.values() if header.attempts.ci is not None]
    return Attempts(timings=found, ci=max(numbers, default=None))


def timings(header: Header) -> dict[_Timing, str]:
    """Return the timed units of a run. The values are the digests of the units' contracts."""
    return {
        (unit.contract, unit.claim, unit.workload): header.digests.contracts.get(unit.contract, "")
        for unit in header.units
        if any(probe_named(header.runs[run]).timed for run in unit.runs if run in header.runs)
    }


def _same_sources(header: Header, reports: Path) -> dict[str, Header]:
    """Return the headers of the runs in `reports` that have the sources of `header`, by sorted directory name."""
    found = {}
    for path in sorted(reports.glob(f"*/{layout.HEADER}")):
        other = readable(path, Header)
        if other is not None and other.purpose == "verify" and _sources(other) == _sources(header):
            found[path.parent.name] = other
    return found


def _sources(header: Header) -> tuple[str, str | None]:
    """Return the digest of all sources, and the commit of the baseline.

    The commit is None if the run does not compare commits.
    """
    return header.digests.source, header.commits.baseline.commit if header.commits is not None else None


def _together(wanted: Mapping[_Timing, str], others: Mapping[str, Header]) -> list[TimedBefore]:
    timed = {name: timings(header) for name, header in others.items()}
    found = ((unit, [name for name in timed if timed[name].get(unit) == digest]) for unit, digest in wanted.items())
    return [_timed_before(unit, names) for unit, names in found if names]


def _timed_before(unit: _Timing, names: Iterable[str]) -> TimedBefore:
    contract, claim, workload = unit
    return TimedBefore(contract=contract, claim=claim, workload=workload, directories=list(names))


def _of_ci(environment: Mapping[str, str]) -> int | None:
    """Return the number of the CI attempt, counted from 1, or None if it is unknown.

    The first valid variable of `CI_ATTEMPTS` decides.
    """
    for variable, first in CI_ATTEMPTS.items():
        value = environment.get(variable, "")
        if value.isascii() and value.isdigit() and len(value) < 10 and int(value) >= first:
            return int(value) - first + 1
    return None


NOT_IN_ANY_SHARD = Obstacle(reason="not_planned", message="no shard of this gate planned this unit")
NOT_IN_THIS_RUN = Obstacle(reason="not_planned", message="the contract has this unit, but the run did not plan it")


@dataclass(frozen=True)
class Attempt:
    """A unit, and the evidence of its runs, in order. bundle: the directory that has the unit, or None."""

    unit: Unit
    evidence: list[RunEvidence]
    bundle: Bundle | None

    def made(self) -> list[Run | None]:
        """Return the executed runs of the unit, as the evidence records them.

        A run is None if its record cannot be read.
        """
        return [] if self.bundle is None else [self.bundle.made(run) for run in self.unit.runs]


def attempts(bundles: Sequence[Bundle], contracts: Sequence[Contract]) -> list[Attempt]:
    """Return one attempt for every unit that these directories planned or should have planned.

    A single directory should have planned the units that its command line selected. Shards together should have planned
    all units of the contracts. A run with a planted fault is not a gate and has only the units that it planned. Raises
    EvidenceError for shards that do not belong together.
    """
    demanded = [
        Unit(contract=contract.id, claim=claim.id, workload=workload)
        for contract in contracts
        for claim in contract.claims
        for workload in claim.judged_on
    ]
    if len(bundles) == 1:
        header = bundles[0].header
        asked = [unit for unit in demanded if header.narrowed.asks_for(unit)] if header.purpose == "verify" else []
        return _made([*header.units, *asked], bundles, NOT_IN_THIS_RUN, contracts)
    refuse_mixed(bundles)
    by_start = sorted(bundles, key=lambda bundle: (bundle.header.started_at, bundle.path.name))
    planned = [unit for bundle in by_start for unit in bundle.header.units]
    return _made([*demanded, *planned], by_start, NOT_IN_ANY_SHARD, contracts)


def _made(
    units: Sequence[Unit], by_start: Sequence[Bundle], missing: Obstacle, contracts: Sequence[Contract]
) -> list[Attempt]:
    """Return one attempt for each unit, in the order in which the units first occur.

    missing: the obstacle for a unit that no directory planned.
    """
    arms = {
        (contract.id, claim.id): {arm for part in parts_of(claim) for arm in part.arms().values()}
        for contract in contracts
        for claim in contract.claims
    }
    by_name = {name_of(unit): unit for unit in reversed(units)}
    names = dict.fromkeys(name_of(unit) for unit in units)
    wanted = [by_name[name].model_copy(update={"runs": [], "obstacle": missing}) for name in names]
    return [_earliest(unit, by_start, arms.get((unit.contract, unit.claim), set())) for unit in wanted]


def name_of(unit: Unit | Verdict) -> tuple[str, str, str]:
    """Return the names of contract, claim and workload of a unit."""
    return unit.contract, unit.claim, unit.workload


def _earliest(wanted: Unit, by_start: Sequence[Bundle], arms: Collection[str]) -> Attempt:
    planned = [
        _attempt(bundle, unit)
        for bundle in by_start
        for unit in bundle.header.units
        if name_of(unit) == name_of(wanted)
    ]
    made = [attempt for attempt in planned if _was_made(attempt, arms)]
    return next(iter(made or planned), Attempt(wanted, [], None))


def _attempt(bundle: Bundle, unit: Unit) -> Attempt:
    return Attempt(unit, [bundle.evidence(run) for run in unit.runs], bundle)


def _was_made(attempt: Attempt, arms: Collection[str]) -> bool:
    """Return True if an attempt was made. Return False if the machine could not execute the unit.

    That the machine lacks something is recorded in the plan, in a run, or for one of the claim's `arms`.
    """
    of_arms = [failure.obstacle for run in attempt.evidence for arm, failure in run.failed.items() if arm in arms]
    obstacles = [attempt.unit.obstacle, *(run.obstacle for run in attempt.evidence), *of_arms]
    return all(obstacle is None for obstacle in obstacles)


def _commits(bundle: Bundle) -> str:
    commits = bundle.header.commits
    return "no --baseline" if commits is None else "; ".join(commits.lines().values())


def part_names(bundles: Sequence[Bundle]) -> list[str]:
    """Return a different name for each directory: the name of the folder or archive.

    If two names would be equal, all names also contain names of parent folders.
    """
    paths = [bundle.path if bundle.path.name else bundle.path.resolve() for bundle in bundles]
    longest = max(len(path.parts) for path in paths)
    for length in range(1, longest + 1):
        names = ["/".join(path.parts[-length:]) for path in paths]
        if len(set(names)) == len(names):
            break
    return names


def refuse_mixed(bundles: Sequence[Bundle]) -> None:
    """Raise EvidenceError if the shards differ in contracts or sources, or if a shard is a drill."""
    refuse_unfit(bundles)
    for difference in differences(bundles):
        raise difference


def refuse_unfit(bundles: Sequence[Bundle]) -> None:
    """Raise EvidenceError for a drill, for a run with units that its own command line did not select, and for a run
    that is named twice."""
    named: dict[Path, Bundle] = {}
    for bundle in bundles:
        header, first = bundle.header, named.setdefault(bundle.path.resolve(), bundle)
        if first is not bundle:
            repeated_run, leave_one_out = f"{first.path} again", "leave out one of them"
            raise EvidenceError(
                "each run must be named only once", where=str(bundle.path), got=repeated_run, remedy=leave_one_out
            )
        if header.purpose != "verify":
            planted = f"fault `{header.fault}`" if header.purpose == "fault" else "a fire drill"
            leave_one_out = (
                "leave it out; a whole drill and its runs have one page: `harness report RUN DRILL --out FOLDER`"
            )
            rule = "a shard of a gate must not plant a fault"
            raise EvidenceError(rule, where=str(bundle.path), got=planted, remedy=leave_one_out)
        outside = next((unit for unit in header.units if not header.narrowed.asks_for(unit)), None)
        if outside is not None:
            raise EvidenceError(
                "a run may plan only units that its command line selected",
                where=str(bundle.path),
                got=f"{outside.claim} on {outside.workload}, which `narrowed` in {layout.HEADER} does not select",
            )


def differences(bundles: Sequence[Bundle]) -> Iterator[EvidenceError]:
    """Yield an error for each run that cannot be a shard of the same gate as a run before it in `bundles`.

    Such a run has other sources, commits or contracts, or it timed the same claim on another kind of machine.
    """
    contracts: dict[str, tuple[str, Bundle]] = {}
    for number, bundle in enumerate(bundles):
        header = bundle.header
        yield from _other_sources(bundle, bundles[:number])
        apart = (one for one in bundles[:number] if _of_both(header, one.header) != _of_both(one.header, header))
        for other in islice(apart, 1):
            yield EvidenceError(
                "shards must compare the same commits",
                where=str(bundle.path),
                got=f"{_commits(bundle)}, but {other.path} has {_commits(other)}",
                remedy="run the shards again, all with the same two commits",
            )
        for name, digest in header.digests.contracts.items():
            known, other = contracts.setdefault(name, (digest, bundle))
            if known != digest:
                yield EvidenceError(
                    "shards must judge the same contracts",
                    where=str(bundle.path),
                    got=f"contract {name} with digest {digest[:12]}, but {other.path} has {known[:12]}",
                    remedy="run the shards again with one version of the contract",
                )
    yield from _timed_apart(bundles)


def _of_both(header: Header, other: Header) -> TwoCommits | None:
    """Return the two commits that the run `header` compares. Accepted baselines are included only for contracts that
    the run `other` has, too."""
    if header.commits is None:
        return None
    shared = header.digests.contracts.keys() & other.digests.contracts.keys()
    accepted = [one for one in header.commits.accepted if one.contract in shared]
    return header.commits.model_copy(update={"accepted": accepted})


def _other_sources(bundle: Bundle, before: Sequence[Bundle]) -> Iterator[EvidenceError]:
    """Yield an error if the bundle's sources, or the commit of a trainer, differ from those of an earlier bundle."""
    where, remedy = str(bundle.path), "run the shards again from one commit"
    sources = ((one, found) for one in before if (found := _differing_sources(one.header, bundle.header)))
    for other, (what, digest, known) in islice(sources, 1):
        got = f"{what} {digest[:12]}, but {other.path} has {known[:12]}"
        yield EvidenceError("shards must come from the same sources", where=where, got=got, remedy=remedy)
    commits = (
        (one, each) for one in before for each in other_commits(one.header.environment, bundle.header.environment)
    )
    for other, (system, known, commit) in islice(commits, 1):
        got = f"{system} at {commit}, but {other.path} has {known}"
        yield EvidenceError("shards must come from the same commit of a trainer", where=where, got=got, remedy=remedy)


def _differing_sources(first: Header, other: Header) -> tuple[str, str, str] | None:
    """Return the first package whose sources differ between two runs, with its digests in `other` and `first`. Return
    None if no package differs.

    A package that only one of the runs has counts only if the other run has all systems of this run. Otherwise the
    package may belong to a system that the other run does not have. Older headers do not list packages. For them, only
    the digests of all sources together are compared.
    """
    known, found = first.digests.packages, other.digests.packages
    if known and found:
        systems, others = {*first.environment.trainers}, {*other.environment.trainers}
        demanded = ({*known} if systems <= others else set()) | ({*found} if others <= systems else set())
        for name in sorted(demanded | ({*known} & {*found})):
            if known.get(name) != found.get(name):
                return f"sources of {name} with digest", found.get(name, "none"), known.get(name, "none")
        if {*known} != {*found}:
            return None
    if first.digests.source != other.digests.source:
        return "source digest", other.digests.source, first.digests.source
    return None


def _timed_apart(bundles: Sequence[Bundle]) -> Iterator[EvidenceError]:
    """Yield an error for each timed unit whose machine is of another kind than the machine that timed the first unit of
    the same claim."""
    first: dict[tuple[str, str], Bundle] = {}
    for (contract, claim, _), bundle in timed_by(bundles).items():
        other = first.setdefault((contract, claim), bundle)
        kinds = _machine(other.header), _machine(bundle.header)
        if kinds[0] != kinds[1]:
            yield EvidenceError(
                "a claim must be timed on machines of one kind, because other machines differ in speed",
                where=str(bundle.path),
                got=f"{claim} on {kinds[1]}, but {other.path} has {kinds[0]}",
                remedy="run the whole claim again on machines of one kind",
            )


def timed_by(bundles: Sequence[Bundle]) -> dict[tuple[str, str, str], Bundle]:
    """Return, for each timed unit (contract, claim, workload), the deciding directory: that of the earliest attempt.

    A directory whose machine could not execute the unit has no attempt.
    """
    tried: dict[tuple[str, str, str], list[Bundle]] = {}
    for bundle in sorted(bundles, key=lambda each: (each.header.started_at, each.path.name)):
        for unit in timings(bundle.header):
            tried.setdefault(unit, []).append(bundle)
    return {unit: next((one for one in found if _was_timed(one, unit)), found[0]) for unit, found in tried.items()}


def _was_timed(bundle: Bundle, name: tuple[str, str, str]) -> bool:
    attempt = next(_attempt(bundle, unit) for unit in bundle.header.units if name_of(unit) == name)
    arms = {arm for run in attempt.made() if run is not None and probe_named(run.probe).timed for arm in run.arms}
    return _was_made(attempt, arms)


def _machine(header: Header) -> str:
    """Return the kind of machine, on which timings depend: the GPU's name or, without a GPU, the processor's name."""
    return header.environment.gpu.name or header.environment.cpu.model or "unknown"


RULE = "a claim must be timed on machines of one speed"


@dataclass(frozen=True)
class Speed:
    """The speed of a machine while it timed a unit. None: unknown.

    clock: the highest SM clock in MHz. pace: the shortest processor time, in seconds, for a fixed piece of work.
    """

    clock: float | None
    pace: float | None

    @classmethod
    def of(cls, evidence: Sequence[RunEvidence]) -> Speed:
        samples = [sample for run in evidence if run.telemetry is not None for sample in run.telemetry.samples]
        blocks = [block for run in evidence if run.timing is not None for block in run.timing.blocks]
        clocks = [sample.sm_clock_mhz for sample in samples if sample.sm_clock_mhz is not None]
        paces = [block.pace for block in blocks if block.pace is not None]
        return cls(max(filter(math.isfinite, clocks), default=None), min(filter(math.isfinite, paces), default=None))

    def apart(self, other: Speed, spread: float) -> str:
        """Return the difference in speed between two machines as text. Return "" if the difference is allowed. spread:
        the allowed difference of the clocks, as a share of the higher clock."""
        if self.clock and other.clock:
            low, high = sorted((self.clock, other.clock))
            if high - low > spread * high:
                return (
                    f"the highest SM clocks differ: {low:.0f} and {high:.0f} MHz; a difference of {spread:g} of the "
                    "higher clock is allowed"
                )
        if self.pace and other.pace:
            low, high = sorted((self.pace, other.pace))
            if disturbed(high, low):
                return (
                    f"one processor is {high / low:.2f} times as slow as the other at best; {DISTURBED:g} times is "
                    "allowed"
                )
        return ""


def speeds_apart(bundles: Sequence[Bundle], contracts: Sequence[Contract]) -> Iterator[EvidenceError]:
    """Yield an error for each directory whose machine was too fast or too slow, compared with the first machine that
    timed the same claim."""
    deciding: dict[tuple[str, str], list[tuple[str, Bundle]]] = {}
    for (of_contract, of_claim, workload), bundle in timed_by(bundles).items():
        deciding.setdefault((of_contract, of_claim), []).append((workload, bundle))
    for contract in contracts:
        for claim in contract.claims:
            timed = deciding.get((contract.id, claim.id), [])
            limits = [part.limits for part in parts_of(claim) if isinstance(part, ThroughputRatio)]
            if limits and len({bundle.path for _, bundle in timed}) > 1:
                yield from _apart(contract.id, claim.id, timed, limits[0].sm_clock_spread)


def _apart(contract: str, claim: str, timed: Sequence[tuple[str, Bundle]], spread: float) -> Iterator[EvidenceError]:
    speeds = [_speed(bundle, (contract, claim, workload)) for workload, bundle in timed]
    for (_, bundle), speed in zip(timed, speeds, strict=True):
        if found := speeds[0].apart(speed, spread):
            yield EvidenceError(
                RULE,
                where=str(bundle.path),
                got=f"{claim}, in comparison with {timed[0][1].path}: {found}",
                remedy="run the whole claim again on one machine",
            )


def _speed(bundle: Bundle, name: tuple[str, str, str]) -> Speed:
    return Speed.of(
        [bundle.evidence(run) for unit in bundle.header.units if name_of(unit) == name for run in unit.runs]
    )
