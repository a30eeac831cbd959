"""Every field of every kind is a demand with the codes that break it, or says why it is none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args

import pytest
from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from harness.contract import schema
from harness.contract.base import Demand, Judged, Name, NoDemand, Positive, marks
from harness.contract.schema import part_kinds, part_model
from harness.errors import KindError
from harness.judging.reasons import REASONS
from harness.kinds.gradients.model import GradientMatch
from harness.kinds.trajectory.model import TrajectoryMatch

COMMON = {"kind", "mechanism"}  # what is judged, and from which evidence


def nested(field: FieldInfo) -> type[BaseModel] | None:
    """The model that a field holds, also where it may be left out."""
    choices = (field.annotation, *get_args(field.annotation))
    return next((each for each in choices if isinstance(each, type) and issubclass(each, BaseModel)), None)


def paths(model: type[BaseModel], stop: set[str], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        path, below = f"{prefix}{name}", nested(field)
        if below is not None and path not in stop:
            yield from paths(below, stop, f"{path}.")
        else:
            yield path


@pytest.mark.parametrize("model", [part_model(kind) for kind in part_kinds()], ids=part_kinds())
def test_every_field_of_a_claim_kind_is_marked_as_able_or_unable_to_make_the_claim_fail(model: type[Judged]) -> None:
    none = marks(model, NoDemand)
    assert sorted([*marks(model, Demand), *none]) == sorted(set(paths(model, set(none))) - COMMON)


@pytest.mark.parametrize("model", [part_model(kind) for kind in part_kinds()], ids=part_kinds())
def test_a_demand_lists_its_failing_reason_codes_and_any_other_field_explains_why_it_cannot_fail(
    model: type[Judged],
) -> None:
    for path, demand in marks(model, Demand).items():
        assert {str(REASONS[reason].status) for reason in demand.reasons} == {"FAIL"}, path
    assert all(each.why for each in marks(model, NoDemand).values())


class Unmarked(Judged):
    """A model as packages wrote it before fields had marks."""

    kind: Literal["memory_steady"]
    candidate: Name
    below: Annotated[Positive, Demand("loss_too_high")]


def test_a_kind_model_with_an_unannotated_field_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "resolve", lambda _reference: Unmarked)
    with pytest.raises(KindError, match=r"claim kind 'memory_steady': .*; found candidate; annotate the field with"):
        schema.part_model.__wrapped__("memory_steady")


def trajectory(**changes: Any) -> Judged:
    given = {
        "kind": "trajectory_match",
        "candidate": "a",
        "baseline": "b",
        "equality": "bitwise",
        "max_abs_difference": 0.1,
        "guards": {"steps": 10},
    }
    return TypeAdapter(TrajectoryMatch).validate_python(given | changes)


def test_bitwise_equality_and_a_bound_are_two_separate_demands() -> None:
    assert set(trajectory().demanded()) == {"equality", "guards.steps"}
    assert set(trajectory(equality="within").demanded()) == {"max_abs_difference", "guards.steps"}


def test_a_guard_that_is_absent_or_trivial_is_not_a_demand() -> None:
    def demanded(**guards: Any) -> set[str]:
        return set(trajectory(guards={"steps": 10, **guards}).demanded()) - {"equality", "guards.steps"}

    effect = {"control": "c", "last": 2, "at_least": 0.2}
    assert demanded(clip_active_steps=0) == set()
    assert demanded(distinct_batches=1) == set()
    assert demanded(clip_active_steps=1, distinct_batches=2) == {"guards.clip_active_steps", "guards.distinct_batches"}
    assert demanded(training_effect=effect) == {"guards.training_effect.at_least"}


def test_a_clipped_norm_counts_as_two_demanded_numbers() -> None:
    part = GradientMatch(
        kind="gradient_match",
        candidate="a",
        steps=[0],
        clipped_norm={"at_most": 0.1, "relative_rounding": 1e-6},  # type: ignore[arg-type]
    )
    assert set(part.demanded()) == {"clipped_norm.at_most", "clipped_norm.relative_rounding"}


def test_defaults_that_can_fail_a_claim_are_demands() -> None:
    capture = part_model("capture").model_validate({"kind": "capture", "candidate": "a"})
    assert set(capture.demanded()) == {"captures", "skipped_steps_at_most"}
    match = {"kind": "kernel_match", "candidate": "a", "operations": ["x"], "max_relative_error": {"float32": 1e-4}}
    model = part_model("kernel_match")
    assert set(model.model_validate(match).demanded()) == {"max_relative_error"}
    assert set(model.model_validate(match | {"magnitudes": [1e5], "demands": {"tile": 16}}).demanded()) == {
        "max_relative_error",
        "magnitudes",
        "demands.tile",
    }
