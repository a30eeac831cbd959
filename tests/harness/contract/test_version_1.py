"""Version 1: read as version 2, with the positions of its own file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli.check import print_findings
from harness.contract.load import load_contract
from harness.contract.shared import files_of_folder
from harness.errors import ContractError

Toy = Callable[..., Path]

ROOT = Path(__file__).parents[3]
OURS = [file for name in ("contracts", "contracts-long", "examples") for file in files_of_folder(ROOT / name).contracts]


@pytest.mark.parametrize(
    ("effect", "message"),
    [
        ("at_least: 1, at_least_on: {small: -3}", "19:104: 'at_least' must be greater than 0; found -3"),
        ("at_least: 1, at_least_on: 3", "19:96: 'at_least_on' must be a mapping"),
        (
            "at_least: 1, at_least_on: {smal: 3}",
            "19:97: the `workload` of a case must be one of the claim's workloads; found 'smal'; did you mean 'small'?",
        ),
        (
            "at_least: {otherwise: 1, cases: [{gpu: H100, value: 2}]}",
            (
                "19:95: unknown key; found 'cases' in a file of contract/v1; write the file as contract/v2, which has "
                "this key"
            ),
        ),
    ],
)
def test_errors_in_a_version_1_training_effect_are_refused_with_a_place(toy: Toy, effect: str, message: str) -> None:
    guards = f"guards: {{steps: 10, training_effect: {{control: waiting, last: 2, {effect}}}}}"
    assert refusal(old(toy, "guards: {steps: 10}", guards)) == f"toy.yaml:{message}"


def test_a_version_1_training_effect_per_workload_is_read_as_a_bound_with_cases(toy: Toy) -> None:
    effect = "guards: {steps: 10, training_effect: {control: waiting, last: 2, "
    bound = "at_least: {otherwise: 1, cases: [{workload: small, value: 3.0}]}}}"
    path = toy()
    path.write_text(path.read_text().replace("guards: {steps: 10}", effect + bound, 1))
    new = load_contract(path).contract
    assert (
        load_contract(old(toy, "guards: {steps: 10}", f"{effect}at_least: 1, at_least_on: {{small: 3.0}}}}}}")).contract
        == new
    )


def old(toy: Toy, old_text: str = "", new_text: str = "") -> Path:
    """The toy contract as version 1."""
    path = toy()
    text = path.read_text().replace("contract/v2", "contract/v1").replace("judged_on", "on")
    assert old_text in text
    path.write_text(text.replace(old_text, new_text, 1) if old_text else text)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(ContractError) as error:
        load_contract(path)
    return str(error.value)


def test_a_version_1_contract_is_read_as_the_equal_version_2_contract(toy: Toy) -> None:
    new = load_contract(toy())
    loaded = load_contract(old(toy))
    assert (new.version, loaded.version) == (2, 1)
    assert loaded.contract == new.contract
    assert loaded.where("claims", 0, "judged_on", 0) == "toy.yaml:20:10"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            ("on: [small]", "on: [smal]"),
            "20:10: `on` must name an existing workload; found 'smal'; did you mean 'small'?",
        ),
        (("    on: [small]\n", ""), "12:5: the key 'on' is required; add it"),
        (("on: [small]", "on: []"), "20:9: 'on' must have at least 1 item; found a list of 0"),
        (("on: [s", "judged_on: [s"), "20:5: unknown key; found 'judged_on' in a file of contract/v1; write `on`"),
    ],
)
def test_errors_in_a_version_1_contract_use_the_field_names_of_version_1(
    toy: Toy, edit: tuple[str, str], message: str
) -> None:
    assert refusal(old(toy, *edit)) == f"toy.yaml:{message}"


def test_check_prints_a_note_for_a_version_1_contract(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    print_findings([old(toy)], as_json=False)
    note = (
        "toy.yaml:1:9: note: the file is in contract/v1, which is still supported; write new contracts in contract/v2"
    )
    out, err = capsys.readouterr()
    assert note in err.splitlines()
    assert out.endswith("· 1 error · 1 warning\n")  # of its system, which is none, and of an arm that is unused


def test_all_contracts_of_this_repository_have_version_2() -> None:
    assert len(OURS) > 30
    assert [path for path in OURS if load_contract(path).version != 2] == []
