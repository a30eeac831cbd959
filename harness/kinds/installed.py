"""The kinds that there are: the harness's own, and those of installed packages.

A package offers a kind by an entry point of the group `contract_harness.kinds` that names a row (`module:attribute`).
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points

from harness.errors import KindError
from harness.kinds.built_in import BUILT_IN
from harness.kinds.kind import Kind

GROUP = "contract_harness.kinds"
RESERVED = ("composite",)  # joins parts of other kinds, and is none itself


@cache
def kinds() -> dict[str, Kind]:
    """Every kind by its name, the harness's own first. Raises KindError for an entry point that is no sound kind."""
    found = dict(BUILT_IN)
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        row = _loaded(entry)
        if row.name in found or row.name in RESERVED:
            rule = "a package's claim kind has a name of its own"
            raise KindError(rule, where=_place(entry), got=f"'{row.name}' again", remedy="rename it, or remove one")
        found[row.name] = row
    return found


def kind_of(name: str) -> Kind:
    """The row of a kind that a contract could name. Raises KeyError for another name."""
    return kinds()[name]


def _loaded(entry: EntryPoint) -> Kind:
    rule = f"an entry point of `{GROUP}` names a `harness.kinds.Kind`"
    remedy = "correct or uninstall that package"
    try:
        row = entry.load()
    except (Exception, SystemExit) as error:  # a stranger's module may raise anything
        raise KindError(rule, where=_place(entry), got=f"{type(error).__name__}: {error}", remedy=remedy) from error
    if not isinstance(row, Kind):
        raise KindError(rule, where=_place(entry), got=f"a {type(row).__name__}", remedy=remedy)
    return row


def _place(entry: EntryPoint) -> str:
    package = f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "an unnamed package"
    return f"entry point '{entry.name} = {entry.value}' of {package}"
