"""Contract files of version 1 rewritten as version 2: the text is edited in place, so comments and order stay."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.contract import strict_yaml, version_1
from harness.contract.load import LoadedContract, loaded_from
from harness.contract.migrate_effects import effect_edits
from harness.contract.schema import SCHEMA_VERSION
from harness.contract.text_edits import Edit, Source
from harness.errors import ContractError, ContractErrors

_SCALAR = re.compile(r""""[^"]*"|'[^']*'|[^\s:,\[\]{}#]+""")


@dataclass(frozen=True)
class Migration:
    """A file with its new text; `changes` has a line for each edit, `line:column: old -> new`."""

    path: Path
    text: str
    changes: list[str]


def migration_of(path: Path) -> Migration | None:
    """What a contract file of version 1 becomes; None for one of version 2.

    Raises ContractError for a file that is no valid contract, and for one whose new text would say something else.
    """
    document = strict_yaml.read(path)
    loaded = loaded_from(document, path)
    if loaded.version == 2:
        return None
    source = Source(document)
    edits = sorted(_edits(source), key=lambda edit: edit.start)
    text = _edited(document.text, edits)
    _require_equal(loaded, text)
    return Migration(path, text, [source.change(edit) for edit in edits])


def _edits(source: Source) -> Iterator[Edit]:
    edits = [*_of_keys(source), *effect_edits(source)]
    yield from edits
    for found in source.document.unportable:
        if not any(edit.start <= found.start and found.end <= edit.end for edit in edits):
            yield Edit(found.start, found.end, found.instead)


def _of_keys(source: Source) -> Iterator[Edit]:
    """The version, and `on` of each claim."""
    yield _replaced(source, source.value_at("schema"), SCHEMA_VERSION)
    for number, claim in enumerate(source.document.value["claims"]):
        if "on" in claim:
            yield _replaced(source, source.key_at("claims", number, "on"), "judged_on")


def _replaced(source: Source, start: int, text: str) -> Edit:
    """The scalar that begins there, quoted or plain, as another text."""
    found = _SCALAR.match(source.text, start)
    return Edit(start, found.end() if found else start, text)


def _edited(text: str, edits: list[Edit]) -> str:
    for edit in reversed(edits):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


def _require_equal(loaded: LoadedContract, text: str) -> None:
    """Raise ContractError unless the new text is the same contract, in version 2."""
    where = str(loaded.path)
    rule = f"what {version_1.SCHEMA_VERSION} says can be said in {SCHEMA_VERSION} by edits of the text"
    try:
        again = loaded_from(strict_yaml.parse(text, where=where), loaded.path)
    except (ContractErrors, ContractError) as error:
        got = f"a text that is refused: {error.sentence()}"
        raise ContractError(rule, where=where, got=got, remedy="rewrite it by hand") from error
    if again.version != 2 or again.contract != loaded.contract:
        raise ContractError(rule, where=where, got="another contract", remedy="rewrite it by hand")
