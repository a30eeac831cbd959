"""What usually causes each reason code, and what to do: of everything that did not hold, broke or was not decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from harness.report.causes import breaks, captures, comparisons, guards, kernels


@dataclass(frozen=True)
class Cause:
    """Of one reason code. own: the code is a claim's own comparison, whose usual causes its `if_fails` names; of any
    other code that text would speak of what was never reached.
    """

    cause: str
    remedy: str
    own: bool = False


_OWN = captures.TEXTS | comparisons.TEXTS | kernels.TEXTS
CAUSES: Final[dict[str, Cause]] = {
    **{code: Cause(*texts, own=True) for code, texts in _OWN.items()},
    **{code: Cause(*texts) for code, texts in (guards.TEXTS | breaks.TEXTS).items()},
}


def remedy_for(reason: str) -> str | None:
    """What a unit of this code asks for, if anything does."""
    known = CAUSES.get(reason)
    return breaks.REMEDIES_OF_NOT_RUN.get(reason) if known is None else known.remedy
