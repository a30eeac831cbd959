"""Field types and base models that every part of the contract language is made of."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")]
SystemName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_.]*$")]
Text = Annotated[str, Field(min_length=1, max_length=4000)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Scalar = bool | int | float | str
Mechanism = Literal["cuda_graph", "traced"]
Equality = Literal["bitwise", "within"]


class Strict(BaseModel):
    """Unknown keys, coerced types, NaN and infinities are errors; instances never change."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, defer_build=True)


class Judged(Strict):
    """Fields of one judgement, alone as a claim or as one of a claim's parts."""

    mechanism: Mechanism | None = None
    """The kind of replay the evidence must come from; left out, any or none."""


def refuse(message: str, *path: str | int) -> None:
    """Raise a validation error; `path` (below the model) tells the loader which value to point at."""
    raise PydanticCustomError("contract_rule", "{message}", {"message": message, "path": list(path)})
