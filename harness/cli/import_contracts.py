"""`harness import`: list every claim of another project's contracts: executable here, or the reason why not."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any

import typer

from harness.cli.arguments import Json
from harness.errors import ContractError, ExitCode, UsageError
from harness.extras.upstream.importing import Imported, contract_text, import_files
from harness.extras.upstream.items import NOT_NAMED, Item, LeftOut, reasons
from harness.numbers import counted, dump_json
from harness.platform.standard_streams import print_json, print_line, print_lines
from harness.run_directory.places import refuse_within_run, write_named

UpstreamPaths = Annotated[list[Path], typer.Argument(help="Upstream contract files, or folders of them.")]


def import_contracts(
    paths: UpstreamPaths,
    write: Annotated[
        Path | None, typer.Option("--write", help="Write all claims as one contract into this new file.")
    ] = None,
    json: Json = False,
) -> None:
    """List every claim of an upstream project's contracts: executable here, or without a check, with the reason."""
    if write is not None and (write.exists() or write.is_symlink()):
        raise UsageError(
            "--write must name a new file", where=str(write), got="a file that exists", remedy="name another file"
        )
    if write is not None:
        refuse_within_run(write)
    imported, errors = import_files(paths)
    if json:
        print_json(dump_json(as_json(imported, errors), indent=2))
    else:
        print_lines(lines(imported, errors))
        print_lines((line for error in errors for line in error.lines()), sys.stderr)
    if errors:
        raise typer.Exit(ExitCode.INVALID_CONTRACT)
    if write is not None:
        write_named(write, contract_text(imported, write))
        if not json:
            print_line(f"written: {write}")


def lines(imported: Sequence[Imported], errors: Sequence[ContractError]) -> Iterator[str]:
    """Yield a line with totals, then lines for each file: first its executable claims, and then the other claims,
    grouped by the reason why they cannot be executed."""
    not_named = sum(one.values for each in imported for one in _not_named(each))
    unnamed = f"{counted(not_named, 'value')} under keys that no form names"
    yield " · ".join([counted(len(imported), "file"), _counts(imported), unnamed, counted(len(errors), "error")])
    for each in imported:
        yield f"{each.contract.path}: {_counts([each])}"
        for item, executable in each.executable:
            yield f"  executable as {executable.judgement['kind']}: {item.id}: {executable.form}"
        for why, items in each.by_reason().items():
            yield f"  no executable check: {len(items)} × {why}"
            yield from (f"    {item.id}: {shorten(item.title, 120, placeholder=' …')}" for item in items)
        for why, number in reasons([one for one in each.contract.left_out if one.why != NOT_NAMED]).items():
            yield f"  no claim: {counted(number, 'value')}: {why}"
        for one in _not_named(each):
            yield f"  NOT READ: {one.where}: `{one.path}`, {counted(one.values, 'value')}: {one.why}"


def _not_named(each: Imported) -> list[LeftOut]:
    return [one for one in each.contract.left_out if one.why == NOT_NAMED]


def _counts(imported: Sequence[Imported]) -> str:
    executable = sum(len(each.executable) for each in imported)
    unchecked = sum(len(each.unchecked) for each in imported)
    return (
        f"{counted(executable + unchecked, 'item')}: {executable} executable, {unchecked} without an executable check"
    )


def as_json(imported: Sequence[Imported], errors: Sequence[ContractError]) -> dict[str, Any]:
    """Return the imported contracts with their claims, and the errors, as nested dictionaries and lists for JSON."""
    return {
        "files": [_file(each) for each in imported],
        "errors": [{"where": one.where, "message": one.sentence()} for error in errors for one in error.each()],
    }


def _file(each: Imported) -> dict[str, Any]:
    contract = each.contract
    return {
        "path": str(contract.path),
        "id": contract.id,
        "title": contract.title,
        "executable": [_item(item) | {"judgement": executable.judgement} for item, executable in each.executable],
        "no_executable_check": [_item(item) | {"why": why} for item, why in each.unchecked],
        "left_out": [
            {"where": one.where, "path": one.path, "values": one.values, "why": one.why} for one in contract.left_out
        ],
    }


def _item(item: Item) -> dict[str, Any]:
    return {"id": item.id, "section": item.section, "where": item.where, "title": item.title}
