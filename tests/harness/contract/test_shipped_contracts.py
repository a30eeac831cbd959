"""The contracts that the project ships: they load, hold what is promised, and are read fast."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from calls_made import LIBRARIES, calls_of_program, counted

from harness.contract.load import LoadedContract, load_contract, load_contracts
from harness.contract.schema import AnyClaim, CompositeClaim, parts_of
from harness.contract.shared import SharedFiles
from harness.contract.waivers import find_waivers
from harness.kinds.captures.model import Capture, CaptureFallback, HostSyncs
from harness.kinds.memory.model import MemorySteady
from harness.kinds.speed.model import ThroughputRatio
from harness.kinds.steps.model import StepAccuracy
from harness.kinds.trajectory.model import Repeatability, TrajectoryMatch

FOLDER = Path(__file__).parents[3] / "contracts"
# The claims of the mission that are decided by running a trainer or reading its kernels.
PROMISED = {
    *(f"F-GRAPH-BWD-00{number}" for number in range(1, 5)),
    *(f"F-CGT-00{number}" for number in range(1, 7)),
    *("CGB-EQ-001", "CGB-INV-002", "CGB-INV-003", "CGB-BND-004"),
    *("F-GRAPH-BWD-002-shapes-memory", "F-GRAPH-BWD-003-512"),
    *("F-PTX-001", "PTX-TARGET-001", "C-PREWARM-001", "PREWARM-COVERAGE-001", "FALSIFY-GPUTRAIN-006"),
    *(f"C-TILE-BWD-00{number}" for number in range(1, 8)),
    *("CLIP-KERNELS-001", "CLIP-FUSED-001", "CLIP-FUSED-002", "CLIP-SYNC-001", "CLIP-GAIN-001", "ALB-076"),
    *(f"KERNEL-{name}-001" for name in ("ATTENTION", "ROTATION", "NORM", "SWIGLU", "CROSS-ENTROPY", "NF4", "ADAM")),
    *("KERNEL-ATTENTION-002", "KERNEL-ROTATION-002", "KERNEL-NORM-002"),
    *("TRACED-STEP-001", "TRACED-STEP-002", "REF-STEP-001"),
    *("REF-STEP-GPU-001", "REF-STEP-GPU-002"),
    *("CGTS-BND-001", "CGTS-INV-005", "FALSIFY-CGS-002", "FALSIFY-DETERM-002", "FALSIFY-QT-002"),
    *("F-FP16-001", "F-FP16-001-STEPS", "F-FP16-002", "C-TILE-BWD-TRAJECTORY"),
}


@pytest.fixture(scope="module")
def contracts() -> list[LoadedContract]:
    return load_contracts([FOLDER])


@pytest.fixture(scope="module")
def claims(contracts: list[LoadedContract]) -> dict[str, AnyClaim]:
    return {claim.id: claim for one in contracts for claim in one.contract.claims}


def test_a_file_is_named_after_its_contract(contracts: list[LoadedContract]) -> None:
    assert [one.path.stem for one in contracts] == [one.contract.id for one in contracts]


def test_every_promised_claim_is_in_the_shipped_contracts(claims: dict[str, AnyClaim]) -> None:
    assert set(claims) >= PROMISED


def test_shipped_contracts_keep_upstreams_bounds_and_add_bitwise_equality(claims: dict[str, AnyClaim]) -> None:
    parts = {name: parts_of(claim)[0] for name, claim in claims.items()}
    trajectory = parts["F-GRAPH-BWD-001"]
    assert isinstance(trajectory, TrajectoryMatch)
    assert (trajectory.equality, trajectory.max_abs_difference, trajectory.guards.steps) == ("bitwise", 0.1, 100)
    parity = parts["F-CGT-002"]
    assert isinstance(parity, TrajectoryMatch)
    assert (parity.equality, parity.max_abs_difference, parity.compare) == ("bitwise", 0.01, "every")
    clip = parts["F-GRAPH-BWD-004"]
    assert isinstance(clip, TrajectoryMatch)
    assert (clip.max_abs_difference, clip.compare, clip.guards.steps) == (0.5, "final", 1000)
    ratios = {name: part.at_least for name, part in parts.items() if isinstance(part, ThroughputRatio)}
    assert ratios == {
        "F-GRAPH-BWD-003": 1.1,
        "F-GRAPH-BWD-003-canary": 1.1,
        "F-GRAPH-BWD-003-512": 1.0,
        "F-CGT-001": 3.0,
        "CGTS-BND-001": 10.0,
        "F-FP16-002": 1.3,
        "RANKS-004": 1.1,
    }
    launches = parts["CGTS-BND-001"]
    assert isinstance(launches, ThroughputRatio)
    assert launches.measure == "enqueue"
    equal = parts["CGTS-INV-005"]
    assert isinstance(equal, MemorySteady)
    assert (equal.per, equal.after, equal.growth_at_most, equal.of) == ("replay", 1, 0.0, "reserved")
    fallback = parts["FALSIFY-CGS-002"]
    assert isinstance(fallback, CaptureFallback)
    assert (fallback.attempts, fallback.unasked_at_most) == (1, 0)
    half = parts["F-FP16-001"]
    assert isinstance(half, TrajectoryMatch)
    assert half.max_abs_difference is not None
    assert half.max_abs_difference <= 2.0
    assert (half.compare, half.guards.steps) == ("final", 100)
    every = parts["F-FP16-001-STEPS"]
    assert isinstance(every, TrajectoryMatch)
    assert (every.max_abs_difference, every.compare, every.guards.steps) == (2.0, "every", 100)
    syncs = parts["CGB-BND-004"]
    assert isinstance(syncs, HostSyncs)
    assert (syncs.candidate.exactly, syncs.control.exactly, syncs.control.per_layer) == (0, 168, False)
    memory = parts["F-CGT-004"]
    assert isinstance(memory, MemorySteady)
    assert (memory.per, memory.after, memory.growth_at_most) == ("replay", 1, 0.01)
    skipped = parts["F-CGT-003"]
    assert isinstance(skipped, Capture)
    assert skipped.skipped_steps_at_most == 0
    for name in ("REF-STEP-GPU-001", "REF-STEP-GPU-002"):
        step = parts[name]
        assert isinstance(step, StepAccuracy)
        ratios_of_errors = (step.median_gradient_ratio_at_most, step.gradient_ratio_at_most, step.loss_ratio_at_most)
        assert ratios_of_errors == (1.2, 2.0, 1.2)
        assert (len(step.gradient_seeds), step.loss_steps) == (5, 50)
    same = parts["FALSIFY-GPUTRAIN-006"]
    assert isinstance(same, Repeatability)
    assert (same.runs, same.equality, same.max_abs_difference) == (2, "bitwise", 1e-5)


def test_shipped_contracts_claim_cuda_graphs_only_on_workloads_that_need_cuda(contracts: list[LoadedContract]) -> None:
    for one in contracts:
        for claim in one.contract.claims:
            mechanisms = {claim.mechanism, *(part.mechanism for part in parts_of(claim))}
            devices = {one.contract.workloads[name].needs.device for name in claim.judged_on}
            if "cuda_graph" in mechanisms:
                assert devices == {"cuda"}, claim.id
            if "traced" in mechanisms:
                assert devices == {"cpu"}, claim.id


def test_a_composite_claim_has_the_mechanism_of_its_parts(claims: dict[str, AnyClaim]) -> None:
    for claim in claims.values():
        if isinstance(claim, CompositeClaim):
            assert {part.mechanism for part in claim.parts} == {claim.mechanism}, claim.id


def test_captured_trajectory_claims_have_guards_against_vacuous_passes(claims: dict[str, AnyClaim]) -> None:
    for claim in claims.values():
        (part, *_) = parts_of(claim)
        if isinstance(part, TrajectoryMatch) and part.compare != "first":  # before any update there is no effect
            guards = part.guards
            assert guards.training_effect is not None, claim.id
            # whole steps; a tenth of those that clip is room (tools/statistics/guard_room.py)
            assert (guards.clip_active_steps or 0) >= int(0.9 * guards.steps), claim.id


def test_loading_a_contract_costs_little_more_than_parsing_its_yaml_in_c() -> None:
    """Loading makes at most 1.3 times the function calls of the parser. The aim is 2,000 contracts in five seconds."""
    path = FOLDER / "traced-step-v1.yaml"
    files = SharedFiles()  # which a folder of contracts reads once
    text = load_contract(path, files).text
    _, parsing = counted(lambda: yaml.load(text, yaml.CSafeLoader))
    _, loading = counted(lambda: load_contract(path, files))
    assert loading <= 1.3 * parsing


@pytest.mark.slow
def test_reading_all_contracts_costs_few_calls_compared_with_importing_the_libraries() -> None:
    """Reading makes less than 5.5 times the function calls of the libraries' imports. The aim is half a second."""
    code = (
        "from pathlib import Path; from harness.contract.load import load_contracts;"
        f"load_contracts([Path({str(FOLDER)!r})])"
    )
    assert calls_of_program(code) < 5.5 * calls_of_program(LIBRARIES)


def test_upstreams_canary_claim_is_judged_at_the_batch_size_and_length_of_upstream(
    contracts: list[LoadedContract], claims: dict[str, AnyClaim]
) -> None:
    [backward] = [one.contract for one in contracts if one.contract.id == "cuda-graph-backward-v1"]
    assert "qwen2-1.5b-512" in claims["F-GRAPH-BWD-003-canary"].judged_on
    canary = backward.workloads["qwen2-1.5b-512"]
    assert (canary.batch_size, canary.seq_len, canary.model) == (4, 512, "qwen2-1.5b")


def test_the_shipped_contracts_waive_only_the_unit_whose_speed_depends_on_the_host() -> None:
    named = [(waiver.claim, waiver.workload) for waiver in find_waivers([FOLDER])]
    assert named == [("F-GRAPH-BWD-003-canary", "qwen2-1.5b-512")]
