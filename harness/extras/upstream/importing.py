"""Import contracts that are written in another language. Each item of such a contract becomes an executable claim, or
gets the reason why it cannot become a claim."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from harness.contract import strict_yaml
from harness.contract.base import says_something
from harness.contract.load import loaded_from
from harness.contract.rules import current_rules
from harness.contract.schema import SCHEMA_VERSION
from harness.contract.shared import files_of_folder, real
from harness.errors import ContractError
from harness.extras.upstream.items import CLAIM_SECTIONS, Item, UpstreamContract, read_upstream
from harness.extras.upstream.judgements import ARMS, Executable, recognized
from harness.numbers import counted
from harness.platform.paths import require_existing


@dataclass(frozen=True)
class Imported:
    """One imported contract. Each item is in `executable`, with its claim, or in `unchecked`, with the reason why it
    has no claim. Both lists are in the order of the file."""

    contract: UpstreamContract
    executable: list[tuple[Item, Executable]]
    unchecked: list[tuple[Item, str]]

    def by_reason(self) -> dict[str, list[Item]]:
        """Return the items that have no executable check. The keys are the reasons."""
        grouped: dict[str, list[Item]] = {}
        for item, why in self.unchecked:
            grouped.setdefault(why, []).append(item)
        return grouped


def import_files(paths: Sequence[Path]) -> tuple[list[Imported], list[ContractError]]:
    """Import every file, and every YAML file in every folder, each file once. Also return an error for each file that
    cannot be read. Raises UsageError for a path that does not exist."""
    require_existing(paths)
    imported: list[Imported] = []
    errors: list[ContractError] = []
    for path in upstream_files(paths, errors):
        try:
            imported.append(decide(read_upstream(path)))
        except ContractError as error:
            errors.append(error)
    return imported, errors


def upstream_files(paths: Sequence[Path], errors: list[ContractError]) -> list[Path]:
    """Return the files among `paths`, and the YAML files in the folders among them, also hidden ones. For a folder
    without such files, add an error to `errors`."""
    files: dict[Path, Path] = {}
    for path in paths:
        found = [path]
        if path.is_dir():
            try:
                folder = files_of_folder(path)
            except ContractError as error:
                errors.append(error)
                continue
            found = sorted([*folder.contracts, *folder.signed, *folder.hidden])
            if not found:
                errors.append(ContractError("the folder must contain .yaml or .yml files", where=str(path), got="none"))
        for file in found:
            files.setdefault(real(file), file)
    return list(files.values())


def decide(contract: UpstreamContract) -> Imported:
    """Return the contract with its items in two lists: executable items with claims, and other items with reasons."""
    found = [(item, recognized(item)) for item in contract.items]
    executable = [(item, one) for item, one in found if one is not None]
    ratios = [(item, one) for item, one in executable if one.judgement["kind"] == "throughput_ratio"]
    alone = {item.where for item, one in ratios if trajectory_of(one, executable) is None}
    unchecked = [
        (item, _ALONE if item.where in alone else CLAIM_SECTIONS[item.section].unchecked)
        for item, one in found
        if one is None or item.where in alone
    ]
    return Imported(contract, [(item, one) for item, one in executable if item.where not in alone], unchecked)


_ALONE = "a ratio of speeds, but no recognized claim of the file requires equal losses"


def trajectory_of(ratio: Executable, executable: list[tuple[Item, Executable]]) -> Item | None:
    """Return an item that requires equal losses of the two arms that the claim `ratio` times, or None if there is none.
    This item becomes the condition of `ratio` that the faster arm trains the same."""
    arms = [ratio.judgement[arm] for arm in ("candidate", "baseline")]
    for item, one in executable:
        judgement = one.judgement
        if judgement["kind"] == "trajectory_match" and [judgement["candidate"], judgement["baseline"]] == arms:
            return item
    return None


SYSTEM = "reference_impl.system:QLoRASystem"
# the shape of the batches in the example training that upstream calls its canary
_CANARY: dict[str, Any] = {"model": "qwen2-1.5b", "batch_size": 4, "seq_len": 512}
_NEEDS: dict[str, Any] = {"device": "cuda", "memory_gib": 16}
_FEWER = "import fewer files into one contract"
_IF_FAILS = ("if_fails", "action_if_falsified")
_LONGEST = 600  # largest number of characters that are kept of an upstream text in one field
_HEAD = """\
# Written by `harness import`. Claims have the numbers of the files named in `upstream`; what no claim kind can judge
# is listed under `unchecked`. The workloads are upstream's canary on the reference trainer: change them, `system` and
# `arms` to judge another trainer, and name planted faults in `falsified_by`.
"""


def contract_text(imported: Sequence[Imported], path: Path) -> str:
    """Return the imported claims as one contract in YAML, named after the file `path`.

    Raises ContractError if no item was recognized, if the contract is too large, or if it is not valid. The validity is
    checked with the reader of `harness check`.
    """
    ids = _claim_ids(imported)
    claims = [_claim(item, executable, each, ids) for each in imported for item, executable in each.executable]
    if not claims:
        items = counted(sum(len(each.contract.items) for each in imported), "item")
        unrecognized_items = f"no recognized claim among {items}"
        raise ContractError(
            "a contract must have at least one claim",
            where=str(path),
            got=unrecognized_items,
            remedy="leave out --write",
        )
    steps = sorted({executable.steps for each in imported for _, executable in each.executable})
    arms = {arm for claim in claims for arm in _arms(claim)}
    contract = {
        "schema": SCHEMA_VERSION,
        "rules": current_rules(),
        "id": _name(path.stem),
        "title": f"Claims of {len(imported)} upstream contract{'' if len(imported) == 1 else 's'}",
        "system": SYSTEM,
        "workloads": {_workload(count): {**_CANARY, "steps": count, "needs": dict(_NEEDS)} for count in steps},
        "arms": {arm: dict(settings) for arm, settings in ARMS.items() if arm in arms},
        "claims": claims,
        "unchecked": [_unchecked(item, why, each) for each in imported for item, why in each.unchecked],
    }
    text = _HEAD + yaml.dump(contract, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    if (size := len(text.encode())) > strict_yaml.MAX_BYTES:
        rule = f"a contract must have at most {strict_yaml.MAX_BYTES} bytes"
        raise ContractError(rule, where=str(path), got=str(size), remedy=_FEWER)
    try:
        # check the text, so that no invalid contract is written
        loaded_from(strict_yaml.parse(text, where=str(path)), path)
    except ContractError as error:
        # leave out the line number, because the file with this line does not exist
        raise ContractError(error.rule, where=str(path), got=error.got, remedy=_FEWER) from error
    return text


def _claim_ids(imported: Sequence[Imported]) -> dict[str, str]:
    """Return the id of the claim for each executable item, by `file:line:column`. The id is made from upstream's id of
    the item. If several items have the same id, the id of the item's contract is put before it."""
    items = [(each.contract.id, item) for each in imported for item, _ in each.executable]
    given = Counter(_name(item.id) for _, item in items)
    ids: dict[str, str] = {}
    taken: set[str] = set()
    for contract, item in items:
        wanted = _name(item.id) if given[_name(item.id)] == 1 else _name(f"{contract}.{item.id}")
        name, number = wanted, 2
        while name in taken:
            name, number = f"{wanted[:90]}-{number}", number + 1
        taken.add(name)
        ids[item.where] = name
    return ids


def _claim(item: Item, executable: Executable, each: Imported, ids: dict[str, str]) -> dict[str, Any]:
    judgement = dict(executable.judgement)
    if judgement["kind"] == "throughput_ratio" and (trajectory := trajectory_of(executable, each.executable)):
        judgement["trajectory"] = ids[trajectory.where]
    fails = next((item.texts[key] for key in _IF_FAILS if item.texts.get(key)), "")
    return {
        "id": ids[item.where],
        "title": _text(item.title, item.id),
        **judgement,
        "judged_on": [_workload(executable.steps)],
        "why": _text(executable.why, item.id),
        "if_fails": _text(fails, "Upstream does not say."),
        "upstream": _text(f"{item.id} of {each.contract.id} ({item.where})", item.id),
    }


def _arms(claim: dict[str, Any]) -> list[str]:
    named = [claim[key] for key in ("candidate", "baseline", "control") if key in claim]
    return [arm["arm"] if isinstance(arm, dict) else arm for arm in named]


def _unchecked(item: Item, why: str, each: Imported) -> dict[str, str]:
    source = f"{each.contract.id}: {item.section} ({item.where})"
    return {"id": _text(item.id, "unnamed"), "title": _text(item.title, item.id), "source": source, "why": why}


def _workload(steps: int) -> str:
    return f"canary-{steps}"


def _text(text: str, otherwise: str) -> str:
    """Return the text, shortened if it is too long for a contract. If it has no letter or digit, return `otherwise`."""
    kept = text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"
    return kept if says_something(kept) else otherwise


def _name(text: str) -> str:
    """Return the text as a name that a contract accepts. Characters that are not allowed in names are replaced."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).lstrip("_.-")[:100] or "unnamed"


class _Dumper(yaml.SafeDumper):
    """Writes every text in quotes, unless it is a single word. PyYAML would write the text `1e-5` without quotes, and
    YAML 1.2 would then read it as a number."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - the reader takes none
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_./:-]*[A-Za-z0-9]", text)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _represent_text)
