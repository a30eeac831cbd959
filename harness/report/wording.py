"""Read the texts that explain verdicts from data files.

If only one family of claim kinds uses a reason code, the texts of the code are in the folder of this family.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter

from harness.bounded_model import BoundedModel
from harness.contract.strict_yaml import read
from harness.judging.verdict import Verdict

TEXTS = Path(__file__).with_name("texts")
KINDS = Path(__file__).parents[1] / "kinds"
Sentence = Annotated[str, Field(pattern=r"^\S[^\n]*\.$")]
NextStep = Annotated[str, Field(pattern=r"^[a-z`][^\n]*[^\n.]$")]


class Told(BoundedModel):
    """The cause and the remedy for verdicts whose message contains certain words."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cause: Sentence
    remedy: NextStep


class ReasonText(BoundedModel):
    """The meaning, the usual cause and the remedy of a reason code. If another package defines a claim kind, the kind's
    reason codes have no texts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    meaning: Sentence | None = None
    cause: Sentence | None = None
    remedy: NextStep | None = None
    where_below_one: dict[str, Sentence] = Field(default_factory=dict)
    """Name of a figure of the verdict -> the sentence that is used as the cause if this figure is below 1."""
    where_it_says: dict[str, Told] = Field(default_factory=dict)
    """Words -> the cause and the remedy that are used if the verdict's message contains these words."""
    says_as: str | None = None
    """Another reason code whose `where_it_says` is searched before that of this code, because the messages of both
    codes quote the same words."""
    own: bool = False

    def cause_of(self, verdict: Verdict) -> str | None:
        """Return the cause that the verdict's figures or message select. If they select none, return the usual cause of
        the reason code."""
        for name, figure in verdict.figures.items():
            told = self.where_below_one.get(name.rpartition(".")[2])
            if told is not None and isinstance(figure.value, int | float) and figure.value < 1:
                return told
        found = self._told(verdict)
        return self.cause if found is None else found.cause

    def remedy_of(self, verdict: Verdict) -> str | None:
        """Return the remedy that the verdict's message selects or, if it selects none, the reason code's usual one."""
        found = self._told(verdict)
        return self.remedy if found is None else found.remedy

    def _told(self, verdict: Verdict) -> Told | None:
        other = reason_text(self.says_as).where_it_says if self.says_as is not None else {}
        return next((told for words, told in (other | self.where_it_says).items() if words in verdict.message), None)


OF_PACKAGE = ReasonText()  # used for reason codes of kinds in other packages; the claim itself then describes the cause


def reason_text(code: str) -> ReasonText:
    """Return the texts of a reason code."""
    return reasons().get(code, OF_PACKAGE)


@cache
def reasons() -> Mapping[str, ReasonText]:
    """Return the texts of every reason code that the harness defines."""
    texts = {code: text for path in reason_files() for code, text in _data(path).items()}
    checked: dict[str, ReasonText] = TypeAdapter(dict[str, ReasonText]).validate_python(texts)
    return checked


def reason_files() -> list[Path]:
    """Return the files with texts of reason codes: the shared file first, then the file of each family of kinds that
    has such a file."""
    return [TEXTS / "reasons.yaml", *sorted(KINDS.glob("*/reasons.yaml"))]


@cache
def glossary() -> Mapping[str, str]:
    """Return the meaning of each term of the glossary, in the order of the glossary's file."""
    terms: dict[str, str] = TypeAdapter(dict[str, Sentence]).validate_python(_data(TEXTS / "glossary.yaml"))
    return terms


def _data(path: Path) -> Any:
    return read(path, "a file of texts").value


def terms_in(texts: Iterable[str]) -> dict[str, str]:
    """Return the terms that occur in any of these texts, with their explanations, in the order of the glossary.

    A plural counts, too. A term that is only part of a longer term (`sync` in `host sync`) does not count.
    """
    joined = "\n".join(texts).replace("_", " ").casefold()
    found = set()
    for term in sorted(glossary(), key=len, reverse=True):
        joined, number = re.subn(rf"(?<![a-z0-9]){re.escape(term)}(?:s|es)?(?![a-z])", "\0", joined)
        if number:
            found.add(term)
    return {term: meaning for term, meaning in glossary().items() if term in found}
