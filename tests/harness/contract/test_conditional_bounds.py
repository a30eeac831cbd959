"""Bounds with cases: read, refused with their own line, counted as demands, explained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from harness.cli.explain import explanation_of
from harness.contract.conditional import numbers_of
from harness.contract.conditions import Dtype, Situation, capability_of, is_gpu, reaches
from harness.contract.load import load_contract
from harness.contract.schema import parts_of
from harness.errors import ContractError

Toy = Callable[..., Path]
EFFECT = "guards: {steps: 10, training_effect: {control: waiting, last: 2, at_least: BOUND}}"
DTYPES = get_args(Dtype)
H100 = "NVIDIA H100 80GB HBM3"


def bounded(toy: Toy, *cases: str, otherwise: str = "0.2", field: str = EFFECT) -> Path:
    """The toy contract with a bound of these cases, and a second workload of twenty steps."""
    bound = f"{{otherwise: {otherwise}, cases: [{', '.join('{' + case + '}' for case in cases)}]}}"
    path = toy("guards: {steps: 10}", field.replace("BOUND", bound))
    long = "  small: {model: toy, batch_size: 2, seq_len: 8, steps: 10}\n"
    text = path.read_text().replace(long, long + long.replace("small", "long").replace("steps: 10", "steps: 20"))
    path.write_text(text.replace("judged_on: [small]", "judged_on: [small, long]"))
    return path


def refusal(path: Path) -> str:
    with pytest.raises(ContractError) as error:
        load_contract(path)
    return str(error.value).removeprefix("toy.yaml:")


def decided(path: Path, field: str = "guards.training_effect.at_least", **situation: str) -> object:
    [part] = parts_of(load_contract(path).contract.claims[0])
    return part.resolved(Situation(**({"workload": "small"} | situation))).value_at(field)


@pytest.mark.parametrize(
    ("situation", "value"),
    [
        ({}, 0.2),
        ({"gpu": H100}, 1.3),
        ({"gpu": H100, "workload": "long", "capability": "9.0", "dtype": "bfloat16"}, 3.0),
        ({"gpu": H100, "workload": "long", "capability": "9.0", "dtype": "float32"}, 1.3),
        ({"gpu": "NVIDIA A100", "capability": "10.0"}, 2.0),
        ({"gpu": "NVIDIA A100", "capability": "8.0"}, 0.2),
    ],
)
def test_of_several_cases_of_a_bound_the_first_case_whose_conditions_hold_is_used(
    toy: Toy, situation: dict[str, str], value: float
) -> None:
    path = bounded(
        toy,
        'workload: long, capability: "9.0", dtype: bfloat16, value: 3',
        "gpu: h100, value: 1.3",
        'capability_at_least: "9.5", value: 2.0',
    )
    found = decided(path, **situation)
    assert (found, type(found)) == (value, float)


def test_after_bounds_are_chosen_for_a_machine_a_claim_has_no_conditional_bounds(toy: Toy) -> None:
    [part] = parts_of(load_contract(bounded(toy, "gpu: H100, value: 1.3")).contract.claims[0])
    assert list(part.bounds()) == ["guards.training_effect.at_least"]
    assert part.resolved(Situation("small")).bounds() == {}
    assert [one.value_at("guards.training_effect.at_least") for one in part.variants()] == [0.2, 1.3]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("gpu: H100, value: -1", "20:124: 'at_least' must be greater than 0; found -1"),
        ("gpu: H100, value: high", "20:124: 'at_least' must be a valid number; found 'high'"),
        ("gpux: H100, value: 1", "20:106: unknown key; found 'gpux'; did you mean 'gpu'?"),
        ("gpu: H100", "20:105: the key 'value' is required; add it"),
        (
            "value: 1",
            "20:105: a case must have a condition: `workload`, `gpu`, `capability`, `capability_at_least` or `dtype`",
        ),
        ("capability: 9.0, value: 1", "20:118: 'capability' must be a valid string; found 9.0"),
        (
            'capability: "9.0", capability_at_least: "8.0", value: 1',
            "20:118: give either `capability` or `capability_at_least`",
        ),
        (
            "dtype: flaot32, value: 1",
            f"20:113: 'dtype' must be one of: {', '.join(DTYPES)}; found 'flaot32'; did you mean 'float32'?",
        ),
        (
            "dtype: bf16, value: 1",
            f"20:113: 'dtype' must be one of: {', '.join(DTYPES)}; found 'bf16'; did you mean 'bfloat16'?",
        ),
        (
            "workload: smal, value: 1",
            (
                "20:116: the `workload` of a case must be one of the claim's workloads; found 'smal'; did you mean "
                "'small'?"
            ),
        ),
    ],
)
def test_an_invalid_case_of_a_conditional_bound_is_refused(toy: Toy, case: str, message: str) -> None:
    assert refusal(bounded(toy, case)) == message


BOUNDS = "equality: within\n    max_relative_difference: 1.0e-3\n    max_abs_difference: BOUND"


@pytest.mark.parametrize(
    "value", ["null", "true", "[1]", "high", '"0.1"', "{otherwise: 1, cases: [{gpu: B, value: 2}]}"]
)
@pytest.mark.parametrize("of_case", [True, False])
def test_a_non_numeric_bound_value_is_refused_at_its_position(toy: Toy, value: str, of_case: bool) -> None:
    bound = f"{{otherwise: {'1' if of_case else value}, cases: [{{gpu: H100, value: {value if of_case else '1'}}}]}}"
    path = toy("equality: bitwise\n    max_abs_difference: 0.1", BOUNDS.replace("BOUND", bound))
    column = 25 + bound.index(value)
    assert refusal(path).startswith(f"19:{column}: 'max_abs_difference' must be a valid number; found ")


def test_an_empty_bound_value_is_refused_with_a_remedy(toy: Toy) -> None:
    bound = "{otherwise: null, cases: [{gpu: H100, value: 1}]}"
    message = refusal(toy("equality: bitwise\n    max_abs_difference: 0.1", BOUNDS.replace("BOUND", bound)))
    assert message == "19:37: 'max_abs_difference' must be a valid number; found nothing; write a number"


def test_two_invalid_values_of_a_conditional_bound_give_two_errors(toy: Toy) -> None:
    message = refusal(bounded(toy, "gpu: H100, value: -1", otherwise="-2"))
    assert [line.partition(" ")[2] for line in message.splitlines()] == [
        "'at_least' must be greater than 0; found -2",
        "'at_least' must be greater than 0; found -1",
    ]


@pytest.mark.parametrize(
    ("cases", "shadowed"),
    [
        (["gpu: H100, value: 1", "gpu: H100, workload: long, value: 2"], "gpu H100"),
        (['capability_at_least: "8.0", value: 1', 'capability: "9.0", value: 2'], "capability 9.0"),
        (["gpu: H100, value: 1", "gpu: NVIDIA H100, value: 2"], "gpu NVIDIA H100"),
        (["workload: small, value: 1", "workload: long, value: 2", "gpu: H100, value: 3"], "gpu H100"),
    ],
)
def test_a_conditional_case_hidden_by_an_earlier_case_is_refused(toy: Toy, cases: list[str], shadowed: str) -> None:
    message = refusal(bounded(toy, *cases))
    assert "a case must be able to apply; found an earlier case that applies wherever this case does" in message
    assert f"{shadowed})" in message


def test_a_case_for_a_different_gpu_does_not_hide_later_cases(toy: Toy) -> None:
    path = bounded(toy, "gpu: H100, value: 1", "gpu: H200, value: 2", 'capability_at_least: "9.0", value: 3')
    assert decided(path, gpu="NVIDIA H200", capability="9.0") == 2.0


def test_a_case_value_is_checked_only_against_the_workloads_it_applies_to(toy: Toy) -> None:
    field = "guards: {steps: BOUND}"
    assert decided(bounded(toy, "workload: long, value: 20", otherwise="10", field=field), "guards.steps") == 10
    message = refusal(bounded(toy, "gpu: H100, value: 20", otherwise="10", field=field))
    assert message.endswith(
        "`guards.steps` (20) must not exceed the workload's steps; found workload 'small' has 10 steps; "
        "lower the number, or give the workload more steps"
    )


def test_two_conditional_bounds_that_contradict_each_other_on_a_gpu_are_refused(toy: Toy) -> None:
    claim = (
        "  - id: TOY-002\n    title: t\n    kind: capture\n    candidate: fast\n"
        "    nodes_at_least: {otherwise: 1, cases: [{gpu: H100, value: 500}]}\n"
        "    nodes_at_most: {otherwise: 100, cases: [{gpu: H100, value: MOST}]}\n"
    )
    assert load_contract(toy(claim=claim.replace("MOST", "900"))).contract.id == "toy-v1"
    message = refusal(toy(claim=claim.replace("MOST", "400")))
    assert message == "29:64: `nodes_at_most` must not be below `nodes_at_least`; found 400 < 500"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("equality: bitwise", "equality: {otherwise: bitwise, cases: [{gpu: H100, value: within}]}"),
        ("candidate: fast", "candidate: {otherwise: fast, cases: [{gpu: H100, value: plain}]}"),
    ],
)
def test_only_numbers_that_can_break_a_claim_may_have_cases(toy: Toy, old: str, new: str) -> None:
    assert "found a mapping" in refusal(toy(old, new))


def test_each_conditional_number_of_a_claim_kind_is_a_single_bound() -> None:
    assert numbers_of("throughput_ratio") == ["at_least"]
    assert "candidate.at_most" in numbers_of("host_syncs")
    assert numbers_of("ptx_target") == []  # a policy, and what is compiled for
    assert "max_relative_error" not in numbers_of("kernel_match")  # a number for each data type


def test_too_many_combined_conditions_of_a_claim_are_one_error(toy: Toy) -> None:
    claim = "  - id: TOY-002\n    title: t\n    kind: capture\n    candidate: fast\n"
    for field in ("nodes_at_least", "nodes_at_most", "kernels_per_layer_at_least", "skipped_steps_at_most"):
        cases = ", ".join(
            f'{{gpu: {field}{n}, capability: "{n + 1}.0", dtype: {DTYPES[n % 10]}, value: 9}}' for n in range(15)
        )
        claim += f"    {field}: {{otherwise: 9, cases: [{cases}]}}\n"
    assert "the conditions of a claim must distinguish at most 20000 situations" in refusal(toy(claim=claim))


def test_explain_lists_every_case_of_a_conditional_bound(toy: Toy) -> None:
    path = bounded(toy, 'workload: long, capability: "9.0", value: 3')
    text = " ".join(" ".join(explanation_of("TOY-001", path)).split())
    assert "at_least 3 on workload long, capability 9.0; else 0.2" in text


@pytest.mark.parametrize(("name", "word"), [(H100, "H100"), (H100, "nvidia h100"), ("NVIDIA A100-SXM4-80GB", "A100")])
def test_a_gpu_name_matches_the_words_that_it_contains(name: str, word: str) -> None:
    assert is_gpu(name, word)


@pytest.mark.parametrize(("name", "word"), [(H100, "H10"), (None, "H100"), ("NVIDIA H1000", "H100")])
def test_a_word_that_is_not_in_a_gpu_name_does_not_match_it(name: str | None, word: str) -> None:
    assert not is_gpu(name, word)


def test_capabilities_are_ordered_as_numbers() -> None:
    assert [reaches(found, "9.0") for found in ("10.0", "9.0", "8.9", None)] == [True, True, False, False]
    assert [capability_of(name) for name in ("sm_90", "sm_103", "sm_90a", None)] == ["9.0", "10.3", "9.0", None]
