"""Divide a gate or a drill into shards. A shard is one harness command in one job. The longest shards are started
first.

Shards are independent of each other. Claims that share runs are in one shard, and a claim is never divided between
machines. Shards that need several GPUs are started before all others, while every GPU is free. After a preemption, a
time limit or the loss of a node, the job of the shard is started again, and the shard is resumed.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from harness.api import session
from harness.api.rejudge import copies
from harness.contract.load import LoadedContract
from harness.contract.schema import AnyClaim, parts_of
from harness.devices import environment
from harness.errors import ExitCode
from harness.evidence import layout
from harness.evidence.files import read_model
from harness.evidence.serving import Shared
from harness.planning.obstacles import gpus_needed, needs_cuda
from harness.processes.kept import KeptProcess
from harness.run_directory.bundle import Bundle, Header
from harness.run_directory.costs import Busy, busy_seconds
from harness.run_directory.interrupted_run import alone_in, as_left, is_free, is_made_elsewhere, left_unfinished
from harness.run_directory.writer import BundleWriter

if TYPE_CHECKING:
    from submitit.helpers import DelayedSubmission

# Largest number of faults in one job of a drill. A fault without a timing takes about 12 s on an H200.
MOST_FAULTS = 16


@dataclass(frozen=True)
class Shard:
    """A part of a gate or a drill: one call of `harness verify`, or of `harness drill` if `drill` is True.

    faults: the faults to plant; empty means all. on_gpu: True if a unit needs a GPU. gpus: the largest number of GPUs
    that a unit uses, at least 1. seconds: the time that the shard took when it was last recorded, or infinity if a unit
    has no record.
    """

    name: str
    contract: Path
    claims: tuple[str, ...]
    faults: tuple[str, ...] = ()
    drill: bool = False
    on_gpu: bool = False
    gpus: int = 1
    seconds: float = math.inf

    def words(self, but: Collection[str] = ()) -> list[str]:
        """Return the words of the job's command line after `harness`. but: claims to leave out. Options that all jobs
        have in common are not among the words."""
        narrowed = [word for claim in self.claims if claim not in but for word in ("--claim", claim)]
        narrowed += [word for fault in self.faults for word in ("--fault", fault)]
        return ["drill" if self.drill else "verify", str(self.contract), *narrowed]


Recorded = Mapping[tuple[str, str, str], Sequence[Busy]]
"""The recorded times of each unit (contract, claim, workload), as `busy_times` returns them."""


def units_of(contracts: Sequence[LoadedContract]) -> list[tuple[str, str, str]]:
    """Return (contract, claim, workload) for every unit of the contracts."""
    loaded = (one.contract for one in contracts)
    return [(one.id, claim.id, workload) for one in loaded for claim in one.claims for workload in claim.judged_on]


def gate_shards(contracts: Sequence[LoadedContract], recorded: Recorded | None = None, places: int = 1) -> list[Shard]:
    """Divide all claims of a gate into shards (commands in separate jobs), the longest shard first.

    Each timed claim gets a separate shard. The other claims of a contract are in one shard. If this shard takes longer
    than the total time divided by `places`, its claims are divided among several shards, but claims that share runs
    stay together.
    """
    timed, others = [], []
    for loaded in contracts:
        rest = []
        for claim in loaded.contract.claims:
            if _is_timed(claim):
                timed.append(_shard(claim.id, loaded, (claim.id,)))
            else:
                rest.append(claim.id)
        if rest:
            others.append(_shard(loaded.contract.id, loaded, tuple(rest)))
    whole = _longest_first(timed + others, recorded, contracts)
    fair = sum(shard.seconds for shard in whole if shard.seconds < math.inf) / places
    parts = [part for shard in whole for part in _split(shard, fair, recorded or {}, contracts)]
    return whole if len(parts) == len(whole) else _longest_first(parts, recorded, contracts)


def _split(shard: Shard, fair: float, recorded: Recorded, contracts: Sequence[LoadedContract]) -> list[Shard]:
    """Divide a shard (the claims of one job) into shards of at most `fair` seconds. A new shard may be longer if its
    claims share runs. If `shard` is short enough, or if its seconds are unknown, return only `shard`."""
    if not fair < shard.seconds < math.inf:
        return [shard]
    [loaded] = [one for one in contracts if one.path == shard.contract]
    groups: list[tuple[tuple[str, ...], set[Busy]]] = []
    for name in shard.claims:
        busy = {one for unit, times in recorded.items() if unit[:2] == (loaded.contract.id, name) for one in times}
        joined = [group for group in groups if group[1] & busy]
        groups = [group for group in groups if group not in joined]
        groups.append(((*chain.from_iterable(group[0] for group in joined), name), busy.union(*(g[1] for g in joined))))
    bins: list[tuple[tuple[str, ...], set[Busy]]] = []
    for claims, busy in sorted(groups, key=lambda group: -busy_seconds(group[1])):
        fitting = next((n for n, one in enumerate(bins) if busy_seconds(one[1] | busy) <= fair), len(bins))
        bins[fitting : fitting + 1] = [
            (bins[fitting][0] + claims, bins[fitting][1] | busy) if fitting < len(bins) else (claims, busy)
        ]
    return [_shard(shard.name, loaded, claims) for claims, _ in bins]


def drill_shards(contracts: Sequence[LoadedContract], recorded: Recorded | None = None) -> list[Shard]:
    """Divide all faults of all claims into shards (commands in separate jobs).

    Each shard also runs its claims once without a fault, as a control. Each fault of a timed claim has a separate
    shard. Claims without faults are in no shard.
    """
    timed, others = [], []
    for loaded in contracts:
        untimed: list[AnyClaim] = []
        for claim in loaded.contract.claims:
            if not _is_timed(claim):
                untimed += [claim] if claim.falsified_by else []
                continue
            timed += [
                _shard(f"{claim.id}-{fault}", loaded, (claim.id,), (fault,), drill=True) for fault in claim.falsified_by
            ]
        name = loaded.contract.id
        others += [
            _shard(f"{name}-{number}", loaded, claims, drill=True) for number, claims in enumerate(_in_groups(untimed))
        ]
    return _longest_first(timed + others, recorded, contracts)


def _longest_first(
    shards: Sequence[Shard], recorded: Recorded | None, contracts: Sequence[LoadedContract]
) -> list[Shard]:
    """Return the shards (commands in separate jobs) in the order in which they are started, with unique names and the
    seconds that they will take.

    Shards that need more GPUs come first. Among shards with equal numbers of GPUs, those without recorded seconds come
    first, and then the longest. A drill's shard takes the seconds of its run without a fault, times (1 + its faults).
    """
    by_path = {loaded.path: loaded.contract for loaded in contracts}
    lasting = []
    for shard in shards:
        contract = by_path[shard.contract]
        claims = [claim for claim in contract.claims if claim.id in shard.claims]
        units = ((contract.id, claim.id, workload) for claim in claims for workload in claim.judged_on)
        times = [(recorded or {}).get(unit, ()) for unit in units]
        seconds = busy_seconds(chain.from_iterable(times)) if all(times) else math.inf
        planted = len(shard.faults) or max(len(claim.falsified_by) for claim in claims)
        lasting.append(replace(shard, seconds=seconds * (1 + planted if shard.drill else 1)))
    return sorted(_named_apart(lasting), key=lambda shard: (-shard.gpus, -shard.seconds))


def _named_apart(shards: Sequence[Shard]) -> list[Shard]:
    """Return the shards (commands in separate jobs) with unique names. Two names must differ in more than upper and
    lower case. Contracts may contain the same claim ids."""
    names: set[str] = set()
    apart = []
    for shard in shards:
        others = (f"{shard.name}-{number}" for number in count(2))
        name = next(name for name in chain([shard.name], others) if name.casefold() not in names)
        names.add(name.casefold())
        apart.append(replace(shard, name=name))
    return apart


def _shard(
    name: str, loaded: LoadedContract, claims: tuple[str, ...], faults: tuple[str, ...] = (), *, drill: bool = False
) -> Shard:
    contract = loaded.contract
    units = [
        (contract, claim, contract.workloads[name])
        for claim in contract.claims
        if claim.id in claims
        for name in claim.judged_on
    ]
    on_gpu = any(needs_cuda(*unit) for unit in units)
    gpus = max([1, *(gpus_needed(*unit) for unit in units)])
    return Shard(name, loaded.path, claims, faults, drill, on_gpu, gpus)


def _in_groups(claims: Sequence[AnyClaim]) -> list[tuple[str, ...]]:
    """Return the claims in groups, in their order. The claims of a group have at most `MOST_FAULTS` faults together. A
    claim that has more faults is the only claim of its group."""
    groups: list[list[str]] = []
    planted = MOST_FAULTS
    for claim in claims:
        if planted + len(claim.falsified_by) > MOST_FAULTS:
            groups.append([])
            planted = 0
        groups[-1].append(claim.id)
        planted += len(claim.falsified_by)
    return [tuple(group) for group in groups]


def _is_timed(claim: AnyClaim) -> bool:
    return any(part.kind == "throughput_ratio" for part in parts_of(claim))


# The functions below handle a shard whose job was started again on another machine. The interrupted run directory is
# renamed and stays unchanged. Claims whose runs are all complete are copied to a separate, complete run directory.
# Other claims start again on the new machine, because two machines must not decide one claim together.

ENDED, LEFT = ".ended-", ".left-"  # suffixes of the name of a shard's directory; a number follows them


def run_directories(final: Path) -> list[Path]:
    """Return the run directories that have the results of one shard (the command of one job). Each claim of the shard
    is in only one of them."""
    own = [final] if (final / layout.HEADER).is_file() else []
    return [*sorted(final.parent.glob(f"{final.name}{ENDED}*")), *own]


def settled_claims(final: Path) -> set[str]:
    """Return the claims of the shard (the command of one job) that were decided on an earlier machine, before the job
    was started again."""
    earlier = final.parent.glob(f"{final.name}{ENDED}*/{layout.HEADER}")
    return {claim for path in earlier for claim in read_model(path, Header).narrowed.claims}


def set_aside(left: Path, final: Path, *, settled: bool) -> None:
    """Rename the interrupted directory `left`. If `settled` is True, first copy the claims whose runs are all complete
    to a new directory.

    Raises UsageError if another process is writing into `left`. Raises EvidenceError if files in `left` were changed.
    """
    number = 1 + len(list(final.parent.glob(f"{final.name}{LEFT}*")))
    decided = final.with_name(f"{final.name}{ENDED}{number}")
    with alone_in(left):
        if settled and not decided.exists():
            _settle(left, decided)
        left.rename(final.with_name(f"{final.name}{LEFT}{number}"))


def _settle(left: Path, decided: Path) -> None:
    bundle, journal = as_left(left)
    header = bundle.header
    kept = [claim for claim in header.narrowed.claims if _all_ended(bundle, claim, set(journal.ended))]
    if not kept:
        return
    units = [unit for unit in header.units if unit.claim in kept]
    read = {run for unit in units for run in unit.runs}
    changes = {
        "units": units,
        "runs": {run: probe for run, probe in header.runs.items() if run in read},
        "narrowed": header.narrowed.model_copy(update={"claims": kept}),
    }
    contracts = copies([bundle])
    waivers = [path.read_text(encoding="utf-8") for path in sorted((left / layout.WAIVERS).glob("*.yaml"))]
    writer = BundleWriter(decided, header.model_copy(update=changes), contracts, waivers)
    for run in sorted(read):
        shutil.copytree(left / layout.EVIDENCE / run, writer.evidence_directory(run), symlinks=True)
    writer.settle()
    session.write_judgement(writer.path, session.judge_bundles([writer.bundle()], contracts))
    writer.finish()


def _all_ended(bundle: Bundle, claim: str, ended: set[str]) -> bool:
    """Return True if all runs of the claim's units have ended, and also the runs whose evidence these runs use."""
    own = {run for unit in bundle.header.units if unit.claim == claim for run in unit.runs}
    shared = [bundle.root / layout.EVIDENCE / run / layout.SHARED for run in own & ended]
    hosts = {read_model(path, Shared).run for path in shared if path.exists()}
    return bool(own) and own | hosts <= own & ended


POLL_S = 0.5
OWNER = ".submitter"  # a file that the submitting command keeps locked if its jobs must end when the command ends
# Variables that are removed from a job's environment, because only the submitting command writes annotations and the
# summary.
OF_THE_WHOLE = ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY")
LOCK_WAIT_S = 120.0  # longest wait for a lock in seconds; a network file system frees a lost node's lock after 90 s


@dataclass(frozen=True)
class Outcome:
    """The end of a shard (the command of one job): the exit code, the last node, and how often the job was started
    again. If a signal ended the harness in the job, the shard has no outcome."""

    code: int
    node: str
    restarts: int = 0


@dataclass(frozen=True)
class ShardJob:
    """The object that submitit calls on a node each time that the job starts. Runs that have ended before are not
    repeated.

    harness: the words that start the harness. directory: an absolute path on a file system that all nodes share. The
    run directory is `directory/NAME`, and the output is in `NAME.txt`. variables: added to the environment of the job.
    owned: True if the job must end when the command that submitted it ends.
    """

    shard: Shard
    harness: tuple[str, ...]
    directory: Path
    passed_on: tuple[str, ...]
    variables: Mapping[str, str]
    owned: bool = False

    def __call__(self) -> Outcome:
        signal.signal(signal.SIGTERM, _leave)  # replaces submitit's handler, which ignores SIGTERM
        code = self._execute(self._words())
        if code < 0 or code in {ExitCode.INTERRUPTED, ExitCode.TERMINATED}:
            # The signal may soon end this process, too: if a job is ended or a node is lost, its processes die in any
            # order. The job will then be started again. Return no result now, because a result would end the shard.
            raise SystemExit(128 - code if code < 0 else code)
        facts = environment.job_facts()
        return Outcome(code, facts.node or "", facts.restarts or 0)

    def checkpoint(self) -> DelayedSubmission:
        """Return this job, so that it is submitted again. submitit calls this method shortly before the time limit."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)

    def _words(self) -> list[str]:
        """Return the words of a command that starts the job's work, resumes it, or judges its complete run
        directories."""
        final = self.directory / self.shard.name
        left = left_unfinished(final)
        until = time.monotonic() + LOCK_WAIT_S
        while left is not None and not is_free(left / layout.LOCK) and time.monotonic() < until:
            time.sleep(POLL_S)
            left = left_unfinished(final)  # a process that is still writing into the directory may complete it
        if left is None and (final / layout.MANIFEST).exists():
            return ["judge", str(final)]  # the work was complete before the job was started again
        if left is not None and is_made_elsewhere(left):
            set_aside(left, final, settled=not self.shard.drill)
            left = None
        ended = settled_claims(final)
        if ended and ended >= set(self.shard.claims):
            return ["judge", *map(str, run_directories(final))]
        where = ["--resume", str(left)] if left else ["--reports", str(self.directory), "--name", self.shard.name]
        return [*self.shard.words(ended), *self.passed_on, *where]

    def _execute(self, words: list[str]) -> int:
        """Run the harness as a child process and return its exit code. If this process is interrupted, send SIGTERM to
        the harness and wait for its end."""
        inherited = {name: value for name, value in os.environ.items() if name not in OF_THE_WHOLE}
        with (self.directory / f"{self.shard.name}.txt").open("ab") as log:
            process = KeptProcess(
                [*self.harness, *words],
                env={**inherited, **self.variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        with process:
            try:
                return self._watched(process)
            except BaseException:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                process.terminate()
                process.wait()
                raise

    def _watched(self, process: KeptProcess) -> int:
        while True:
            try:
                return process.wait(POLL_S)
            except subprocess.TimeoutExpired:
                # the lock is free, so the command that submitted this job was killed
                if self.owned and is_free(self.directory / OWNER):
                    raise SystemExit(ExitCode.TERMINATED) from None


def _leave(_number: int, _frame: object) -> NoReturn:
    """Exit without a result. A job with a result would count as ended, but this job will be started again."""
    raise SystemExit(ExitCode.TERMINATED)
