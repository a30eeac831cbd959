"""`harness schema`: the JSON Schema of contract files."""

from __future__ import annotations

from harness.contract.json_schema import schema_text
from harness.standard_streams import print_json


def schema() -> None:
    """Print the JSON Schema of contract files, with the claim kinds of installed packages."""
    print_json(schema_text(with_packages=True))
