"""`harness schema`: print the JSON Schema of contract files."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.contract.json_schema import schema_text, shared_schema_text
from harness.platform.standard_streams import print_json


def schema(
    shared: Annotated[bool, typer.Option("--shared", help="Print the schema of files that contracts share.")] = False,
) -> None:
    """Print the JSON Schema of contract files, with the claim kinds of installed packages."""
    print_json(shared_schema_text() if shared else schema_text(with_packages=True))
