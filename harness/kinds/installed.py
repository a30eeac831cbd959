"""Find all claim kinds and probes: those of the harness, and those of installed packages.

A package can add a row to the tables with an entry point that names the row (`module:attribute`). The group of the
entry point is `contract_harness.kinds` for a kind, and `contract_harness.probes` for a probe. The module
`harness.evidence.run_evidence` names a third group, for entry points of record types.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, TypeVar

from harness.errors import KindError
from harness.kinds import probes as probe_table
from harness.kinds.built_in import BUILT_IN
from harness.kinds.kind import Kind
from harness.kinds.probes import Probe
from harness.kinds.row import Row

GROUP = "contract_harness.kinds"
PROBES_GROUP = "contract_harness.probes"
RESERVED = ("composite",)  # `composite` is a claim that joins parts of other kinds, so no kind may have this name
AnyRow = TypeVar("AnyRow", bound=Row)


class Judged(Protocol):
    """A part of a claim. The attributes of the part determine the probe that records the evidence for the part."""

    @property
    def kind(self) -> str: ...

    def chosen_probe(self) -> str | None: ...


@cache
def kinds() -> dict[str, Kind]:
    """Return every kind by name, the harness's first. Raises KindError if a kind of an installed package is invalid."""
    found = _with_installed(GROUP, Kind, BUILT_IN, RESERVED)
    for row in found.values():
        for probe, settings in row.probes.items():
            if probe not in probes() or (settings and probes()[probe].arm_by_arm):
                wrong_probes = (
                    "the field `probes` must name existing probes, and give no settings to a probe that executes the "
                    "arms one by one"
                )
                where, known_probes = (
                    f"claim kind '{row.name}'",
                    f"install the probe's package, or leave out the settings; known probes are {', '.join(probes())}",
                )
                raise KindError(wrong_probes, where=where, got=f"'{probe}': {settings}", remedy=known_probes)
    return found


@cache
def probes() -> dict[str, Probe]:
    """Return every probe by its name. Raises KindError if a probe of an installed package is invalid."""
    return _with_installed(PROBES_GROUP, Probe, probe_table.BUILT_IN)


def kind_of(name: str) -> Kind:
    """Return the row of the kind with this name. Raises KeyError if there is no such kind."""
    return kinds()[name]


def probe_named(name: str) -> Probe:
    """Return the row of the probe with this name. Raises KeyError if there is no such probe."""
    return probes()[name]


def probe_of(part: Judged) -> Probe:
    """Return the row of the probe whose evidence decides a part of a claim."""
    return probes()[part.chosen_probe() or next(iter(kind_of(part.kind).probes))]


def _with_installed(
    group: str, of: type[AnyRow], built_in: Mapping[str, AnyRow], reserved: Collection[str] = ()
) -> dict[str, AnyRow]:
    found = dict(built_in)
    for entry, row in offered(group, f"a `harness.kinds.{of.__name__}`", lambda value: isinstance(value, of)):
        if row.name in found or row.name in reserved:
            name_already_used = f"the name of the package's {of.called} is already used"
            raise KindError(
                name_already_used,
                where=place(entry),
                got=f"'{row.name}'",
                remedy="give it another name, or uninstall the package",
            )
        found[row.name] = row
    return found


def offered(group: str, what: str, is_sound: Callable[[Any], bool]) -> Iterator[tuple[EntryPoint, Any]]:
    """Yield each entry point of a group with the object that it names. Raises KindError if an object cannot be
    imported, or if `is_sound` returns False for it. what: words for the expected object, for messages."""
    wrong_entry_point, correct_package = (
        f"an entry point of `{group}` must name {what}",
        "correct or uninstall that package",
    )
    for entry in sorted(entry_points(group=group), key=lambda entry: entry.name):
        try:
            value = entry.load()
        except (Exception, SystemExit) as error:  # a module of another package may raise anything
            got = f"{type(error).__name__}: {error}"
            raise KindError(wrong_entry_point, where=place(entry), got=got, remedy=correct_package) from error
        if not is_sound(value):
            raise KindError(
                wrong_entry_point, where=place(entry), got=f"a {type(value).__name__}", remedy=correct_package
            )
        yield entry, value


def place(entry: EntryPoint) -> str:
    """Return a description of an entry point for errors: its text, and the name and version of its package."""
    package = f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "an unnamed package"
    return f"entry point '{entry.name} = {entry.value}' of {package}"
