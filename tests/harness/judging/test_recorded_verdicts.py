"""A judge's figures, counts and demands are those that were recorded, each name with its value, unit and bound."""

import pytest
import yaml
from judge_cases_tables import EVERYTHING
from recorded_verdicts import FOLDER, facts, recorded

RECORDED = {
    path.stem: yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    for path in sorted(FOLDER.glob("*.yaml"))
}
ANEW = "if the change is right, run: python tests/support/recorded_verdicts.py"


@pytest.mark.parametrize("kind", EVERYTHING)
def test_figures_counts_and_demands_are_as_recorded(kind: str) -> None:
    judged = {case.name: case.judged for case in EVERYTHING[kind] if case.name in RECORDED[kind]}
    found = {name: facts(judged[name]()) for name in RECORDED[kind]}
    read = {name: {one: found[name].get(one) for one in expected} for name, expected in RECORDED[kind].items()}
    assert read == RECORDED[kind], ANEW


@pytest.mark.slow
@pytest.mark.parametrize("kind", EVERYTHING)
def test_every_figure_count_and_demand_of_a_kind_is_recorded(kind: str) -> None:
    names = {name: [*expected] for name, expected in RECORDED[kind].items()}
    assert {name: [*expected] for name, expected in recorded(kind).items()} == names, ANEW
