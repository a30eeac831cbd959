"""Translate version 1 of the contract language into version 2, because old run directories contain version 1."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from harness.contract.strict_yaml import Document, Key, Position
from harness.errors import ContractError

SCHEMA_VERSION = "contract/v1"
RENAMED = {"judged_on": "on"}  # for each key that was renamed: its name in version 2 -> its name in version 1

WRITE_2 = "write the file as contract/v2, which has this key"

Path = tuple[Key, ...]


@dataclass(frozen=True)
class Translation:
    """A document in version 1 that was translated to version 2. Every value keeps its position in the file. errors: one
    error for each key that exists only in version 2."""

    document: Document
    errors: list[ContractError]


def in_version_2(document: Document) -> Translation:
    """Translate a document, which must be a mapping, from version 1 to version 2. Invalid values stay unchanged,
    because the validation of version 2 reports them."""
    return _Translator(document).translation()


class _Translator:
    def __init__(self, document: Document) -> None:
        self.document = document
        self.keys: dict[Path, Position] = {}
        self.values: dict[Path, Position] = {}
        self.errors: list[ContractError] = []

    def translation(self) -> Translation:
        old = self.document
        value = dict(old.value)
        value["schema"] = "contract/v2"
        for key in ("uses", "tags", "owner"):
            self._refuse(value, (), key)
        for name, workload in _mapping(value.get("workloads")).items():
            for key in ("gpu", "capability_at_least"):
                self._refuse(_mapping(_mapping(workload).get("needs")), ("workloads", name, "needs"), key)
        for path in old.keys:
            if path[-1] == "cases" and path[0] == "claims":
                self._refuse({"cases": ()}, path[:-1], "cases")
        if isinstance(value.get("claims"), list):
            value["claims"] = [self._claim(claim, ("claims", at)) for at, claim in enumerate(value["claims"])]
        errors = old.cut(self.errors, len(self.errors))
        keys, values = {**old.keys, **self.keys}, {**old.values, **self.values}
        return Translation(replace(old, value=value, keys=keys, values=values, unportable=(), written=RENAMED), errors)

    def _claim(self, claim: Any, path: Path) -> Any:
        if not isinstance(claim, dict):
            return claim
        self._refuse(claim, path, "judged_on", "write `on`")
        for key in ("tags", "owner"):
            self._refuse(claim, path, key)
        if "on" in claim:
            self._moved((*path, "on"), (*path, "judged_on"), claim["on"])
        new = {("judged_on" if key == "on" else key): value for key, value in claim.items() if key != "judged_on"}
        if isinstance(new.get("parts"), list):
            new["parts"] = [self._judgement(part, (*path, "parts", at)) for at, part in enumerate(new["parts"])]
        return self._judgement(new, path)

    def _judgement(self, judgement: Any, path: Path) -> Any:
        """Return the judgement in version 2. The key `at_least_on` of the training effect becomes one case for each
        workload."""
        guards = judgement.get("guards") if isinstance(judgement, dict) else None
        effect = guards.get("training_effect") if isinstance(guards, dict) else None
        if not isinstance(guards, dict) or not isinstance(effect, dict) or "at_least_on" not in effect:
            return judgement
        effect_path = (*path, "guards", "training_effect")
        new = {key: value for key, value in effect.items() if key != "at_least_on"}
        own = effect["at_least_on"]
        if not isinstance(own, dict):
            self.errors.append(self.document.error((*effect_path, "at_least_on"), "'at_least_on' must be a mapping"))
        elif own and "at_least" in new:
            new["at_least"] = self._by_workload(effect_path, new["at_least"], own)
        return {**judgement, "guards": {**guards, "training_effect": new}}

    def _by_workload(self, path: Path, otherwise: Any, own: dict[str, Any]) -> dict[str, Any]:
        bound = (*path, "at_least")
        self.values[*bound, "otherwise"] = self.document.values[bound]
        self.values[*bound, "cases"] = self.document.values[*path, "at_least_on"]
        cases = []
        for number, (name, value) in enumerate(own.items()):
            case, old = (*bound, "cases", number), (*path, "at_least_on", name)
            self.values[case] = self.values[*case, "workload"] = self.document.keys[old]
            self.values[*case, "value"] = self.document.values[old]
            cases.append({"workload": name, "value": value})
        return {"otherwise": otherwise, "cases": cases}

    def _refuse(self, values: dict[str, Any], path: Path, key: str, remedy: str = WRITE_2) -> None:
        """Record an error if a mapping has `key`, which exists only since version 2."""
        if key in values:
            where = self.document.error((*path, key), "", of_key=True).where
            got = f"'{key}' in a file of {SCHEMA_VERSION}"
            self.errors.append(ContractError("unknown key", where=where, got=got, remedy=remedy))

    def _moved(self, old: Path, new: Path, value: Any) -> None:
        """Copy the positions of a value, and of all values in it, from the path `old` to the path `new`."""
        for inside in _paths(value):
            if (*old, *inside) in self.document.keys:
                self.keys[*new, *inside] = self.document.keys[*old, *inside]
            self.values[*new, *inside] = self.document.values[*old, *inside]


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _paths(value: Any) -> Iterator[Path]:
    """Yield the path of a value, and the paths of all values that it contains."""
    yield ()
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inside:
        yield from ((key, *path) for path in _paths(each))
