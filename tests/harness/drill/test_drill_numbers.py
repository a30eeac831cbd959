"""`harness check` warns of a number that no fault breaks, and of a fault whose number is not demanded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from harness.contract.load import LoadedContract, load_contract, load_contracts
from harness.contract.schema import AnyClaim
from harness.drill.faults import demanded, offered_by, unbroken
from harness.lint import lint
from harness.system.described import describe

CONTRACTS = Path(__file__).parents[3] / "contracts"


def messages(loaded: LoadedContract) -> list[str]:
    return [finding.message for finding in lint(loaded, describe)]


def changed(tmp_path: Path, file: str, old: str, new: str) -> LoadedContract:
    """A contract of ours with the first `old` replaced."""
    text = (CONTRACTS / file).read_text(encoding="utf-8")
    assert old in text
    shutil.copytree(CONTRACTS / "shared", tmp_path / "shared")
    path = tmp_path / file
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return load_contract(path)


@pytest.mark.parametrize("loaded", load_contracts([CONTRACTS]), ids=lambda loaded: loaded.contract.id)
def test_every_number_of_the_shipped_claims_is_violated_by_a_listed_fault(loaded: LoadedContract) -> None:
    offered = offered_by(loaded.contract, describe)
    numbers = [number for claim in loaded.contract.claims for number in demanded(claim)]
    assert len(numbers) >= len(loaded.contract.claims) - 1  # PREWARM-COVERAGE-001 compares keys, and has none
    assert [(claim.id, each.path) for claim in loaded.contract.claims for each in unbroken(claim, offered)] == []
    assert messages(loaded) == []


def place_of(loaded: LoadedContract, line: str, value: str) -> str:
    """Return `file:line:column` of a value in the first line of the contract that contains a text."""
    number, text = next((n, each) for n, each in enumerate(loaded.text.splitlines(), 1) if line in each)
    return f"{loaded.path}:{number}:{text.index(value, text.index(line)) + 1}"


def test_a_listed_fault_whose_demand_was_removed_is_reported(tmp_path: Path) -> None:
    loaded = changed(tmp_path, "gemm-backward-tiled-v1.yaml", "demands: {shared_memory_bytes: 2048, threads: 256}", "")
    left_out = "but 'C-TILE-BWD-001' does not set this field, so the fault will survive the drill"
    assert messages(loaded) == [
        f"fault 'more_stages' breaks `demands.shared_memory_bytes`, {left_out}",
        f"fault 'fewer_threads' breaks `demands.threads`, {left_out}",
    ]


def test_a_number_that_no_listed_fault_breaks_is_a_warning_with_a_remedy(tmp_path: Path) -> None:
    loaded = changed(tmp_path, "gemm-backward-tiled-v1.yaml", "more_stages, ", "")
    (finding,) = lint(loaded, describe)
    assert (finding.level, finding.where) == ("warning", place_of(loaded, "demands: {", "2048"))
    assert finding.message == (
        "no fault of 'C-TILE-BWD-001' breaks `demands.shared_memory_bytes` (2048), so the drill would pass with any "
        "other value: add a fault to `falsified_by` that expects `demand_unmet`, unmet_demand = shared_memory_bytes; "
        "offered: more_stages"
    )


def test_a_number_of_a_composite_part_that_no_fault_breaks_is_a_warning(tmp_path: Path) -> None:
    loaded = changed(tmp_path, "traced-step-v1.yaml", "      - noisy_control\n", "")
    (finding,) = lint(loaded, describe)
    assert finding.message.startswith("no fault of 'TRACED-STEP-001' breaks `control.exactly` (6)")
    assert finding.where == place_of(loaded, "control: {", "6")


def claim(contract: str, name: str) -> tuple[LoadedContract, AnyClaim]:
    loaded = load_contract(CONTRACTS / f"{contract}.yaml")
    return loaded, next(each for each in loaded.contract.claims if each.id == name)


def test_a_fault_for_a_named_part_breaks_only_that_part() -> None:
    loaded, clip = claim("cuda-graph-training-step-v1", "F-CGT-006")
    offered = offered_by(loaded.contract, describe)
    alone = clip.model_copy(update={"falsified_by": ["removed_clip"]})
    named = {"clipped_tensors_per_layer", "candidate.exactly"}
    assert {(each.part, each.path) for each in unbroken(alone, offered) if each.path in named} == {
        (1, "candidate.exactly")
    }
