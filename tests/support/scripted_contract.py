"""A scripted contract with hostile free texts."""

from __future__ import annotations

import json


def hostile_contract(text: str, *behaviours: str) -> str:
    """Return the contract of `scripted_system.contract_text` with `text` in every field that accepts it."""
    from scripted_system import contract_text

    quoted, lines = json.dumps(text), []
    for line in contract_text(*behaviours).split("\n"):
        key = line.partition(":")[0]
        free = key.strip() in {"title", "why", "if_fails"}
        lines.append(f"{key}: {quoted}" if free else line)
    return "\n".join(lines)
