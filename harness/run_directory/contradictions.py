"""Compare what a header claims with the directory: a seal shows that nothing was changed, not that it fits together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime

from harness.contract.schema import Contract
from harness.contract.waivers import load_waivers
from harness.errors import ContractError, ContractErrors
from harness.evidence import layout
from harness.evidence.environment_records import CHANGES
from harness.evidence.files import readable
from harness.evidence.worker_times import ProcessTimes
from harness.run_directory.bundle import Bundle
from harness.run_directory.names import shown


def contradictions(bundle: Bundle, contracts: Sequence[Contract] | None) -> list[str]:
    """Return one line for each thing that the header claims and the directory contradicts.

    contracts: the directory's own copies; None where they cannot be read, so that the names in them are unknown.
    """
    unknown = _unknown_names(bundle, contracts) if contracts is not None else ()
    found = [*unknown, *_narrowing(bundle), *_runs(bundle), *_machine(bundle), *_waivers(bundle)]
    return [f"{layout.HEADER}: {line}" for line in dict.fromkeys(found)]


def _unknown_names(bundle: Bundle, contracts: Sequence[Contract]) -> Iterator[str]:
    """Yield names that the run was narrowed to and that no contract has."""
    narrowed = bundle.header.narrowed
    claims = [claim for contract in contracts for claim in contract.claims]
    workloads = {name for claim in claims for name in claim.judged_on}
    tags = {tag for contract in contracts for claim in contract.claims for tag in contract.tags_of(claim)}
    known = (
        ("claim", narrowed.claims, {claim.id for claim in claims}),
        ("workload", narrowed.workloads, workloads),
        ("tag", narrowed.tags, tags),
    )
    for kind, names, there in known:
        for name in names:
            if name not in there:
                yield f"it was narrowed to {kind} {shown(name)}, which no contract here has"


def _narrowing(bundle: Bundle) -> Iterator[str]:
    """Yield units outside the part that was requested."""
    narrowed = bundle.header.narrowed
    for unit in bundle.header.units:
        if not narrowed.asks_for(unit):
            yield f"{shown(unit.claim)} on {shown(unit.workload)} is planned, and its `narrowed` leaves it out"


def _runs(bundle: Bundle) -> Iterator[str]:
    """Yield runs that a unit reads and no plan has, planned runs that no unit reads, and evidence of unplanned runs."""
    header = bundle.header
    read = {run for unit in header.units for run in unit.runs}
    yield from (f"run {shown(run)} is read by a unit, and was not planned" for run in sorted(read - set(header.runs)))
    if header.purpose != "drill":  # there rows read runs, too
        yield from (f"run {shown(run)} was planned, and no unit reads it" for run in sorted(set(header.runs) - read))
    left: list[str] = []
    with suppress(OSError):  # no folder, or one that this user may not read, which the seal says
        left = sorted(path.name for path in (bundle.root / layout.EVIDENCE).iterdir())
    stray = [name for name in left if name not in header.runs]
    yield from (f"{layout.EVIDENCE}/{shown(name)} is of no run that was planned" for name in stray)


def _machine(bundle: Bundle) -> Iterator[str]:
    """Yield where the header's GPU, commit or sources contradict each worker's own records."""
    header = bundle.header
    collected = header.environment
    if collected.source_digest and collected.source_digest != header.digests.source:
        yield "`digests.source` is not `environment.source_digest`"
    for path in sorted((bundle.root / layout.EVIDENCE).rglob(layout.PROCESS)):
        if (process := readable(path, ProcessTimes)) is None:
            continue  # which is the account of seconds' to say
        used, commit = process.gpu, (collected.git.commit or "none").removesuffix(CHANGES)
        if process.commit not in {None, commit}:
            run = shown(path.parent.name)
            yield f"the commit is {shown(commit)}, and run {run} was executed at {shown(process.commit)}"
        tested = header.commits
        known = {tested.candidate.commit, tested.baseline.commit} if tested is not None else set()
        for trained in sorted({*process.trained} - known):
            which = " and ".join(shown(one) for one in sorted(known)) or "none"
            yield f"the tested commits are {which}, and run {shown(path.parent.name)} trained {shown(trained)}"
        if used is not None and used != collected.gpu.uuid:
            gpu = shown(collected.gpu.uuid or "none")
            yield f"the GPU is {gpu}, and run {shown(path.parent.name)} held {shown(used)}"
    for run in header.runs:
        for arm, kernels in bundle.evidence(run).kernels.items():
            if kernels.device is not None and kernels.device != collected.gpu.architecture:
                gpu = shown(collected.gpu.architecture or "none")
                yield f"the GPU is of {gpu}, and arm {shown(arm)} of run {shown(run)} saw {shown(kernels.device)}"


def _waivers(bundle: Bundle) -> Iterator[str]:
    """Yield waivers that the copied waiver files lack, word for word, on the day on which the run began."""
    header = bundle.header
    if not header.waivers:
        return
    try:
        day = datetime.fromisoformat(header.started_at).date()
    except ValueError:
        yield "`started_at` is no time"
        return
    try:
        files = sorted((bundle.root / layout.WAIVERS).glob("*.yaml"))
        signed = [waiver.record(day) for path in files for waiver in load_waivers(path)]
    except (ContractErrors, ContractError):
        yield f"the files in {layout.WAIVERS}/ are no waivers"
        return
    for waiver in header.waivers:
        if waiver.model_dump() not in signed:
            unit = f"{shown(waiver.claim)} on {shown(waiver.workload)}"
            yield f"the waiver of {unit} stands in no file of {layout.WAIVERS}/ as it stands here"
