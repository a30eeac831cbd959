"""Find mistakes in a valid contract, such as a name that the system does not know, or a claim that lists no fault."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from harness.contract.base import NUDGED_CONTROLS
from harness.contract.load import LoadedContract
from harness.contract.rules import current_rules, in_order, newer_rules
from harness.contract.schema import AnyPart, CompositeClaim, parts_of
from harness.contract.signed_entries import Signed, unmatched
from harness.contract.strict_yaml import nearest
from harness.errors import ContractError, ContractErrors, HarnessError
from harness.judging.reasons import REASONS
from harness.kinds import kind_of
from harness.numbers import counted
from harness.system.adapter_checks import option_error
from harness.system.described import LIMIT_S, describe, describe_all
from harness.system.protocol import FaultDescription, SystemDescription

if TYPE_CHECKING:
    from harness.kinds.speed.speed_figures import LastTiming
    from harness.run_directory.verdict_file import DrillRecord


Describe = Callable[[str], SystemDescription]
LARGEST_FLOAT32 = (2 - 2**-23) * 2.0**127
# The power of a timing (its probability to decide) is computed for a candidate whose true ratio is this multiple of the
# required ratio.
CLEAR = 1.15
POWERLESS = 0.5  # a timing that decides its claim with a smaller probability is not worth its time
_LARGE = re.compile(r"e\+?\d\d|\d{39}")  # matches the text of every number that is greater than LARGEST_FLOAT32


@dataclass(frozen=True)
class Finding:
    """A mistake in a contract. With an `error` the contract cannot be used.

    A `warning` means that the contract proves less than a reader would expect. A `note` suggests a line to add.
    """

    level: Literal["error", "warning", "note"]
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.level}: {self.message}"


def lint(loaded: LoadedContract, describe: Describe, claims: Collection[str] | None = None) -> list[Finding]:
    """Return all findings (mistakes) in a contract, in the order of the file.

    describe: a function that returns the description of a system from its `module:attribute`. claims: ids of the claims
    to check; None checks all. If a system cannot be described, this is an error, and the checks that need its
    description are skipped.
    """
    descriptions, findings = _describe_all(loaded, describe)
    findings += _arms(loaded, descriptions)
    findings += _workloads(loaded, descriptions)
    findings += _claims(loaded, descriptions, claims)
    findings += _numbers(loaded, descriptions, claims)
    return sorted(findings, key=lambda finding: _place(finding, str(loaded.path)))


def errors_of(loaded: LoadedContract, describe: Describe) -> list[Finding]:
    """Return the errors that `lint` finds, except errors about systems that cannot be described."""
    descriptions, _ = _describe_all(loaded, describe)
    found = [*_arms(loaded, descriptions), *_workloads(loaded, descriptions), *_claims(loaded, descriptions, None)]
    errors = [finding for finding in found if finding.level == "error"]
    return sorted(errors, key=lambda finding: _place(finding, str(loaded.path)))


def lint_together(contracts: Sequence[LoadedContract]) -> list[Finding]:
    """Return a warning for each claim id that several contracts use.

    The option `--claim` with such an id selects the claims of all these contracts.
    """
    first: dict[str, LoadedContract] = {}
    findings = []
    for loaded in contracts:
        for index, claim in enumerate(loaded.contract.claims):
            other = first.setdefault(claim.id, loaded)
            if other is not loaded:
                message = f"claim '{claim.id}' is also in contract '{other.contract.id}', so `--claim` selects both"
                findings.append(Finding("warning", loaded.where("claims", index, "id"), message))
    return findings


def has_judge(kind: str) -> bool:
    """Return True if the module of the kind's judge exists. The module is not imported, because judges import numpy."""
    return importlib.util.find_spec(kind_of(kind).judge.partition(":")[0]) is not None


def _place(finding: Finding, own: str) -> tuple[bool, str, int, int]:
    """Return a sort key for a finding.

    The contract's file (`own`) comes first, then shared files, each by line and column.
    """
    file, line, column = finding.where.rsplit(":", 2)
    return file != own, file, int(line), int(column)


def _describe_all(loaded: LoadedContract, describe: Describe) -> tuple[dict[str, SystemDescription], list[Finding]]:
    """Return the descriptions of all systems of the contract, by name, and an error for each system that cannot be
    described."""
    places: dict[str, str] = {loaded.contract.system: loaded.where("system")}
    for name, arm in loaded.contract.arms.items():
        if arm.system is not None:
            places.setdefault(arm.system, loaded.where("arms", name, "system"))
    descriptions, findings = {}, []
    for system, where in places.items():
        try:
            descriptions[system] = describe(system)
        except HarnessError as error:
            findings.append(Finding("error", where, f"the system '{system}' cannot be described: {error}"))
    return descriptions, findings


def _arms(loaded: LoadedContract, descriptions: Mapping[str, SystemDescription]) -> Iterator[Finding]:
    contract = loaded.contract
    used = {arm for claim in contract.claims for part in parts_of(claim) for arm in part.arms().values()}
    for name, arm in contract.arms.items():
        where = loaded.where("arms", name)
        if name not in used and ("arms", name) not in loaded.origins:
            yield Finding("warning", where, f"arm '{name}' is used by no claim")
        system = arm.system or contract.system
        if system not in descriptions:
            continue
        description = descriptions[system]
        if arm.capture not in description.captures:
            known = ", ".join(sorted(description.captures))
            message = f"'{system}' does not support `capture: {arm.capture}`; it supports: {known}"
            yield Finding("error", loaded.where("arms", name, "capture"), message)
        for option, value in arm.settings().items():
            if message := option_error("arm option", option, value, description.arm_options):
                yield Finding("error", loaded.where("arms", name, option), f"'{system}': {message}")


def _workloads(loaded: LoadedContract, descriptions: Mapping[str, SystemDescription]) -> Iterator[Finding]:
    contract = loaded.contract
    used = {name for claim in contract.claims for name in claim.judged_on}
    for name, workload in contract.workloads.items():
        if name not in used and ("workloads", name) not in loaded.origins:
            yield Finding("warning", loaded.where("workloads", name), f"workload '{name}' is used by no claim")
        description = descriptions.get(contract.system)
        if description is None:
            continue
        if description.models and workload.model not in description.models:
            hint = nearest(workload.model, description.models)
            message = f"'{contract.system}' has no model '{workload.model}'; {hint}"
            yield Finding("error", loaded.where("workloads", name, "model"), message)
        for option, value in workload.options.items():
            if message := option_error("workload option", option, value, description.workload_options):
                where = loaded.where("workloads", name, "options", option)
                yield Finding("error", where, f"'{contract.system}': {message}")


def _claims(
    loaded: LoadedContract, descriptions: Mapping[str, SystemDescription], claims: Collection[str] | None
) -> Iterator[Finding]:
    for index, claim in enumerate(loaded.contract.claims):
        if claims is not None and claim.id not in claims:
            continue
        where = loaded.where("claims", index, "id")
        if not claim.falsified_by:
            yield Finding(
                "warning", where, f"claim '{claim.id}' names no fault, so nothing shows that the claim could fail"
            )
        for number, part in enumerate(parts_of(claim)):
            here = ("claims", index, *(("parts", number) if isinstance(claim, CompositeClaim) else ()))
            if not has_judge(part.kind):
                message = f"judge_missing: no judge is installed for '{part.kind}', so '{claim.id}' will be NOT_RUN"
                yield Finding("warning", loaded.where(*here, "kind"), message)
            for field, message in (*_twin_arms(loaded, part), *_captured_plain_arm(loaded, part), *_meaningless(part)):
                yield Finding("warning", loaded.where(*here, *field.split(".")), message)
            for path in part.idle():
                asked = f"`{path}: {part.value_at(path)}` requires nothing"
                message = f"{asked}, because every run meets it: leave it out, or require more"
                yield Finding("warning", loaded.where(*here, *path.split(".")), message)
            for problem in dict.fromkeys(problem for one in part.variants() for problem in one.undecidable()):
                yield Finding("error", loaded.where(*here, *problem.path), problem.rule)
        yield from _faults(loaded, index, descriptions)


def _meaningless(part: AnyPart) -> Iterator[tuple[str, str]]:
    """Yield the field and the message for each number that no measurement can reach, because it is above the largest
    float32."""

    def beyond(value: object, path: str) -> Iterator[tuple[str, object]]:
        if isinstance(value, dict):
            for key, below in value.items():
                yield from beyond(below, f"{path}.{key}" if path else key)
        elif isinstance(value, int | float) and value > LARGEST_FLOAT32:
            yield path, value

    variants = [one for one in part.variants() if _LARGE.search(one.model_dump_json())]
    found = dict(pair for one in variants for pair in beyond(one.model_dump(), ""))
    yield from (
        (path, f"`{path}: {value}` is larger than any float32: write a number that a measurement can reach")
        for path, value in found.items()
    )


def _numbers(
    loaded: LoadedContract, descriptions: Mapping[str, SystemDescription], claims: Collection[str] | None
) -> Iterator[Finding]:
    """Yield a warning for each required number that no fault in the claim's `falsified_by` violates. No drill tests
    such a number."""
    from harness.drill.faults import offered_faults

    if loaded.contract.system not in descriptions:
        return
    offered = offered_faults(descriptions.values())
    for index, claim in enumerate(loaded.contract.claims):
        if claim.falsified_by and (claims is None or claim.id in claims):
            yield from _numbers_of(loaded, index, offered)


def _numbers_of(loaded: LoadedContract, index: int, offered: Mapping[str, FaultDescription]) -> Iterator[Finding]:
    from harness.drill.faults import left_out_for, unbroken

    claim = loaded.contract.claims[index]
    for position, fault in enumerate(claim.falsified_by):
        if fault in offered and (left_out := left_out_for(claim, offered[fault])):
            message = (
                f"fault '{fault}' breaks `{left_out}`, but '{claim.id}' does not set this field, so the fault "
                "will survive the drill"
            )
            yield Finding("warning", loaded.where("claims", index, "falsified_by", position), message)
    for number in unbroken(claim, offered):
        here = ("claims", index, *(("parts", number.part) if isinstance(claim, CompositeClaim) else ()))
        yield Finding("warning", loaded.where(*here, *number.path.split(".")), number.sentence(claim.id))


def _faults(loaded: LoadedContract, index: int, descriptions: Mapping[str, SystemDescription]) -> Iterator[Finding]:
    """Yield an error for each fault that a claim names, if the fault does not exist or declares no verdict for this
    claim."""
    from harness.drill.faults import expectation_for, offered_faults

    if loaded.contract.system not in descriptions:
        return
    offered = offered_faults(descriptions.values())
    claim = loaded.contract.claims[index]
    for position, fault in enumerate(claim.falsified_by):
        where = loaded.where("claims", index, "falsified_by", position)
        if fault not in offered:
            message = f"neither the system nor the harness offers fault '{fault}'; {nearest(fault, offered)}"
            yield Finding("error", where, message)
        elif expectation_for(claim, offered[fault]) is None:
            kinds = ", ".join(sorted({part.kind for part in parts_of(claim)}))
            message = f"fault '{fault}' declares no verdict for '{claim.id}' ({kinds}), so no drill could judge it"
            yield Finding("error", where, message)


def lint_drill(loaded: LoadedContract, records: Sequence[DrillRecord]) -> list[Finding]:
    """Return warnings that follow from drill records of the contract. records: oldest first.

    A drill may cover only some claims, faults or machines. Therefore, for each fault of a claim on a workload, only the
    newest record counts in which this fault was planted.
    """
    from harness.run_directory.verdict_file import last_of

    contract = loaded.contract
    newest = last_of(contract.id, records)
    if newest is None:
        return []
    rows = {
        (row.claim, row.fault, row.workload): (row, record)
        for record in records
        for row in record.rows
        if row.contract == contract.id
    }
    named = {(claim.id, fault): index for index, claim in enumerate(contract.claims) for fault in claim.falsified_by}
    last = [(row, record) for (claim, fault, _), (row, record) in rows.items() if (claim, fault) in named]
    findings = []
    older = [(row, record) for row, record in last if record.contracts.get(contract.id) != loaded.digest]
    if newest.contracts[contract.id] != loaded.digest:
        message = f"the contract has changed since its last drill ({newest.recorded_at}): run the drill again"
        findings.append(Finding("warning", loaded.where("id"), message))
    elif older:
        (row, record), count = older[0], len(older)
        message = (
            f"{counted(count, 'recorded drill result')} {'is' if count == 1 else 'are'} older than the contract "
            f"(first: fault '{row.fault}', {record.recorded_at}): run the drill again"
        )
        findings.append(Finding("warning", loaded.where("id"), message))
    for row, record in last:
        if not row.killed:
            message = f"fault '{row.fault}' survived the last drill ({record.recorded_at}) on {row.workload}"
            findings.append(Finding("warning", loaded.where("claims", named[row.claim, row.fault], "id"), message))
    return findings


def lint_rules(loaded: LoadedContract, claims: Collection[str] | None = None) -> Iterator[Finding]:
    """Yield a note for each rule that is newer than the contract's `rules` version and affects its claims.

    If the contract's `rules` version is newer than this harness, yield a warning, because this harness lacks the newer
    rules.
    """
    current = current_rules()
    if in_order(loaded.contract.rules) > in_order(current):
        message = f'this harness knows the rules up to version {current}: write `rules: "{current}"`'
        yield Finding("warning", loaded.where("rules"), message)
    for concern in newer_rules(loaded, claims):
        rule = concern.rule
        can_be = " or ".join(f"{REASONS[reason].status} `{reason}`" for reason in rule.reasons)
        arms = ", ".join(str(place[-1]) for place in concern.places if rule.into == "arms")
        into = {"arms": f"into {arms}", "contract": "into the contract"}.get(rule.into, "there")
        into = f"into each {rule.into}" if into == "there" and len(concern.places) > 1 else into
        message = (
            f"under the rules of version {rule.version}, {', '.join(concern.claims)} can end {can_be} if {rule.when}: "
            f'write `{rule.write}` {into}, or `rules: "{current}"` if this does not happen here'
        )
        yield Finding("note", loaded.where(*next(iter(concern.places))), message)


def lint_power(loaded: LoadedContract, timings: Iterable[LastTiming]) -> Iterator[Finding]:
    """Yield a warning for each claim whose last timing was so noisy that a new timing would probably not decide it.

    The probability is computed for a candidate whose true ratio is `CLEAR` times the required ratio.
    """
    places = {claim.id: loaded.where("claims", index, "id") for index, claim in enumerate(loaded.contract.claims)}
    for timing in timings:
        if timing.contract != loaded.contract.id:
            continue
        true_ratio = CLEAR * timing.part.at_least
        power = timing.recorded.power(timing.part, true_ratio)
        if power < POWERLESS:
            message = (
                f"with the noise of {timing.run} on {timing.workload}, even a true ratio of {true_ratio:.3g} would be "
                f"decided only with a probability of {100 * power:.0f} %: use more processes, or a quieter machine"
            )
            yield Finding("warning", places[timing.claim], message)


def _twin_arms(loaded: LoadedContract, part: AnyPart) -> Iterator[tuple[str, str]]:
    """Yield field and message for each pair of arms that differ only in name. A comparison of such arms shows nothing.

    Controls whose start parameters the harness changes by a rounding error ("nudged") are left out, because they must
    have the baseline's settings.
    """
    named = [(field, arm) for field, arm in part.arms().items() if field not in NUDGED_CONTROLS]
    for (first, one), (second, other) in combinations(named, 2):
        if not loaded.contract.same_settings(one, other):
            continue
        same = f"arms '{one}' and '{other}' have the same settings"
        if (first, second) == ("candidate", "baseline"):
            by_commits = "without `harness verify --baseline REF`, which compares two commits, the claim is not run"
            yield first, f"{same}: {by_commits}"
        else:
            yield (
                second,
                f"{same}: `{second}` is the same as `{first}` under another name, so the comparison shows nothing",
            )


def _captured_plain_arm(loaded: LoadedContract, part: AnyPart) -> Iterator[tuple[str, str]]:
    """Yield the field and the message if the arm that must be plain (not captured) is captured."""
    field = part.plain_path
    name = None if field is None else part.arms().get(field)
    if field is None or name is None or loaded.contract.arms[name].capture == "none":
        return
    capture = loaded.contract.arms[name].capture
    wrong = "a fault that both captures share would not be noticed"
    yield field, f"`{field}` should be the plain arm, but '{name}' has `capture: {capture}`: {wrong}"


def refuse_lint_errors(
    contracts: Sequence[LoadedContract],
    signed: Sequence[Signed] = (),
    paths: Sequence[Path] = (),
    limit_s: float | None = None,
) -> None:
    """Raise ContractErrors if the lint finds errors in the contracts, or in the signed entries (waivers and accepted
    baselines).

    paths: files and folders in which the signed entries were searched. If a folder is among these paths, an entry for
    an unknown contract is an error.

    limit_s: seconds within which each system must describe itself. The descriptions are kept for later calls. A system
    that cannot be described is not an error here. Its units get the verdict ERROR later, with a better message.
    """
    describe_all([system for one in contracts for system in one.contract.systems()], limit_s or LIMIT_S)
    errors = [ContractError(each.message, where=each.where) for one in contracts for each in errors_of(one, describe)]
    errors += unmatched(signed, contracts, all_known=any(path.is_dir() for path in paths))
    if errors:
        raise ContractErrors(errors)
