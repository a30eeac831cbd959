"""The laws of "run A serves run B", for every field and purpose: a run serves itself, and more is enough."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.contract.schema import Arm, Workload
from harness.evidence import serving
from harness.evidence.plan_records import PlannedArm, Run
from harness.evidence.serving import (
    AT_LEAST,
    DEMANDED,
    DONATED,
    EQUAL,
    HAS,
    IGNORED,
    INCLUDES,
    PART,
    SAME,
    SHARED,
    Rules,
    differences,
    of_arms,
    serves,
    widened,
)

PURPOSES: dict[str, Rules] = {"shared": SHARED, "same": SAME, "part": PART, "donated": DONATED, "demanded": DEMANDED}
NAMES = ("plain", "fast", "third")
names = st.sampled_from(NAMES)
some = st.sampled_from(["x", "y", "z"])
counts = st.integers(1, 4)
arms_of_a_contract = st.builds(
    Arm, capture=st.sampled_from(["none", "step"]), ranks=counts, deterministic=st.booleans(), rate=counts
)
workloads = st.builds(Workload, model=some, batch_size=counts, seq_len=counts, steps=counts, seed=counts)
groups = st.lists(st.lists(names, min_size=1, max_size=2, unique=True), max_size=2)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "arm": arms_of_a_contract,
    "system": some,
    "commit": st.none() | some,
    "replicas": counts,
    "first_replica": counts,
    **dict.fromkeys(("observe_syncs", "watch_every_step", "watch_ranks", "moves", "sketches", "nudged"), st.booleans()),
    "micro_batches": st.none() | counts,
    "rounded_to": st.none() | some,
    **dict.fromkeys(("id", "contract", "workload_name"), some),
    "probe": st.sampled_from(["paired", "throughput", "seeds"]),
    "workload": workloads,
    "baseline_of": st.dictionaries(names, names, max_size=2),
    "gradient_steps": st.lists(counts, max_size=3, unique=True),
    "gradient_arms": st.lists(names, max_size=3, unique=True),
    **dict.fromkeys(("process", "measurement"), st.integers(0, 3)),
    "settings": st.dictionaries(some, counts | st.booleans(), max_size=2),
    "fault": st.none() | some,
    "fault_arms": st.lists(names, max_size=2, unique=True),
    **dict.fromkeys(("wall_limit_s", "heartbeat_s"), st.floats(1, 9)),
    **dict.fromkeys(("data", "model_directory"), st.none() | some),
    "groups": groups,
    "without": st.lists(names, max_size=1),
    "compared": st.none() | groups,
}
planned = st.builds(PlannedArm, **{name: FIELDS[name] for name in PlannedArm.model_fields})
FIELDS["arms"] = st.dictionaries(names, planned, min_size=1, max_size=2)
runs = st.builds(Run, **{name: FIELDS[name] for name in Run.model_fields})
few = settings(max_examples=25, deadline=None)
Change = Callable[[Any], Any]


def changed(run: Run, field: str, change: Change) -> Run:
    """The run with one field changed, or with that field of its first arm."""
    if field in Run.model_fields:
        return run.model_copy(update={field: change(getattr(run, field))})
    first, *others = run.arms.items()
    arm = first[1].model_copy(update={field: change(getattr(first[1], field))})
    return run.model_copy(update={"arms": {first[0]: arm, **dict(others)}})


def value_of(run: Run, field: str) -> Any:
    return getattr(run if field in Run.model_fields else next(iter(run.arms.values())), field)


def test_every_field_of_a_run_has_a_rule_for_sharing_evidence() -> None:
    """A field without a rule would be ignored when one run's evidence is used for another run."""
    for rules in PURPOSES.values():
        assert set(rules) == {*Run.model_fields, *PlannedArm.model_fields} == set(FIELDS)


def test_a_sharing_table_that_lacks_a_field_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, line = inspect.getsource(serving), '    "nudged": EQUAL,\n'
    assert line in source
    (tmp_path / "serving_without_a_rule.py").write_text(source.replace(line, ""))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TypeError, match="SHARED must have a rule for each field"):
        importlib.import_module("serving_without_a_rule")


@pytest.mark.parametrize("rules", PURPOSES.values(), ids=PURPOSES)
@few
@given(run=runs)
def test_evidence_of_a_run_can_be_used_for_an_equal_run(rules: Rules, run: Run) -> None:
    assert list(differences(run, run, rules)) == []
    if rules is not SAME and rules is not PART:
        assert list(differences(run, run, rules, {name: name for name in run.arms})) == []


@pytest.mark.parametrize("rules", PURPOSES.values(), ids=PURPOSES)
@few
@given(run=runs, other=runs)
def test_evidence_of_a_run_with_more_work_than_requested_can_be_used(rules: Rules, run: Run, other: Run) -> None:
    for field, rule in rules.items():
        more = value_of(other, field)
        if rule is AT_LEAST:
            assert serves(changed(run, field, lambda value: max(value, more)), run, rules), field  # noqa: B023
        elif field == "arms" and rule is INCLUDES:
            assert serves(run.model_copy(update={"arms": {**more, **run.arms}}), run, rules)
        elif rule in (INCLUDES, HAS):
            assert serves(changed(run, field, lambda value: INCLUDES.joined(value, more)), run, rules), field  # noqa: B023
        elif rule.unmet is IGNORED.unmet:
            assert serves(changed(run, field, lambda _: more), run, rules), field  # noqa: B023


@pytest.mark.parametrize("rules", PURPOSES.values(), ids=PURPOSES)
@few
@given(run=runs, other=runs)
def test_evidence_of_a_run_with_less_or_different_work_cannot_be_used(rules: Rules, run: Run, other: Run) -> None:
    for field, rule in rules.items():
        there = value_of(other, field)
        host = changed(run, field, lambda _: there)  # noqa: B023
        mine, its = (rule.seen(value_of(each, field)) for each in (run, host))
        if rule.unmet is EQUAL.unmet:
            assert serves(host, run, rules) is (mine == its and _flags(mine) == _flags(its)), field
        elif rule is AT_LEAST:
            assert serves(host, run, rules) is (its >= mine), field
        elif rule in (INCLUDES, HAS) and isinstance(mine, list):
            assert serves(host, run, rules) is (set(mine) <= set(its)), field
        elif rule in (INCLUDES, HAS) and not isinstance(mine, dict):
            assert serves(host, run, rules) is (not mine or mine == its), field


def _flags(value: Any) -> Any:
    return {key: isinstance(one, bool) for key, one in value.items()} if isinstance(value, dict) else None


@few
@given(host=runs, guest=runs)
def test_evidence_of_a_widened_run_can_still_be_used_for_its_original_contract(host: Run, guest: Run) -> None:
    part = of_arms(guest, {name: name for name in guest.arms})
    wider = widened(host, part)
    assert serves(wider, host, {**SHARED, "baseline_of": DONATED["baseline_of"]}, {name: name for name in host.arms})


@few
@given(host=runs, guest=runs, arms=st.permutations(NAMES))
def test_evidence_of_a_widened_run_can_be_used_for_equal_training(host: Run, guest: Run, arms: list[str]) -> None:
    """The arms may have other names.

    A run that was widened by another run's arms lacks nothing which that run needs.
    """
    own = {name: getattr(host, name) for name in ("probe", "process", "measurement", "workload", "settings", "fault")}
    alike = guest.model_copy(update={**own, "data": host.data, "model_directory": host.model_directory})
    empty = host.model_copy(update={"arms": {}, "fault_arms": [], "gradient_steps": [], "gradient_arms": []})
    names_there = dict(zip(NAMES, arms, strict=True))
    mapping = {name: names_there[name] for name in alike.arms}
    assert serves(widened(empty, of_arms(alike, mapping)), alike, SHARED, mapping)


def test_evidence_with_a_gradient_comparison_that_was_not_requested_cannot_be_used() -> None:
    """Without the comparison the run would record gradients alone, and a judge reads them differently."""
    arms = {name: PlannedArm(arm=Arm(), system="a:B") for name in NAMES}
    workload = Workload(model="m", batch_size=1, seq_len=1, steps=1)
    own = {"id": "r", "contract": "c", "probe": "paired", "workload_name": "w", "workload": workload}
    host = Run(**own, arms=arms, gradient_steps=[0], baseline_of={"fast": "plain"})
    guest = Run(**own, arms={"fast": arms["fast"]}, gradient_steps=[0])
    [difference] = differences(host, guest, SHARED, {"fast": "fast"})
    assert (difference.field, difference.demanded, difference.made) == ("baseline_of.fast", "none", "'plain'")
    assert serves(host, guest, DONATED, {"fast": "fast"})
    other = guest.model_copy(update={"baseline_of": {"fast": "third"}})
    for rules in (SHARED, DONATED, DEMANDED):
        assert not serves(host, other, rules, {"fast": "fast"})
