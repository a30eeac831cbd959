"""`harness explain`: print what a claim requires or what a reason code means; nothing is run."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.contract.load import LoadedContract, load_contracts
from harness.contract.schema import AnyClaim, AnyPart, parts_of
from harness.contract.strict_yaml import nearest
from harness.errors import UsageError
from harness.judging.reasons import Reason, reason_of
from harness.numbers import counted
from harness.platform.standard_streams import print_lines
from harness.report.wording import reason_text

WIDTH = 100
LABEL_WIDTH = 13
TEXTS = {"id", "title", "judged_on", "why", "if_fails", "falsified_by", "upstream", "parts", "kind", "tags", "owner"}


def explain(
    claim: Annotated[str, typer.Argument(help="A claim's id, such as F-GRAPH-BWD-001, or a reason code of a verdict.")],
    contracts: Annotated[
        Path, typer.Option("--contracts", help="The contract that has the claim, or its folder.")
    ] = Path("contracts"),
) -> None:
    """Print what a claim requires, where its numbers come from, and what breaks it; or explain a reason code."""
    print_lines(explanation_of(claim, contracts, min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)))


def explanation_of(claim_id: str, contracts: Path, width: int = WIDTH) -> list[str]:
    """Return lines about what a claim requires, for each contract that has the claim, or about a reason code.

    Raises UsageError for an unknown id.
    """
    if (reason := reason_of(claim_id)) is not None:
        return _reason(reason, width)
    claims = [(loaded, claim) for loaded in load_contracts([contracts]) for claim in loaded.contract.claims]
    explained = [_explanation(loaded, claim, width) for loaded, claim in claims if claim.id == claim_id]
    if not explained:
        raise UsageError(
            "no contract has this claim",
            where=str(contracts),
            got=f"'{claim_id}'",
            remedy=nearest(claim_id, (claim.id for _, claim in claims)),
        )
    first, *more = explained
    return [*first, *(line for lines in more for line in ["", *lines])]


def _reason(reason: Reason, width: int) -> list[str]:
    """Return lines about a reason code: its status, its meaning, and the usual cause and fix."""
    texts = reason_text(reason.code)
    sections = {"meaning": texts.meaning or reason.explanation, "usual cause": texts.cause, "usual fix": texts.remedy}
    lines = [line for label, text in sections.items() if text for line in _section(label, [text], width)]
    return [f"{reason.code}: a reason code of {reason.status}", *lines]


def _explanation(loaded: LoadedContract, claim: AnyClaim, width: int) -> list[str]:
    contract = loaded.contract
    sections = [
        ("contract", [f"{contract.id} ({loaded.path})"]),
        ("workloads", [_workload(loaded, name) for name in claim.judged_on]),
        *((part.kind, _demands(part)) for part in parts_of(claim)),
        ("upstream", [claim.upstream] if claim.upstream else []),
        ("owner", [owner] if (owner := contract.owner_of(claim)) else []),
        ("tags", [", ".join(contract.tags_of(claim))]),
        ("why", [claim.why]),
        ("if it fails", [claim.if_fails]),
        ("faults", [", ".join(claim.falsified_by) or "none: nothing has shown that this claim can fail"]),
    ]
    return [f"{claim.id}: {claim.title}", *(line for section in sections for line in _section(*section, width))]


def _section(label: str, texts: Iterable[str], width: int) -> list[str]:
    """Return `texts` as wrapped lines, with the label in front of the first line. A long label gets a separate line."""
    margin = " " * (2 + LABEL_WIDTH)
    lines = [
        line
        for text in texts
        for line in textwrap.wrap(
            text,
            max(width, 2 * LABEL_WIDTH + 10),
            initial_indent=margin,
            subsequent_indent=margin,
            break_long_words=False,
            break_on_hyphens=False,
        )
    ]
    if not lines:
        return []
    if len(label) >= LABEL_WIDTH:
        return [f"  {label}", *lines]
    return [f"  {label:<{LABEL_WIDTH}}{lines[0].lstrip()}", *lines[1:]]


def _workload(loaded: LoadedContract, name: str) -> str:
    workload = loaded.contract.workloads[name]
    sized = f"{size}, " if (size := workload.size()) else ""
    return f"{name}: {workload.model}, {sized}{counted(workload.steps, 'step')}"


def _demands(part: AnyPart) -> list[str]:
    """Return a line for each field of a claim, or of a part of a composite claim. A field without a value is left out,
    but one with a default value is listed. Texts for people, such as `why`, are left out."""
    values: dict[str, Any] = part.model_dump(exclude_none=True, exclude=TEXTS)
    for path, bound in part.bounds().items():
        *above, name = path.split(".")
        reduce(getitem, above, values)[name] = str(bound)
    return [f"{name}: {_value(value)}" for name, value in values.items() if value not in ({}, [])]


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(
            f"{name} {f'({_value(each)})' if isinstance(each, dict) else _value(each)}" for name, each in value.items()
        )
    if isinstance(value, list):
        return ", ".join(_value(each) for each in value)
    return str(value).lower() if isinstance(value, bool) else str(value)
