"""Texts that people read beside a verdict, from the files in `texts`: a file is read when one of its texts is shown."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter

from harness.bounded_model import BoundedModel
from harness.contract.strict_yaml import read

TEXTS = Path(__file__).with_name("texts")
Sentence = Annotated[str, Field(pattern=r"^\S[^\n]*\.$")]
NextStep = Annotated[str, Field(pattern=r"^[a-z`][^\n]*[^\n.]$")]


class ReasonText(BoundedModel):
    """What a reason code means, what usually causes it, and what to do next; a code of an installed kind has none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    meaning: Sentence | None = None
    cause: Sentence | None = None
    remedy: NextStep | None = None
    own: bool = False


OF_PACKAGE = ReasonText()  # its claims say what causes it


def reason_text(code: str) -> ReasonText:
    """Return the texts of a reason code."""
    return reasons().get(code, OF_PACKAGE)


@cache
def reasons() -> Mapping[str, ReasonText]:
    """Return the texts of every code of the harness's own."""
    texts: dict[str, ReasonText] = TypeAdapter(dict[str, ReasonText]).validate_python(_data("reasons"))
    return texts


@cache
def glossary() -> Mapping[str, str]:
    """Return what each term means, in the order of the file."""
    terms: dict[str, str] = TypeAdapter(dict[str, Sentence]).validate_python(_data("glossary"))
    return terms


def _data(name: str) -> Any:
    return read(TEXTS / f"{name}.yaml", "a file of texts").value
