"""Join the claims of upstream (the projects that first made them) with the outcomes in docs/upstream/decisions.yaml."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from harness.contract import strict_yaml
from harness.contract.base import Name, Strict, Text
from harness.contract.shared import files_of_folder
from harness.errors import ContractError
from harness.evidence.files import first_error
from harness.extras.upstream.items import Item, read_upstream

FOLDER = Path(__file__).parents[2] / "docs" / "upstream"
DECISIONS = FOLDER / "decisions.yaml"
EXCERPTS = FOLDER / "excerpts"


class Outcome(Strict):
    """An upstream claim's outcome: its state, our claims that decide it (`by`), tests (`file::function`), `why`."""

    state: Literal["decided", "restated", "refuted"]
    by: list[Name] = Field(default=[])
    tests: list[Text] = Field(default=[])
    why: Text | None = None

    def problems(self) -> list[str]:
        """Return the fields that the state requires and that are missing."""
        lacking = {
            "decided": [] if self.by else ["`by`, the claims that decide it"],
            "restated": [] if self.why else ["`why` it is not judged as it stands"],
            "refuted": [*([] if self.tests else ["`tests` that refute it"]), *([] if self.why else ["`why`"])],
        }
        return lacking[self.state]


class Decision(Outcome):
    """The outcome of some items of one file. `items`: their ids, or patterns of ids."""

    items: Annotated[list[Text], Field(min_length=1)]


class Decided(Strict):
    """The entry for one of upstream's files about training on a GPU: the outcomes of its items."""

    decisions: Annotated[list[Decision], Field(min_length=1)]


class OutOfScope(Strict):
    """The entry for one of upstream's files about another subject: the reason why its items have no outcome."""

    out_of_scope: Text


class Supporting(Strict):
    """The entry for sections of upstream's files whose items only name or introduce the items of other sections."""

    sections: Annotated[list[Name], Field(min_length=1)]
    why: Text


class Seed(Outcome):
    """A requirement in one of the source files from which the project started."""

    id: Text
    says: Text


class Decisions(Strict):
    """The content of decisions.yaml."""

    supporting: list[Supporting]
    files: dict[str, Decided | OutOfScope]
    seeds: list[Seed]


@dataclass(frozen=True)
class Row:
    """A row of the page: items of one file with one outcome. Supporting or out-of-scope items have only `why`."""

    items: list[Item]
    outcome: Outcome | None
    why: str


def read_decisions(path: Path = DECISIONS) -> Decisions:
    """Return the content of the file of decisions. Raises ContractError if it is invalid."""
    document = strict_yaml.read(path, "a file of decisions")
    try:
        decisions = TypeAdapter(Decisions).validate_python(document.value)
    except ValidationError as error:
        raise ContractError(first_error(error), where=str(path)) from error
    decided = [(file, each) for file, each in decisions.files.items() if isinstance(each, Decided)]
    named = [(f"{file} {one.items}", one) for file, each in decided for one in each.decisions]
    for where, outcome in [*named, *((seed.id, seed) for seed in decisions.seeds)]:
        for lacking in outcome.problems():
            raise ContractError(f"{outcome.state} needs {lacking}", where=f"{path}: {where}")
    return decisions


def joined(decisions: Decisions, excerpts: Path = EXCERPTS) -> dict[str, list[Row]]:
    """Return the rows of each file. Each item is in exactly one row. Raises ContractError for an item without a row."""
    files = {path.relative_to(excerpts).as_posix(): path for path in files_of_folder(excerpts).contracts}
    for name in sorted(files.keys() ^ decisions.files.keys()):
        rule = "every upstream file must be decided or out of scope" if name in files else "no such upstream file"
        raise ContractError(rule, where=name, remedy=f"correct `files` in {DECISIONS.name}")
    return {name: _rows(name, read_upstream(files[name]).items, decisions) for name in decisions.files}


def _rows(file: str, items: list[Item], decisions: Decisions) -> list[Row]:
    decided = decisions.files[file]
    if isinstance(decided, OutOfScope):
        return [Row(items, None, decided.out_of_scope)]
    rows = []
    left = list(items)
    for decision in decided.decisions:
        for pattern in decision.items:
            if not any(fnmatchcase(item.id, pattern) for item in left):
                raise ContractError("a pattern must name an item that no other pattern names", where=file, got=pattern)
        named = [item for item in left if any(fnmatchcase(item.id, pattern) for pattern in decision.items)]
        left = [item for item in left if item not in named]
        rows.append(Row(named, decision, decision.why or ""))
    for supporting in decisions.supporting:
        named = [item for item in left if item.section in supporting.sections]
        left = [item for item in left if item not in named]
        if named:
            rows.append(Row(named, None, supporting.why))
    if left:
        names = ", ".join(item.id for item in left)
        raise ContractError("every upstream claim about training on a GPU must have a row", where=file, got=names)
    return rows
