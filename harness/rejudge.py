"""Verdicts again from run directories that exist; nothing is run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness import session
from harness.contract.load import LoadedContract, load_contracts
from harness.evidence import layout
from harness.run_directory.bundle import Bundle, read_bundle
from harness.run_directory.drill_record import DrillRecord, read_record
from harness.run_directory.shards import refuse_mixed


def judged(
    directories: Sequence[Path], contracts: Path | None = None, *, gate: bool = False
) -> tuple[list[Bundle], session.Judgement]:
    """Read and judge run directories, by their own copies of the contracts unless others are given.

    Raises EvidenceError for directories that are damaged or do not belong together.
    """
    bundles = [read_bundle(directory) for directory in directories]
    if gate:
        refuse_mixed(bundles)
    loaded = load_contracts([contracts]) if contracts is not None else _copies(bundles)
    judgement = session.judge_bundles(bundles, loaded, gate=gate)
    # only who reads a directory later can tell: while it is written, every directory carries the mark
    incomplete = [bundle.path.name for bundle in bundles if not bundle.complete]
    view = replace(judgement.view, incomplete=tuple(incomplete), drill=_drill_record(bundles[0]))
    return bundles, replace(judgement, view=view)


def _drill_record(bundle: Bundle) -> DrillRecord | None:
    """What a fire drill recorded, from its directory; None for any other directory."""
    return read_record(bundle.path / layout.DRILL) if bundle.header.purpose == "drill" else None


def _copies(bundles: Sequence[Bundle]) -> list[LoadedContract]:
    """The contracts that the directories carry, each once; shards are checked for equal digests when joined."""
    paths: dict[str, Path] = {}
    for bundle in bundles:
        for path in bundle.contract_paths():
            paths.setdefault(path.name, path)
    return load_contracts([paths[name] for name in sorted(paths)])
