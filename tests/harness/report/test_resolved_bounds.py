"""Pages show the bound that a unit was judged by, not its cases."""

from __future__ import annotations

import copy

from report_views import CONTRACT, small_view

from harness.contract.conditional import Bounds
from harness.contract.schema import Contract
from harness.contract.strict_yaml import Document
from harness.evidence.environment_records import GpuFacts
from harness.report.html import render
from harness.report.view import ReportView

UNIT = (CONTRACT["id"], "F-GRAPH-BWD-001", "tiny")


def contract() -> Contract:
    """A trajectory whose bound is another one on an H100."""
    value = copy.deepcopy(CONTRACT)
    cases = [{"gpu": "H100", "value": 0.625}]
    value["claims"] = [value["claims"][0] | {"max_abs_difference": {"otherwise": 0.375, "cases": cases}}]
    bounds = Bounds(Document("c.yaml", "", value, {}, {(): (1, 1)}))
    return bounds.attach([(each, Contract.model_validate(each.document.value)) for each in bounds.readings()])


def view(gpu: str) -> ReportView:
    return small_view(contracts=[contract()], gpus={UNIT: GpuFacts(name=gpu)})


def test_each_unit_is_shown_with_the_bound_for_its_gpu() -> None:
    found = [view(name).judged()[0][1][0].value_at("max_abs_difference") for name in ("NVIDIA H100", "NVIDIA A100")]
    assert found == [0.625, 0.375]


def test_the_page_shows_only_the_bound_for_the_gpu_of_the_run() -> None:
    page = render(view("NVIDIA H100"))
    assert "0.625" in page
    assert "0.375" not in page
