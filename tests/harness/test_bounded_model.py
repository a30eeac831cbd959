"""Models of strangers' files end their validation early, and read what is whole as pydantic does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import Field, PydanticUserError, ValidationError

from harness.bounded_model import MOST_KEYS, BoundedModel, LateModel

HARNESS = Path(__file__).parents[2] / "harness"


class _Item(BoundedModel):
    number: int


class _File(BoundedModel):
    items: list[_Item] = Field(default_factory=list)
    counts: dict[str, int] = Field(default_factory=dict)
    nested: dict[str, dict[str, _Item]] | None = None


def _errors(text: str) -> list[tuple[int | str, ...]]:
    with pytest.raises(ValidationError) as caught:
        _File.model_validate_json(text)
    return [error["loc"] for error in caught.value.errors()]


def test_a_list_is_validated_only_to_its_first_wrong_item() -> None:
    assert _errors('{"items": [{"number": 1}, {}, {}, {}]}') == [("items", 1, "number")]


def test_validating_a_mapping_stops_after_a_hundred_errors() -> None:
    text = ", ".join(f'"{number}": "x"' for number in range(1_000))
    assert _errors(f'{{"counts": {{{text}}}}}') == [("counts", str(number)) for number in range(MOST_KEYS)]


def test_a_wrong_entry_of_a_large_mapping_is_named_by_its_key() -> None:
    text = ", ".join(f'"{number}": {number if number != 789 else "null"}' for number in range(1_000))
    assert _errors(f'{{"counts": {{{text}}}}}') == [("counts", "789")]


def test_validating_nested_mappings_and_lists_stops_early_too() -> None:
    inner = ", ".join(f'"{number}": {{}}' for number in range(1_000))
    found = _errors(f'{{"nested": {{"a": {{{inner}}}, "b": {{{inner}}}}}}}')
    assert len(found) == 2 * MOST_KEYS
    assert found[0] == ("nested", "a", "0", "number")


def test_too_many_keys_of_a_mapping_are_reported_as_one_error() -> None:
    text = ", ".join(f'"key {number}": 1' for number in range(MOST_KEYS + 1))
    with pytest.raises(ValidationError, match="101 keys, but at most 100 keys are allowed"):
        _Item.model_validate_json(f"{{{text}}}")


def test_a_long_mapping_is_read_whole_and_in_its_order() -> None:
    counts = {f"key {number}": number for number in range(1_234)}
    read = _File.model_validate_json(_File(counts=counts).model_dump_json())
    assert list(read.counts.items()) == list(counts.items())


def test_every_model_outside_the_language_of_contracts_limits_its_number_of_errors() -> None:
    """A contract has at most 50,000 values, which its reader counts before pydantic validates them."""
    files = [path for path in HARNESS.rglob("*.py") if path.relative_to(HARNESS).parts[0] not in ("contract", "kinds")]
    unbounded = [path.name for path in files if re.search(r"^class \w+\(BaseModel\)", path.read_text(), re.MULTILINE)]
    assert unbounded == ["bounded_model.py"]


class _Unknown(LateModel):
    number: Caller  # type: ignore[name-defined]  # noqa: F821 - a variable of a caller


def test_a_pydantic_model_is_built_without_reading_the_variables_of_its_caller() -> None:
    """Reading them crashed Python 3.13.0 if a model was first used within a comprehension."""
    Caller = int  # noqa: F841
    with pytest.raises(PydanticUserError, match="not fully defined"):
        _Unknown.model_validate({"number": 1})
