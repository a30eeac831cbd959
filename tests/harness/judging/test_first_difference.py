"""The first difference of arms that part at a known line, by evidence that the where probe wrote."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import parting_systems
import pytest
import torch
from claims_in_process import CLAIM, contract_of, executed, planned_of
from pydantic import ValidationError

from harness.api.first_difference import locate
from harness.evidence.plan_records import Run
from harness.evidence.read_run import read_run
from harness.evidence.run_evidence import RunEvidence
from harness.evidence.run_records import OBSERVED, UNOBSERVED, ObservedOperator, ObservedStep, ReadTensor
from harness.judging.first_difference import PATH, FirstDifference, Pair, _in_order, aligned, answer_of, difference_of
from harness.planning.plan import where_run
from harness.report.located import located, path_rows

SYSTEM = "parting_systems:Parting"
LIMIT_S = 600.0  # a loaded machine is slow
SOURCE = Path(parting_systems.__file__).read_text().splitlines()


def line_of(fault: str) -> str:
    [number] = [at for at, text in enumerate(SOURCE, start=1) if fault in text.partition("  # ")[2].split()]
    return f"parting_systems.py:{number}"


def run_for(candidate: dict[str, Any], steps: int = 6, **figures: object) -> Run:
    arms = {"other": candidate, "plain": {"capture": "none"}}
    contract = contract_of(SYSTEM, {**CLAIM, "candidate": "other", "guards": {"steps": steps}}, steps=steps, arms=arms)
    planned = planned_of(contract)
    run = where_run(contract.claims[0], planned.units[0], planned.runs, figures, LIMIT_S)
    assert run is not None
    return run


class Executing:
    """Executes runs of the probe in this process, and keeps what they left."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.runs, self.steps = folder, list[Run](), list[Sequence[ObservedStep]]()

    def __call__(self, run: Run) -> Sequence[RunEvidence]:
        self.runs.append(run)
        found = executed(run, self.folder / str(len(self.runs)))
        self.steps.append(found.observed_steps)
        return [found]


@cache
def located_once(candidate: tuple[tuple[str, str], ...]) -> tuple[FirstDifference, Executing]:
    with TemporaryDirectory() as folder:
        executing = Executing(Path(folder))
        return locate(run_for(dict(candidate)), executing), executing


def found(**candidate: str) -> FirstDifference:
    """Return the answer. It is computed again in each test, so that mutmut runs each test that needs it."""
    answer, executing = located_once(tuple(candidate.items()))
    assert answer_of(executing.runs[-1], executing.steps[-1]) == answer
    return answer


def executions(**candidate: str) -> Executing:
    return located_once(tuple(candidate.items()))[1]


@pytest.mark.parametrize(
    ("fault", "step", "part", "how"),
    [
        ("scaled", 0, "forward", "numbers"),
        ("tripled", 0, "backward", "reads"),
        ("unclipped", 0, "gradients", "reads"),
        ("momentum", 1, "update", "numbers"),
        ("late", 3, "update", "numbers"),
        ("skipped", 0, "update", "writes"),
        ("drawn", 0, "generators", "result"),
    ],
)
def test_a_planted_fault_is_located_at_its_line(fault: str, step: int, part: str, how: str) -> None:
    answer = found(fault=fault)
    assert (answer.found, answer.step, answer.part, answer.how) == ("found", step, part, how)
    assert (answer.typed, "data type" in located(answer)) == (None, False)
    named = {line for place in answer.places.values() for line in (place.line, *place.made_at)}
    assert line_of(fault) in {name.rpartition("/")[2] for name in named}


def test_a_constant_frozen_in_a_replay_is_reported_with_both_values() -> None:
    answer = found(capture="step", fault="scaled")
    assert answer.places["other"].module == "1"
    assert "in `1` at" in located(answer)
    assert answer.numbers == ["0.5", "1.0"]


def test_a_different_batch_is_located_as_the_first_difference() -> None:
    answer = found(fault="batch")
    assert (answer.step, answer.part) == (2, "batch")
    assert located(answer).startswith("arm `other`, step 2: the batch differs (x, y); the first operator to show it is")


@pytest.mark.parametrize(
    ("fault", "operator"), [("autocast", "`aten.addmm` in `0.up`"), ("rounded", "`aten._to_copy`")]
)
def test_the_first_operator_that_works_in_another_data_type_is_named(fault: str, operator: str) -> None:
    """Autocast casts before an operator of both arms; a cast to and fro has no partner in the other arm."""
    answer = found(fault=fault)
    assert answer.typed is not None
    assert answer.typed.line.rpartition("/")[2] == line_of(fault)
    named = f"{operator} at {answer.typed.line}, bfloat16 against float32 in arm `plain`; "
    assert f"the forward pass differs: first operator with another data type: {named}" in located(answer)


def test_unequal_results_are_counted() -> None:
    answer = found(fault="drawn")
    assert answer.places["other"].operator == "aten.bernoulli_"
    assert answer.elements is not None
    assert (answer.of, answer.largest) == (32, 1.0)
    assert 0 < answer.elements < 32


@pytest.mark.parametrize("candidate", [{}, {"capture": "step"}])
def test_equal_arms_do_not_repeat_a_difference(candidate: dict[str, str]) -> None:
    answer = found(**candidate)
    assert (answer.found, answer.steps) == ("does_not_repeat", 6)
    assert located(answer) == (
        "does not repeat: executed again, both arms are equal in 6 steps, with all state that is found"
    )


@pytest.mark.parametrize("candidate", [{"fault": "late"}, {"capture": "step", "fault": "momentum"}])
def test_an_observed_located_step_ends_with_the_bits_of_the_plain_step(candidate: dict[str, str]) -> None:
    executing = executions(**candidate)
    observed = next(s for run, s in zip(executing.runs, executing.steps, strict=True) if run.settings["observed"])
    for arm in ("other", "plain"):
        by_way = {each.replica: each for each in observed if each.arm == arm}
        plain, seen = by_way[UNOBSERVED], by_way[OBSERVED]
        assert plain.operators is None
        assert seen.operators
        assert (plain.after, plain.loss, plain.gradients) == (seen.after, seen.loss, seen.gradients)


def test_no_difference_is_located_in_a_step_that_ends_with_other_bits_when_observed() -> None:
    executing = executions(fault="scaled")
    run, steps = executing.runs[-1], list(executing.steps[-1])
    [at] = [n for n, each in enumerate(steps) if each.arm == "other" and each.replica == OBSERVED]
    steps[at] = steps[at].model_copy(update={"loss": "0" * 16})
    answer = answer_of(run, steps)
    assert (answer.found, answer.why) == ("not_seen", "observed")
    expected = "not seen: the step ends in other bits while it is observed, or whenever it is executed again"
    assert located(answer) == expected


def test_the_difference_of_a_noisy_step_is_located_under_deterministic_algorithms(tmp_path: Path) -> None:
    noisy = {"fault": "unrepeated"}
    unknown = locate(run_for(noisy), Executing(tmp_path / "unknown"))
    assert (unknown.found, unknown.why, unknown.deterministic) == ("not_seen", "observed", False)
    known = locate(run_for(noisy, noise_floor=1e-5), Executing(tmp_path / "known"))
    assert located(known) == (
        "does not repeat: executed again under torch's deterministic algorithms, both arms are equal in 6 steps, "
        "with all state that is found"
    )
    assert run_for(noisy, noise_floor=0.0).settings["deterministic"] is False


def test_a_replay_whose_operators_are_not_all_seen_is_not_blamed_for_a_missing_write() -> None:
    executing = executions(fault="skipped")
    run, steps = executing.runs[-1], list(executing.steps[-1])
    unseen = [each.model_copy(update={"operators": None}) if each.arm == "other" else each for each in steps]
    answer = answer_of(run, unseen)
    assert (answer.part, answer.how, answer.places) == ("update", None, {})
    assert "and no operator that was seen explains it" in located(answer)


def test_a_step_that_was_recorded_twice_counts_as_damaged_evidence(tmp_path: Path) -> None:
    executing = Executing(tmp_path)
    executing(run_for({}, steps=1))
    records = tmp_path / "1" / "records.jsonl"
    lines = records.read_text().splitlines(keepends=True)
    again = next(line for line in lines if '"observed_step"' in line)
    records.write_text("".join([*lines[:-1], again, lines[-1]]))
    death = read_run(tmp_path / "1")[1].death
    assert death is not None
    assert death.detail.endswith(" was recorded twice")


def test_locating_that_runs_out_of_time_is_reported(tmp_path: Path) -> None:
    executing = Executing(tmp_path)
    run = run_for({"fault": "late"})
    answer = locate(run.model_copy(update={"settings": {**run.settings, "limit_s": 0.0}}), executing)
    assert located(answer) == "not seen: the limit of time ended it before the step was reached in both arms"


def test_no_arm_is_opened_after_the_time_limit_of_locating(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = list[object]()
    monkeypatch.setattr("harness.execution.probes.where.opened", lambda *given: opened.append(given))
    run = run_for({})
    Executing(tmp_path)(run.model_copy(update={"settings": {**run.settings, "limit_s": -1.0}}))
    assert opened == []


def test_all_executions_of_locating_share_one_time_limit() -> None:
    limits = [float(str(run.settings["limit_s"])) for run in executions(fault="drawn").runs]
    assert len(limits) == 3
    assert sorted(limits, reverse=True) == limits
    assert len({*limits, LIMIT_S}) == 4


@pytest.mark.parametrize("source", [10**6, 5, "5", None])
def test_an_operator_that_reads_a_later_tensor_is_damaged_evidence(source: object) -> None:
    [step] = [each for each in executions(fault="scaled").steps[-1] if each.operators and each.arm == "plain"]
    forged = step.model_dump()
    forged["operators"][5]["reads"][:1] = [{"digest": None, "form": "float32 1", "source": source}]
    damage = nullcontext() if source is None else pytest.raises(ValidationError)
    with damage:
        ObservedStep.model_validate_json(json.dumps(forged))


def test_only_the_first_differing_step_is_observed(tmp_path: Path) -> None:
    executing = Executing(tmp_path)
    locate(run_for({"fault": "late"}, first_differing_step=4), executing)
    assert [run.settings["last"] for run in executing.runs] == [4, 3]
    assert [[each.step for each in steps if each.operators] for steps in executing.steps] == [[], [3, 3]]


def test_the_path_to_a_first_difference_lists_each_compared_part() -> None:
    rows = {part: seen for part, seen, _ in path_rows(found(fault="momentum"))}
    assert rows["batch"] == rows["forward pass"] == rows["backward pass"] == rows["gradient clip"] == "equal"
    assert rows["update"] == "differs"


def test_an_operator_that_only_one_arm_runs_is_paired_with_no_operator_of_the_other_arm() -> None:
    executing = executions(fault="tripled")
    ours, theirs = (
        next(each.operators or [] for each in executing.steps[-1] if each.arm == arm and each.operators)
        for arm in ("other", "plain")
    )
    pairs = aligned(ours, theirs)
    alone = {number for number, _ in enumerate(ours)} - {mine for mine, _ in pairs}
    assert {ours[number].line.rpartition("/")[2] for number in alone} == {line_of("tripled")}
    assert all(ours[mine].name == theirs[other].name for mine, other in pairs)
    assert torch.is_grad_enabled()


def test_operators_outside_a_graph_align_though_the_graph_calls_the_same_lines() -> None:
    """A forward pass runs twice, first as preparation. The captured backward pass computes the forward pass again."""
    forward, backward = (found_operators(names) for names in (("aten.mul", "aten.add"), ("aten.mul", "aten.sub")))
    replayed = [each.model_copy(update={"replayed": True}) for each in backward]
    assert aligned([*forward, *forward, *replayed], [*forward, *backward]) == [(2, 0), (3, 1), (4, 2), (5, 3)]
    assert aligned([*forward, *backward, *replayed], backward) == [(4, 0), (5, 1)]  # warm-ups


def test_operators_of_a_stream_that_runs_ahead_align_by_their_inputs_from_before_the_step() -> None:
    def using(weight: str) -> ObservedOperator:
        [operator] = found_operators(("dequantize",))
        return operator.model_copy(update={"reads": [ReadTensor(digest=weight, form="int32 [8]")]})

    first, second, third = map(using, ("w1", "w2", "w3"))
    one, two, three = (found_operators(names) for names in (("mm", "add"), ("exp", "mul"), ("tanh", "sum")))
    plain = [first, *one, second, *two, third, *three]
    ahead = [first, second, *one, third, *two, *three]
    expected = [(0, 0), (1, 3), (2, 1), (3, 2), (4, 6), (5, 4), (6, 5), (7, 7), (8, 8)]
    assert aligned(ahead, plain) == expected
    assert aligned([using("another"), *ahead[1:]], plain) == expected  # by their order


def test_the_work_of_aligning_does_not_grow_faster_than_the_number_of_operators() -> None:
    """Each arm repeats four operators.

    One arm repeats them once more, and the other arm has an additional operator in the middle.
    """
    turn = found_operators(("aten.mul", "aten.add", "aten.div", "aten.sub"))
    lines = list[int]()
    for turns in (50, 100):
        ours, theirs = turn * turns, turn * (turns - 1)
        other = [*theirs[: 2 * turns], *found_operators(("aten.neg",)), *theirs[2 * turns :]]
        pairs, made = lines_made(lambda ours=ours, other=other: aligned(ours, other))  # type: ignore[misc]
        lines.append(made)
        assert len(pairs) == len(theirs)
        assert all(ours[mine].name == other[its].name for mine, its in pairs)
    assert lines[1] < 3 * lines[0]


def lines_made(function: Callable[[], list[Pair]]) -> tuple[list[Pair], int]:
    """Return the value of a function, and how many lines of Python it executed."""
    lines, before = Counter[str](), sys.gettrace()

    def note(_frame: object, event: str, _given: object) -> Any:
        lines[event] += 1
        return note

    sys.settrace(note)
    try:
        found = function()
        return found, lines["line"]
    finally:
        sys.settrace(before)


def found_operators(names: Sequence[str]) -> list[ObservedOperator]:
    given: dict[str, Any] = {"phase": "forward", "module": "", "line": "", "arguments": [], "reads": []}
    return [ObservedOperator(name=name, code=name, makes=[], leaves=[], **given) for name in names]


def launch(*leaves: str | None) -> list[ObservedOperator]:
    reads = [{"digest": digest, "form": "float32 [2]"} for digest in ("in", "old")]
    texts = dict.fromkeys(("module", "line", "code"), "")
    fields = {"name": "kernel", "phase": "forward", "arguments": [], "reads": reads, "makes": [], **texts}
    return [ObservedOperator.model_validate({**fields, "leaves": leaves})]


@pytest.mark.parametrize(
    ("ours", "theirs", "is_equal"),
    [
        (("new", "new"), (None, "new"), True),  # one arm writes the result over the input
        ((None, "new"), (None, "new"), True),
        ((None, None), (None, "new"), False),  # a kernel that writes nothing
        (("new", "new"), (None, "other"), False),
        (("a", "b"), ("b", "a"), False),
        (("new", None), (None, "new"), False),
        ((), (None, "new"), False),
    ],
)
def test_an_operator_result_written_over_its_input_counts_as_the_same_result(
    ours: tuple[str | None, ...], theirs: tuple[str | None, ...], is_equal: bool
) -> None:
    assert (difference_between(launch(*ours), launch(*theirs)).how is None) == is_equal


def filling(before: str, after: str, source: int | None = None) -> ObservedOperator:
    """The launch of a kernel that is given memory for its result, which held something else before."""
    reads = [{"digest": before, "form": "float32 [3]", "source": source}]
    texts = dict.fromkeys(("module", "line", "code"), "")
    fields = {"name": "dequantize", "phase": "forward", "arguments": [], "reads": reads, "makes": [], **texts}
    return ObservedOperator.model_validate({**fields, "leaves": [None if after == before else after]})


def difference_between(ours: Sequence[ObservedOperator], theirs: Sequence[ObservedOperator]) -> FirstDifference:
    return difference_of(*observed_steps(ours, theirs))


def observed_steps(*operators: Sequence[ObservedOperator], unseen: int = 0, **fields: Any) -> list[ObservedStep]:
    """Return a step of each arm, which ends in another loss in each."""
    known = {"replica": 1, "step": 0, "before": {}, "batch": {}, "gradients": {}, "after": {}, "unseen": unseen}
    return [
        ObservedStep(**{**known, "arm": arm, "loss": arm, "operators": [*each], **fields})
        for arm, each in zip(("a", "b"), operators, strict=True)
    ]


def test_a_differing_operator_in_steps_with_equal_ends_is_no_difference() -> None:
    steps = observed_steps(launch(None, "a"), launch(None, "b"), loss="same")
    answer = difference_of(*steps)
    assert (answer.found, answer.how) == ("does_not_repeat", None)
    assert "differs" not in {row.answer for row in answer.path}


@pytest.mark.parametrize("before", ["old", "result"], ids=["other memory", "memory with this result"])
def test_memory_content_from_before_a_kernel_filled_it_is_no_difference(before: str) -> None:
    assert difference_between([filling(before, "result")], [filling("other", "result")]).how is None


def test_a_kernel_that_fills_memory_with_another_result_has_equal_inputs() -> None:
    assert difference_between([filling("old", "result")], [filling("other", "another")]).how == "result"


def test_a_kernel_that_changes_a_tensor_of_the_step_counts_as_reading_the_tensor() -> None:
    arms = [[filling("x", made), filling(made, made * 2, source=0)] for made in ("a", "b")]
    parted = difference_between([filling("x", "a"), *arms[0][1:]], [filling("x", "a"), *arms[1][1:]])
    assert parted.how == "reads"


def test_a_step_without_autograd_is_one_part_in_which_unseen_kernels_are_counted() -> None:
    steps = observed_steps(launch(None, "a"), launch(None, "b"), unseen=2)
    answer = difference_of(*steps).model_copy(update={"unseen": 2})
    assert located(answer) == (
        "arm `a`, step 0: batch and state are equal; the step differs: another result from equal inputs of `kernel` at "
        "no line of the user; not seen: 2 kernels of replayed graphs"
    )
    assert ("step", "differs") in [row[:2] for row in path_rows(answer)]
    assert {row.answer for row in answer.path if row.part in ("backward", "clip", "update")} == {"not_seen"}


def of_a_step(name: str, made: str = "", *writes: str, source: int | None = None, **fields: Any) -> ObservedOperator:
    [operator] = found_operators([name])
    fields = {"reads": [ReadTensor(digest=made, form="f", source=source)], "line": f"{name}.py", **fields}
    return operator.model_copy(update={"makes": [made], "writes": [*writes], **fields})


def test_the_path_counts_the_operators_of_each_part_and_names_the_first_that_differs() -> None:
    def operators(made: str, *more: ObservedOperator) -> list[ObservedOperator]:
        forward = [*more, of_a_step("embed", module="0"), of_a_step("mul", made, module="1")]
        backward, clip = of_a_step("mul_backward", made, phase="backward"), of_a_step("clip", "", "gradient w")
        after = of_a_step("add_", "", "parameters w"), of_a_step("zero_", "", "gradient w"), of_a_step("item")
        return [*forward, backward, clip, *after]

    answer = difference_of(*observed_steps(operators("a", of_a_step("pad", module="p")), operators("b")))
    rows = {row.part: (row.answer, row.names, row.operators, row.alone) for row in answer.path}
    assert rows["forward"] == ("differs", ["1"], 2, 1)
    assert (rows["loss"][0], rows["backward"]) == ("differs", ("differs", ["mul_backward.py"], 1, 0))
    assert (rows["clip"], rows["update"]) == (("equal", [], 1, 0), ("equal", [], 3, 0))


def test_a_part_counts_as_equal_only_if_both_arms_recorded_it() -> None:
    given: dict[str, Any] = {part: {"w": part} for part in ("before", "batch", "gradients", "after")}
    steps, nothing = observed_steps([], [], loss="same", **given), {part: dict[str, str]() for part in given}
    always, recorded = {"settings", "generators", "loss"}, {"batch", "state", "gradients", "update"}
    for change, equal in (({}, recorded), (nothing, set[str]()), ({"unseen": 1}, recorded - {"update"})):
        changed = steps[1].model_copy(update=change)
        for arms in ((steps[0], changed), (changed, steps[0])):
            rows = {row.part: row.answer for row in difference_of(*arms).path}
            assert rows == {part: "equal" if part in always | equal else "not_seen" for part in PATH}


def test_a_gradient_that_one_arm_alone_has_differs() -> None:
    mine, other = observed_steps([], [], loss="same", gradients={"w": "g"})
    answer = difference_of(mine, other.model_copy(update={"gradients": {"w": "g", "v": "h"}}))
    assert [(row.part, row.names) for row in answer.path if row.answer == "differs"] == [("gradients", ["v"])]


def test_a_write_that_one_arm_alone_makes_is_placed_in_this_arm() -> None:
    answer = found(fault="skipped")
    assert (answer.how, [*answer.places]) == ("writes", ["plain"])


def test_the_lines_that_made_an_input_are_those_of_all_operators_without_a_partner() -> None:
    pad, one, two = of_a_step("pad"), of_a_step("one", source=0), of_a_step("two", source=0)
    both = of_a_step("both", reads=[ReadTensor(digest=None, form="f", source=each) for each in (1, 2, None, 1)])
    ours = [pad, one, two, both, of_a_step("sum", "a", source=3)]
    answer = difference_between(ours, [pad, of_a_step("sum", "b", source=0)])
    assert [place.made_at for place in answer.places.values()] == [["one.py", "two.py", "both.py"], []]


def of_type(name: str, *forms: str, source: int | None = None, made: str = "", **fields: Any) -> ObservedOperator:
    reads = [ReadTensor(digest=made, form=form, source=source) for form in forms]
    return of_a_step(name, made, reads=reads, **fields)


def test_another_data_type_is_that_of_an_operator_that_made_the_differing_value() -> None:
    half, full = "bfloat16 [2]", "float32 [2]"
    ours = [of_type("log", half, made="l"), of_type("mm", half, made="h"), of_type("cast", half, source=1, made="c")]
    theirs = [of_type("log", full, made="k"), of_type("mm", full, made="f")]
    read = [of_type("add", full, source=source, made=made) for source, made in ((2, "a"), (1, "b"))]
    for arms, types in (
        (([*ours, read[0]], [*theirs, read[1]]), ["bfloat16", "float32"]),
        (([*theirs, read[1]], [*ours, read[0]]), ["float32", "bfloat16"]),
    ):
        answer = difference_between(*arms)
        assert answer.typed is not None
        assert (answer.typed.operator, answer.types) == ("mm", types)
    answer = difference_between(ours, theirs)  # no pair differs: the value may come from each operator
    assert answer.typed is not None
    assert (answer.how, answer.typed.operator) == (None, "log")
    assert located(answer).endswith(
        "the loss differs: first operator with another data type: `log` at log.py, bfloat16 against float32 in arm `b`"
    )


@pytest.mark.parametrize("of_baseline", [False, True])
def test_a_cast_that_one_arm_alone_makes_works_in_another_data_type(of_baseline: bool) -> None:
    cast = [of_type("to", "float32 [2]", made="h"), of_type("to", "bfloat16 [2]", source=0, made="c")]
    arms = [[*cast, of_type("add", "float32 [2]", source=1, made="a")], [of_type("add", "float32 [2]", made="b")]]
    answer = difference_between(*(arms[::-1] if of_baseline else arms))
    assert answer.typed is not None
    assert answer.typed.operator == "to"
    assert answer.types == (["float32", "bfloat16"] if of_baseline else ["bfloat16", "float32"])


@pytest.mark.parametrize("form", ["bool [2]", "int64 [2]", "float32 [2]"])
def test_an_operator_of_one_arm_with_a_mask_or_an_index_works_in_no_other_data_type(form: str) -> None:
    ours = [of_type("mul", "float32 [2]", form, made="m"), of_type("add", "float32 [2]", source=0, made="a")]
    answer = difference_between(ours, [of_type("add", "float32 [2]", made="b")])
    assert (answer.how, answer.typed) == ("reads", None)


def test_a_view_in_another_data_type_computes_nothing() -> None:
    arms = [
        [of_type("view", form, made=made).model_copy(update={"makes": []}), of_type("mm", form, source=0, made=made)]
        for made, form in (("a", "bfloat16 [2]"), ("b", "float32 [2]"))
    ]
    answer = difference_between(*arms)
    assert answer.typed is not None
    assert answer.typed.operator == "mm"


def test_only_operators_that_read_equal_inputs_from_before_the_step_are_paired_in_another_order() -> None:
    v, w = of_a_step("load", "v"), of_a_step("load", "w")
    first, *body = found_operators(["neg", "exp", "tanh", "sum", "mul"])
    assert aligned([first, *body], [*body, first]) == [(1, 0), (2, 1), (3, 2), (4, 3)]
    assert aligned([v, w, *body], [*body, w, v]) == [(0, 5), (1, 4), (2, 0), (3, 1), (4, 2), (5, 3)]
    twice = [w, *body[:2], w, *body[2:]], [*body[:2], w, *body[2:], w]  # both read the same tensor twice
    assert aligned(*twice) == [(0, 5), (1, 0), (2, 1), (3, 2), (4, 3), (5, 4)]


def test_an_operator_of_another_line_is_paired_only_if_both_arms_run_it_equally_often() -> None:
    first, second, third = (of_a_step("mul").model_copy(update={"code": line}) for line in ("1", "2", "3"))
    assert aligned([first], [second]) == [(0, 0)]
    assert aligned([first], [second, third]) == aligned([second, third], [first]) == []


def test_pairs_are_in_order_and_no_gap_between_two_pairs_has_equal_entries() -> None:
    draw = random.Random(5)
    for _ in range(300):
        ours, theirs = (draw.choices("abcd", k=draw.randrange(9)) for _ in range(2))
        pairs = _in_order(ours, theirs)
        before = (-1, -1)
        for mine, other in [*pairs, (len(ours), len(theirs))]:
            assert before[0] < mine
            assert before[1] < other
            assert not {*ours[before[0] + 1 : mine]} & {*theirs[before[1] + 1 : other]}
            before = mine, other
        assert all(ours[mine] == theirs[other] for mine, other in pairs)


def test_operators_between_two_pairs_are_paired_by_their_lines() -> None:
    """An operator with a capital name reads the same tensor in both arms; the others read different tensors."""
    for ours, theirs, expected in (
        ("CAB", "CAxAB", [(0, 0), (1, 3), (2, 4)]),  # each operator is in one pair
        ("BabcD", "BabcDxyz", [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)]),
    ):
        arms = [
            [of_a_step(name, "same" if name.isupper() else side) for name in names]
            for side, names in (("a", ours), ("b", theirs))
        ]
        assert aligned(*arms) == expected
