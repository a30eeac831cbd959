"""Make the excerpts of upstream's contracts that the table of claims and its tests read.

    python scripts/upstream_excerpts.py FOLDER_OF_CONTRACTS

An excerpt has the whole structure of a file, its ids and numbers, and the first words of each claim; other texts are
left out.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

from harness.contract import strict_yaml
from harness.contract.folders import files_of_folder
from harness.extras.upstream.sections import CLAIM_SECTIONS, TITLE_KEYS

ROOT = Path(__file__).parents[1]
EXCERPTS = ROOT / "docs" / "upstream" / "excerpts"
KEPT = {*CLAIM_SECTIONS, *TITLE_KEYS, "id", "type", "prediction", "obligation"} - {"formula"}
LONGEST = 120  # characters of a text that are kept


def excerpt(value: Any, key: str = "") -> Any:
    """A value with its texts cut short, or left out where they name no claim."""
    if isinstance(value, dict):
        return {name: excerpt(one, name) for name, one in value.items()}
    if isinstance(value, list):
        return [excerpt(one, key) for one in value]
    if not isinstance(value, str):
        return value
    text = " ".join(value.split())
    return "…" if key not in KEPT else text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def main() -> None:
    folder = Path(sys.argv[1])
    for path in files_of_folder(folder).contracts:
        place = EXCERPTS / path.relative_to(folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        value = excerpt(strict_yaml.read(path, "an upstream contract").value)
        place.write_text(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=150), encoding="utf-8")


if __name__ == "__main__":
    main()
