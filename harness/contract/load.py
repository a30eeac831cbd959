"""Load contracts from files: read YAML strictly, validate, and check references between the parts of a contract. Every
error has a place in the file, and most errors have a remedy."""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from dataclasses import field as dataclasses_field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from harness.contract import shared, strict_yaml, version_1
from harness.contract.base import NUDGED_CONTROLS, UNREAD, Problem
from harness.contract.conditional import Bounds, Reading
from harness.contract.schema import (
    SCHEMA_VERSION,
    AnyClaim,
    AnyPart,
    ClaimText,
    CompositeClaim,
    Contract,
    Workload,
    parts_of,
)
from harness.contract.shared import RULE, Locate, SharedFile, SharedFiles, files_of_folder, real, shared_files
from harness.contract.strict_yaml import MOST_ERRORS, Key, nearest
from harness.contract.validation_errors import explain
from harness.errors import ContractError, ContractErrors, UsageError
from harness.kinds import kind_of
from harness.numbers import counted
from harness.platform.paths import require_existing

Place = tuple[Key, ...]


def problems(contract: Contract, only_on: Mapping[int, Collection[str]] = MappingProxyType({})) -> list[Problem]:
    """Return a problem for each unknown name and each requirement that cannot be met, in the order of the claims.

    only_on: for each claim, by index, the workloads to which the numbers in `contract` apply. By default, they apply to
    all workloads.
    """
    return list(_problems(contract, only_on))


def _problems(contract: Contract, only_on: Mapping[int, Collection[str]]) -> Iterator[Problem]:
    yield from _names_in_one_case(contract)
    judgements = {claim.id: parts_of(claim) for claim in contract.claims}
    for index, claim in enumerate(contract.claims):
        here: Place = ("claims", index)
        yield from _workload_names(contract, claim, here)
        yield from _excused_ends(claim, here)
        composite = isinstance(claim, CompositeClaim)
        for number, part in enumerate(parts_of(claim)):
            path: Place = (*here, "parts", number) if composite else here
            named = part.arms()
            yield from _arm_names(contract, part, named, path)
            yield from _ranks(contract, part, named, path)
            yield from _control_of_ends(contract, named, path)
            for problem in (*part.contradictions(), *part.dangling_names(claim.judged_on, judgements)):
                yield replace(problem, path=(*path, *problem.path))
            for name in claim.judged_on:
                if name in contract.workloads and name in only_on.get(index, claim.judged_on):
                    yield from _on_workload(claim, part, path, name, contract.workloads[name])
                    yield from _shares(contract, named, path, name)
                    yield from _warm_steps(contract, named, path, name)


def _names_in_one_case(contract: Contract) -> Iterator[Problem]:
    """Yield a problem for each name that equals an earlier name or differs from it only in upper and lower case. On
    some file systems, files with these two names would be the same file."""
    named: list[tuple[str, list[tuple[Place, str]]]] = [
        ("claim ids", [(("claims", index, "id"), claim.id) for index, claim in enumerate(contract.claims)]),
        ("workloads", [(("workloads", name), name) for name in contract.workloads]),
        ("arms", [(("arms", name), name) for name in contract.arms]),
    ]
    for what, names in named:
        seen: dict[str, str] = {}
        for path, name in names:
            first = seen.get(name.casefold())
            if first is not None:
                got = (
                    f"'{name}' again"
                    if first == name
                    else f"'{name}', which differs from '{first}' only in upper and lower case"
                )
                yield Problem(path, f"{what} must be unique", got, "rename one of the two")
            seen.setdefault(name.casefold(), name)


def _workload_names(contract: Contract, claim: AnyClaim, here: Place) -> Iterator[Problem]:
    for position, name in enumerate(claim.judged_on):
        path = (*here, "judged_on", position)
        if name not in contract.workloads:
            yield Problem(
                path, "`judged_on` must name an existing workload", f"'{name}'", nearest(name, contract.workloads)
            )
        elif name in claim.judged_on[:position]:
            yield Problem(path, "`judged_on` must name each workload once", f"'{name}' again", "remove it")


def _excused_ends(claim: AnyClaim, here: Place) -> Iterator[Problem]:
    """Yield a problem if a claim has `may_end_apart` although none of its parts compares the state at the end."""
    kinds = [part.kind for part in parts_of(claim)]
    if claim.may_end_apart and all("equal_ends" in kind_of(kind).leaves_out for kind in kinds):
        rule = "`may_end_apart` is only for claims that compare the state at the end"
        yield Problem(
            (*here, "may_end_apart"), rule, f"`{kinds[0]}`, which does not compare it", "leave `may_end_apart` out"
        )


def _arm_names(contract: Contract, part: AnyPart, named: Mapping[str, str], path: Place) -> Iterator[Problem]:
    """Yield a problem for each arm that does not exist, for each arm that is named twice, and for each arm that must
    capture its step but does not."""
    seen: dict[str, str] = {}
    for field, arm in named.items():
        if arm not in contract.arms:
            yield Problem(
                (*path, *field.split(".")),
                f"`{field}` must name an existing arm",
                f"'{arm}'",
                nearest(arm, contract.arms),
            )
        elif arm in seen:
            rule = "an arm must not be compared with itself"
            got = f"'{arm}' as `{seen[arm]}` and as `{field}`"
            yield Problem((*path, *field.split(".")), rule, got, "name another arm")
        seen.setdefault(arm, field)
    candidate = named[part.candidate_path]
    if part.captures_candidate() and candidate in contract.arms and contract.arms[candidate].capture == "none":
        place = (*path, *part.candidate_path.split("."))
        remedy = "give it `capture: step` or `capture: backward`"
        yield Problem(place, "the candidate of a claim about a capture must capture its step", f"'{candidate}'", remedy)


def _control_of_ends(contract: Contract, named: Mapping[str, str], path: Place) -> Iterator[Problem]:
    """Yield the problems of a nudged control (a baseline whose initial parameters are slightly changed), which a field
    in `NUDGED_CONTROLS` names. The control must have the baseline's settings. For `ends`, candidate and baseline must
    also have the same system."""
    arms = {name: contract.arms[arm] for name, arm in named.items() if arm in contract.arms}
    control = next((field for field in NUDGED_CONTROLS if field in named), None)
    if control is None or "baseline" not in named or len(arms) < len(named):
        return
    if not contract.same_settings(named[control], named["baseline"]):
        rule = f"the control {'of `ends` ' if control == 'ends.control' else ''}must have the baseline's settings"
        got = f"'{named[control]}', whose settings differ from those of '{named['baseline']}'"
        yield Problem(
            (*path, *control.split(".")),
            rule,
            got,
            "use the baseline's settings; the harness itself changes the control's initial parameters by a rounding",
        )
    systems = {arms[role].system or contract.system for role in ("candidate", "baseline")}
    if control == "ends.control" and len(systems) > 1:
        rule = "`ends` needs arms of the same system, whose tensors have the same names"
        got = f"two systems, of '{named['candidate']}' and '{named['baseline']}'"
        yield Problem((*path, "ends"), rule, got, "leave `ends` out")


def _ranks(contract: Contract, part: AnyPart, names: Mapping[str, str], path: Place) -> Iterator[Problem]:
    """Yield the problems with ranks. Compared arms must have equal numbers of ranks. A claim about ranks needs several
    ranks."""
    named = {field: arm for field, arm in names.items() if arm in contract.arms}
    of_candidate = contract.arms[named[part.candidate_path]] if part.candidate_path in named else None
    candidate = 1 if of_candidate is None else of_candidate.ranks
    for field, arm in named.items():
        ranks, place = contract.arms[arm].ranks, (*path, *field.split("."))
        if part.judged_at != "all ranks" and ranks != candidate:
            rule = "arms that are compared rank by rank must have equal numbers of ranks"
            yield Problem(
                place,
                rule,
                f"{ranks} in '{arm}' and {candidate} in the candidate",
                "use the kind `ranks_match` for different numbers",
            )
        elif part.judged_at == "all ranks" and field == part.candidate_path and ranks == 1:
            yield Problem(
                place, "a claim about ranks needs an arm with several ranks", f"'{arm}' has 1", "write `ranks: 2`"
            )
        elif field == "in_turn" and of_candidate is not None and (candidate > 2 or of_candidate.shares < candidate):
            # a sum of two values has the same bits in either order; for more values, a communication library chooses
            # the order
            rule = "`in_turn` compares bits, so the candidate must have two ranks that read two shares"
            got = f"{counted(candidate, 'rank')} with {counted(of_candidate.shares, 'share')}"
            yield Problem(place, rule, got, "write `ends: {control: …, at_most: 0.01}` instead")
        elif part.judged_at == "all ranks" and field != part.candidate_path and ranks > 1:
            yield Problem(
                place,
                "ranks must be compared with one process",
                f"{ranks} ranks in '{arm}'",
                "name an arm with one rank",
            )


def _shares(contract: Contract, named: Mapping[str, str], path: Place, name: str) -> Iterator[Problem]:
    """Yield a problem for each arm whose ranks cannot divide the workload's batch into equal shares."""
    size = contract.workloads[name].batch_size
    for field, arm in named.items():
        ranks, shares = (contract.arms[arm].ranks, contract.arms[arm].shares) if arm in contract.arms else (1, 1)
        if size % shares:
            rule = "ranks must take equal shares of a batch"
            got = f"{ranks} ranks in '{arm}' and batches of {size} in workload '{name}'"
            yield Problem((*path, *field.split(".")), rule, got, f"make `batch_size` a multiple of {shares}")


def _warm_steps(contract: Contract, named: Mapping[str, str], path: Place, name: str) -> Iterator[Problem]:
    """Yield a problem for each arm whose capture would come after the last step of its workload."""
    steps = contract.workloads[name].steps
    for field, arm in named.items():
        warm = contract.arms[arm].warm_steps if arm in contract.arms else 0
        if warm >= steps:
            rule = "an arm must be captured before its last step"
            got = f"`warm_steps: {warm}` in '{arm}' and `steps: {steps}` in workload '{name}'"
            yield Problem((*path, *field.split(".")), rule, got, "lower `warm_steps`, or give the workload more steps")


def _on_workload(claim: AnyClaim, part: AnyPart, path: Place, name: str, workload: Workload) -> Iterator[Problem]:
    """Yield a problem for each value that does not fit the workload's number of steps, and a problem if the claim
    requires CUDA graphs although the workload needs the CPU."""
    for place, rule in part.beyond(workload.steps):
        got = f"workload '{name}' has {workload.steps} steps"
        yield Problem((*path, *place), rule, got, "lower the number, or give the workload more steps")
    mechanism = claim.mechanism or part.mechanism
    if mechanism == "cuda_graph" and workload.needs.device == "cpu":
        remedy = "name a workload that needs cuda, or use `mechanism: traced`"
        rule = "a claim with `mechanism: cuda_graph` must be judged on a CUDA device"
        yield Problem(path, rule, f"workload '{name}', which needs device cpu", remedy)


NO_CONTRACT = "move a file that is not a contract to another folder, or to a hidden one"


@dataclass(frozen=True)
class LoadedContract:
    """A valid contract and its source.

    digest: the SHA-256, in hexadecimal, of the bytes of the file. If the contract uses shared files, their digests are
    hashed too. value: the content of the contract, translated to version 2 of the language and joined with its shared
    files (`shared`). version: the version of the language in which the file is written.
    """

    contract: Contract
    path: Path
    text: str
    digest: str
    value: Mapping[str, Any]
    position: Callable[[tuple[str | int, ...]], strict_yaml.Position]
    version: Literal[1, 2] = 2
    shared: Sequence[SharedFile] = ()
    origins: Mapping[tuple[str, str], strict_yaml.Document] = dataclasses_field(default_factory=dict)

    def demands(self) -> str:
        """Return a digest of everything in the contract by which runs are executed and judged. Texts for people, such
        as titles, do not influence the digest."""
        return _demands(self.value)

    def where(self, *path: str | int) -> str:
        """Return `file:line:column` of the value at `path`. If the file does not contain the value, return the position
        of the nearest parent that the file contains."""
        line, column = self.position(path)
        origin = self.origins.get((str(path[0]), str(path[1]))) if len(path) > 1 else None
        return f"{self.path if origin is None else origin.where}:{line}:{column}"


def load_contract(path: Path, files: SharedFiles | None = None) -> LoadedContract:
    """Load one contract file. Raises ContractError, or ContractErrors if there are several errors.

    files: a reader of shared files. By default, a new reader searches for shared files relative to the contract's
    folder.
    """
    return loaded_from(strict_yaml.read(path), path, files)


def loaded_from(document: strict_yaml.Document, path: Path, files: SharedFiles | None = None) -> LoadedContract:
    """Return the contract in a document that was read from `path`. Raises the same errors as `load_contract`."""
    document, used = _joined(document, path, files)
    contract, errors = _validated(document)
    if errors or contract is None:
        raise errors[0] if len(errors) == 1 else ContractErrors(errors)
    digest = shared.contract_digest(document.text.encode(), [file.digest for file in used])
    version: Literal[1, 2] = 1 if document.written else 2
    return LoadedContract(
        contract, path, document.text, digest, document.value, document.position, version, tuple(used), document.origins
    )


def demands_of(path: Path, files: SharedFiles) -> str:
    """Return `LoadedContract.demands` for a contract file in a run directory. The file was validated when the run was
    planned, and is not validated again."""
    return _demands(_joined(strict_yaml.read(path), path, files)[0].value)


def _joined(
    document: strict_yaml.Document, path: Path, files: SharedFiles | None
) -> tuple[strict_yaml.Document, list[SharedFile]]:
    """Return the document, translated to version 2 and joined with its shared files, and these shared files. Raises the
    same errors as `load_contract`."""
    document, errors = _in_this_version(document)
    used: list[SharedFile] = []
    if not errors:
        used = (files or SharedFiles()).used_by(document, path)
        document, errors = shared.with_shared(document, used)
    if errors:
        raise errors[0] if len(errors) == 1 else ContractErrors(errors)
    return document, used


def _demands(value: Mapping[str, Any]) -> str:
    read = {**_read(Contract, value), "claims": [_read(ClaimText, claim) for claim in value["claims"]]}
    return hashlib.sha256(json.dumps(read, sort_keys=True).encode()).hexdigest()


def _read(model: type[BaseModel], value: Mapping[str, Any]) -> dict[str, Any]:
    unread = {name for name, field in model.model_fields.items() if UNREAD in field.metadata}
    return {key: each for key, each in value.items() if key not in unread}


def _validated(document: strict_yaml.Document) -> tuple[Contract | None, list[ContractError]]:
    """Return the contract of a document in version 2, or the errors. A bound with `cases` has one number for each case.
    Then several copies of the document are validated: each combination of numbers that can apply to a claim is in one
    of the copies. Each error is listed once."""
    bounds = Bounds(document)
    if bounds.errors:
        return None, document.cut(bounds.errors, len(bounds.errors))
    read: list[tuple[Reading, Contract]] = []
    errors: dict[str, ContractError] = {}
    for reading in bounds.readings():
        contract, found = _validated_once(reading)
        errors |= {str(error): error for error in found if str(error) not in errors}
        if contract is not None:
            read.append((reading, contract))
    return (None, list(errors.values())) if errors else (bounds.attach(read), [])


def _validated_once(reading: Reading) -> tuple[Contract | None, list[ContractError]]:
    document = reading.document
    try:
        contract = Contract.model_validate(document.value)
    except ValidationError as error:
        return None, explain(error, document)
    found = problems(contract, reading.only_on)
    first = [document.error(one.path, one.rule, got=one.got, remedy=one.remedy) for one in found[:MOST_ERRORS]]
    return contract, document.cut(first, len(found))


@contextmanager
def _uncollected() -> Iterator[None]:
    """Switch garbage collection off inside the `with` statement. While contracts were loaded, garbage collection took a
    tenth of the time and found nothing to free."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def load_contracts(paths: Sequence[Path], locate: Locate | None = None) -> list[LoadedContract]:
    """Load contract files, and all contracts in folders (see `files_of_folder`). Each file is loaded once.

    locate: a function that finds shared files. By default, shared files are searched for relative to the contract's
    folder. Raises UsageError for a path that does not exist. Raises ContractErrors with every error of every file. A
    folder without a contract and an id that occurs twice are also errors.
    """
    require_existing(paths)
    loaded: list[LoadedContract] = []
    errors: list[ContractError] = []
    files = SharedFiles(locate)
    with _uncollected():
        for file in _files(paths, errors):
            try:
                loaded.append(load_contract(file, files))
            except ContractError as error:
                _add_new(errors, error)
        # Read unused shared files too. Such a file may be a contract with the wrong `schema`.
        for file in shared_files(paths):
            try:
                files.read(file)
            except ContractError as error:
                _add_new(errors, error)
    first_with_id: dict[str, LoadedContract] = {}
    for one in loaded:
        first = first_with_id.setdefault(one.contract.id.casefold(), one)
        if first is not one:
            errors.append(id_again(first, one))
    if errors:
        raise ContractErrors(errors)
    return loaded


def id_again(first: LoadedContract, second: LoadedContract) -> ContractError:
    """Return the error for two contracts whose ids are equal, or differ only in upper and lower case. Files of runs and
    verdicts are named after the id, so their names would be equal."""
    got, remedy = f"'{second.contract.id}' again", f"rename one: {first.where('id')} already has this id"
    if first.contract.id != second.contract.id:
        got, remedy = (
            f"'{second.contract.id}'",
            f"rename one: the id at {first.where('id')} differs only in upper and lower case",
        )
    return ContractError("contract ids must be unique", where=second.where("id"), got=got, remedy=remedy)


def _add_new(errors: list[ContractError], found: ContractError) -> None:
    """Add to the list the errors that are not yet in it. Several contracts may use the same faulty shared file and then
    cause the same error."""
    listed = {str(each) for each in errors}
    errors += [each for each in found.each() if str(each) not in listed]


def unused_files(paths: Sequence[Path], contracts: Sequence[LoadedContract]) -> list[Path]:
    """Return the shared files in the folders of `paths` that none of these contracts uses."""
    used = {real(Path(file.document.where)) for one in contracts for file in one.shared}
    return [file for file in shared_files(paths) if real(file) not in used]


def contract_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files that `load_contracts` would read. Raises ContractErrors if a folder contains no contract."""
    errors: list[ContractError] = []
    files = _files(paths, errors)
    if errors:
        raise ContractErrors(errors)
    return files


def _files(paths: Sequence[Path], errors: list[ContractError]) -> list[Path]:
    files: dict[Path, Path] = {}
    for path in paths:
        found = files_of_folder(path).contracts if path.is_dir() else [path]
        if not found:
            errors.append(ContractError(f"a folder must contain contracts ({RULE})", where=str(path), got="none"))
        for file in found:
            files.setdefault(real(file), file)
    return list(files.values())


def _in_this_version(document: strict_yaml.Document) -> tuple[strict_yaml.Document, list[ContractError]]:
    """Return the document translated to version 2, and the errors of the translation. A document with errors cannot be
    validated further."""
    value = document.value
    if not isinstance(value, dict):
        got = "a list" if isinstance(value, list) else "a single value"
        return document, [
            document.error((), "a contract must be a mapping of keys to values", got=got, remedy=NO_CONTRACT)
        ]
    remedy = f"write `schema: {SCHEMA_VERSION}`"
    if "schema" not in value:
        return document, [document.error((), "the key 'schema' is required", remedy=f"{remedy}; {NO_CONTRACT}")]
    if value["schema"] == version_1.SCHEMA_VERSION:
        translation = version_1.in_version_2(document)
        return translation.document, translation.errors
    if value["schema"] == shared.SCHEMA_VERSION:
        rule = "a shared file can be read only with the contracts that use it"
        return document, [
            document.error(("schema",), rule, got="only the path of the shared file", remedy="name a contract")
        ]
    if value["schema"] != SCHEMA_VERSION:
        got = repr(value["schema"])
        rule = (
            f"'schema' must name a known version of the language ('{SCHEMA_VERSION}' or '{version_1.SCHEMA_VERSION}')"
        )
        return document, [document.error(("schema",), rule, got=got, remedy=remedy)]
    return document, _unportable(document)


def _unportable(document: strict_yaml.Document) -> list[ContractError]:
    claims = document.value.get("claims")
    numbers = range(len(claims) if isinstance(claims, list) else 0)
    renamed = [document.keys[path] for number in numbers if (path := ("claims", number, "on")) in document.keys]
    return document.unportable_errors(dict.fromkeys(renamed, "judged_on"))


def selected(contracts: Sequence[LoadedContract], tags: Sequence[str], claims: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the ids of the claims that have one of the tags and, unless `claims` is empty, are listed in `claims`.
    Without tags, return `claims`. Raises UsageError for a tag that no claim has, and if tags and `claims` select no
    claim."""
    if not tags:
        return tuple(claims)
    tagged = [(one.id, loaded.contract.tags_of(one)) for loaded in contracts for one in loaded.contract.claims]
    known = dict.fromkeys(tag for _, own in tagged for tag in own)
    for tag in tags:
        if tag not in known:
            nearest_tag = nearest(tag, known) or "no claim has tags: write `tags` into a claim or a contract"
            raise UsageError("no claim has this tag", got=f"`{tag}`", remedy=nearest_tag)
    found = dict.fromkeys(
        name for name, own in tagged if not set(tags).isdisjoint(own) and (not claims or name in claims)
    )
    if not found:
        tags_and_claims = f"--tag {', '.join(tags)} and --claim {', '.join(claims)}"
        raise UsageError("no claim matches both options", got=tags_and_claims, remedy="leave out --tag or --claim")
    return tuple(found)
