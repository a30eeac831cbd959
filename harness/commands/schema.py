"""`harness schema`: the JSON Schema of contract files."""

from __future__ import annotations

import typer

from harness.contract.json_schema import schema_text


def schema() -> None:
    """Print the JSON Schema of contract files, with the claim kinds of installed packages."""
    typer.echo(schema_text(with_packages=True), nl=False)
