"""Read a contract in another language as data: all its claims, and the parts that are left out, each with the reason.

Nothing is executed: a `test` in the contract is only a text. Every value of the file belongs to an item (a claim) or to
an entry in `left_out`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from harness.contract import strict_yaml
from harness.errors import ContractError


@dataclass(frozen=True)
class ClaimSection:
    """A section of an upstream contract: a key whose values are claims. of_mappings: True if each claim must be a
    mapping with an id.

    unchecked: the reason to report for an item of this section that matches no form (way to word claims) of
    `forms.yaml`.
    """

    unchecked: str
    of_mappings: bool = False


_NO_FORM = "the words match no form that a claim kind can judge"
_SENTENCE = "a sentence next to a formula, in no form that a claim kind can judge"
_NAMES = "names a check of upstream's own, and requires nothing itself"
_PROGRAM = "about upstream's program, not about a run"

CLAIM_SECTIONS: dict[str, ClaimSection] = {
    "falsification_tests": ClaimSection(_NO_FORM, of_mappings=True),
    "proof_obligations": ClaimSection(_NO_FORM, of_mappings=True),
    # This section is a list of tests. Inside a gate, it is a text that states what would break the gate.
    "falsification": ClaimSection(_NO_FORM),
    "obligations": ClaimSection(_NO_FORM),
    "validation_rules": ClaimSection(_NO_FORM),
    "upper_bounds": ClaimSection(_NO_FORM),
    "lower_bounds": ClaimSection(_NO_FORM),
    "invariants": ClaimSection(_SENTENCE),
    "preconditions": ClaimSection("a condition on the inputs of upstream's functions"),
    "postconditions": ClaimSection(_SENTENCE),
    "kani_harnesses": ClaimSection(
        "a bounded proof about upstream's Rust functions; what it proves is another item", of_mappings=True
    ),
    "phases": ClaimSection("a stage of upstream's kernel, with what holds between stages"),
    "enforcement": ClaimSection("names the test that enforces another item"),
    "checks": ClaimSection(_NAMES),
    "required_tests": ClaimSection(_NAMES),
    "pass_criteria": ClaimSection("counts upstream's own tests and proofs"),
    "min_coverage": ClaimSection(_PROGRAM),
    "max_complexity": ClaimSection(_PROGRAM),
    "layer_steps": ClaimSection("a bound on one step of a layer in upstream's own backends"),
    "parity_gate": ClaimSection("a gate inside upstream's program"),
    "metrics": ClaimSection("a threshold of a tool of upstream's"),
    "ci_integration": ClaimSection("says what upstream's CI does"),
}

NOT_NAMED = "the importer knows no form of contract with this key"

# Known keys that contain other keys. Directly below the key `equations`, a key may have any name.
CONTAINERS = frozenset({"equations", "qa_gate", "kernel_structure", "parity_tool", "spc_tool"})
FREE_NAMES = frozenset({"equations"})

# Keys whose values are left out -> the reason. Sections of claims below such a key are still read. Below an unknown
# key, the keys listed here count as unknown, too.
NO_CLAIM: dict[str, str] = {
    **dict.fromkeys(
        ("metadata", "kind", "name", "version", "scope", "description", "title", "id", "schema"),
        "says what the file, gate or equation is called and where it comes from",
    ),
    **dict.fromkeys(
        ("formula", "formula_alt", "domain", "codomain", "constants"), "defines the terms that claims are made of"
    ),
    "lean_theorem": "names a proof of upstream's",
    **dict.fromkeys(("simd_dispatch",), "names upstream's functions"),
    "verification_summary": "counts upstream's own tests and proofs",
    **dict.fromkeys(("implementation_requirements", "implementation"), "states what upstream intends to build"),
    **dict.fromkeys(("command", "output_format"), "says how a tool of upstream's is called and what it prints"),
}

# Keys whose value is the title of a claim. If a mapping has several of them, the first in this list is used. A mapping
# with such a key is a single claim.
TITLE_KEYS = ("rule", "property", "claim", "description", "invariant", "metric", "name", "formal", "formula")


Place = tuple[str | int, ...]
_WHAT = "an upstream contract"


@dataclass(frozen=True)
class Item:
    """One claim of an upstream contract. id: its id in that contract or, without an id, its path
    (`equations.x.invariants.1`).

    texts: the texts about the claim, by key; the key is `""` if the whole claim is one text. where: `file:line:column`.
    """

    id: str
    section: str
    texts: Mapping[str, str]
    where: str

    @property
    def title(self) -> str:
        """Return the item's title in the upstream contract, on one line, or the item's id if it has no title."""
        named = (self.texts[key] for key in ("", *TITLE_KEYS) if self.texts.get(key))
        return next(named, self.id)


@dataclass(frozen=True)
class LeftOut:
    """A part of the file that contains no items: its path, the number of its values, and the reason why no value is a
    claim."""

    where: str
    path: str
    values: int
    why: str


@dataclass(frozen=True)
class UpstreamContract:
    """A contract in another language. Its items and the parts that are left out are in the order of the file."""

    id: str
    title: str
    path: Path
    items: list[Item]
    left_out: list[LeftOut]


def read_upstream(path: Path) -> UpstreamContract:
    """Read one contract in another language. Raises ContractError with file, line and column.

    A file is refused if it breaks a rule of the strict YAML reader (size, depth, encoding, duplicate keys, …), if it is
    not a mapping, if two items have the same id, or if an item is empty.
    """
    document = strict_yaml.read(path, _WHAT)
    value = document.value
    if not isinstance(value, dict):
        raise document.error((), f"{_WHAT} must be a mapping of keys to values", got=type(value).__name__)
    found = list(_Walk(document).below((), value, None))
    items = [one for one in found if isinstance(one, Item)]
    _refuse_same_ids(items)
    metadata = value.get("metadata")
    title = (metadata if isinstance(metadata, dict) else value).get("description", "")
    name = value.get("name", path.stem)
    left_out = [one for one in found if isinstance(one, LeftOut)]
    return UpstreamContract(_text(name), _text(title), path, items, left_out)


def _refuse_same_ids(items: list[Item]) -> None:
    first: dict[str, Item] = {}
    for item in items:
        other = first.setdefault(item.id, item)
        if other is not item:
            rename_one = f"rename one: {other.where} already has this id"
            raise ContractError(
                "ids of items must be unique", where=item.where, got=f"'{item.id}' again", remedy=rename_one
            )


class _Walk:
    """Goes through a document, and yields its items (claims) and the parts that are left out."""

    def __init__(self, document: strict_yaml.Document) -> None:
        self.document = document

    def below(self, path: Place, value: Any, why: str | None) -> Iterator[Item | LeftOut]:
        """Yield the items (claims) and the left-out parts at `path` and below it. why: the reason why every part is
        left out, or None if only parts with an unknown key are left out."""
        children: Iterator[tuple[str | int, Any]]
        if isinstance(value, dict) and value:
            children = iter(value.items())
        elif isinstance(value, list) and value:
            children = enumerate(value)
        else:
            yield LeftOut(self._where(path), _dotted(path), 1, why or NOT_NAMED)
            return
        found = [one for key, child in children for one in self._child((*path, key), key, child, why)]
        left_out = [one for one in found if isinstance(one, LeftOut)]
        # If everything in a part is left out for the same reason, report the part as one entry.
        if path and left_out == found and len(reasons(left_out)) == 1:
            yield LeftOut(self._where(path), _dotted(path), sum(one.values for one in left_out), left_out[0].why)
        else:
            yield from found

    def _child(self, path: Place, key: str | int, value: Any, why: str | None) -> Iterator[Item | LeftOut]:
        if key in CLAIM_SECTIONS:
            return self._section(path, str(key), value)
        if why is None and not isinstance(key, int):
            known = key in CONTAINERS or (len(path) > 1 and path[-2] in FREE_NAMES)
            why = NO_CLAIM.get(key, None if known else NOT_NAMED)
        return self.below(path, value, why)

    def _section(self, path: Place, section: str, value: Any) -> Iterator[Item | LeftOut]:
        if value is None or value in ([], {}):
            yield LeftOut(self._where(path), _dotted(path), 1, "empty")
        elif isinstance(value, list):
            for number, one in enumerate(value):
                yield self._item((*path, number), section, one, in_list=True)
        elif isinstance(value, dict) and not (
            any(key in value for key in TITLE_KEYS) and not any(isinstance(one, dict | list) for one in value.values())
        ):
            for key, one in value.items():
                yield self._item((*path, key), section, one, in_list=False)
        else:
            yield self._item(path, section, value, in_list=False)

    def _item(self, path: Place, section: str, value: Any, *, in_list: bool) -> Item:
        of_mappings = CLAIM_SECTIONS[section].of_mappings
        if value in (None, "", [], {}) or (not isinstance(value, dict) and of_mappings):
            wanted = "a mapping" if of_mappings else "a text or a mapping"
            raise self.document.error(path, f"an item of '{section}' must be {wanted}", got=_shown(value))
        if in_list and isinstance(value, bool | int | float):
            raise self.document.error(path, f"an item of '{section}' must be a text or a mapping", got=_shown(value))
        texts = dict(_texts(value, ""))
        if not in_list and "" in texts and (path[-1] != section or not isinstance(value, str)):
            texts[""] = f"{path[-1]}: {texts['']}"  # the key names the bound that the text is about
        given = value.get("id") if isinstance(value, dict) else None
        if given is not None and (not isinstance(given, str | int) or isinstance(given, bool) or given == ""):
            raise self.document.error((*path, "id"), "an id must be a text", got=_shown(given))
        return Item(_dotted(path) if given is None else str(given), section, texts, self._where(path))

    def _where(self, path: Place) -> str:
        line, column = self.document.position(path)
        return f"{self.document.where}:{line}:{column}"


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield (key, text) for every text of an item. The key is a path such as `a.b`. A list of scalars is one text."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _texts(one, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and any(isinstance(one, dict | list) for one in value):
        for number, one in enumerate(value, 1):
            yield from _texts(one, f"{path}.{number}")
    else:
        yield path, _text(value)


def _text(value: object) -> str:
    """Return a scalar, or the items of a list joined together, as text on one line."""
    if isinstance(value, list):
        return "; ".join(_text(one) for one in value)
    return "" if value is None else " ".join(str(value).split())


def _dotted(path: Place) -> str:
    """Return a path as text, such as `equations.x.invariants.1`. Items of a list are numbered from 1."""
    return ".".join(str(key + 1) if isinstance(key, int) else key for key in path)


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict | list):
        return "an empty one" if not value else type(value).__name__
    return repr(value)[:60]


def reasons(left_out: list[LeftOut]) -> dict[str, int]:
    """Return the number of values that are left out, by reason."""
    ordered = sorted(left_out, key=lambda one: one.why)
    return {why: sum(one.values for one in group) for why, group in groupby(ordered, lambda one: one.why)}
