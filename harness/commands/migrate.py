"""`harness migrate`: contract files of version 1 rewritten as version 2, in place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from harness.commands.arguments import Paths
from harness.contract.folders import real
from harness.contract.load import contract_files
from harness.contract.migrate import Migration, migration_of
from harness.contract.schema import SCHEMA_VERSION
from harness.errors import ExitCode
from harness.evidence.files import write_text
from harness.existing_paths import require_existing
from harness.numbers import counted
from harness.output_paths import refuse_within_run
from harness.standard_streams import print_lines


def migrate(
    paths: Paths,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit with 1 where a file would be rewritten.")
    ] = False,
) -> None:
    """Rewrite contract files of version 1 as version 2; comments, order and formatting stay."""
    require_existing(paths)
    files = contract_files(paths)
    migrations = [migration for file in files if (migration := migration_of(file)) is not None]
    if not check:  # nothing is written unless all of them can be
        for migration in migrations:
            refuse_within_run(real(migration.path))
        for migration in migrations:
            _write(migration)
    print_lines(_lines(migrations, len(files), written=not check))
    raise typer.Exit(ExitCode.VIOLATED if check and migrations else ExitCode.HELD)


def _write(migration: Migration) -> None:
    """Where a link leads, and as readable and writable as it was."""
    path = real(migration.path)
    mode = path.stat().st_mode
    write_text(path, migration.text)
    path.chmod(mode)


def _lines(migrations: list[Migration], files: int, *, written: bool) -> Iterator[str]:
    for migration in migrations:
        yield from (f"{migration.path}:{change}" for change in migration.changes)
    verb = "rewritten" if written else "to be rewritten"
    yield f"{len(migrations)} of {counted(files, 'contract file')} {verb} as {SCHEMA_VERSION}"
