"""The first difference of captured steps on a device: digests in a graph, equal bits, launches and planted faults."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from claims_in_process import executed
from needed_programs import absent
from planning import NO_GPU
from reference_where import run_of_reference
from torch import Tensor

from harness.api.where import locate
from harness.contract.load import load_contract
from harness.devices.graphs import capture
from harness.evidence.observed_step import OBSERVED, UNOBSERVED, ObservedStep
from harness.evidence.plan_records import Run
from harness.evidence.run_evidence import RunEvidence
from harness.execution.watchers.reductions import as_hex, digest_on_device, digests
from harness.execution.watchers.step_operators import ObservedCaptures, StepOperators
from harness.judging.first_difference import answer_of
from harness.planning.plan import plan
from harness.planning.where import where_run
from harness.report.located import located
from harness.system.replay.launches import triton_announced
from harness.system.replay.sites import SiteFinder
from harness.system.resolve import resolve
from harness.system.wrappers import HARNESS_FAULTS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),  # of libraries' steps: a worker of the harness raises none of them
]
ROOT = Path(__file__).parents[2]
KINDS = {
    "transposed": torch.arange(15.0).reshape(3, 5).t(),
    "strided": torch.arange(40, dtype=torch.int16)[1::3],
    "unaligned": torch.arange(41, dtype=torch.uint8)[3:],
    "no_elements": torch.zeros(0, 4),
    "bool": torch.arange(11) % 3 == 0,
    "complex": torch.complex(torch.arange(5.0), -torch.arange(5.0)).conj(),
    "bfloat16": torch.arange(1000.0).bfloat16(),
    "fp8": torch.arange(9.0).to(torch.float8_e4m3fn),
    "expanded": torch.ones(1).expand(7),
    "number": torch.tensor(3),
    "large": torch.arange(300_000),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_digest_is_the_same_on_the_host_on_the_device_and_in_a_graph(kind: str) -> None:
    expected, there = digests({kind: KINDS[kind]})[kind], KINDS[kind].cuda()
    assert digests({kind: there})[kind] == expected
    found: list[Tensor] = []
    graph = capture(1, None, lambda: found.append(digest_on_device(there)))
    graph.replay()
    assert as_hex(int(found[-1])) == expected


def both(run: Run, folder: Path, last: int) -> tuple[Run, Sequence[ObservedStep]]:
    """Execute the arms of a run plain and observed, to the step `last`."""
    run = run.model_copy(update={"settings": {**run.settings, "last": last, "observed": True, "limit_s": 300.0}})
    return run, executed(run, folder / "where").observed_steps


def check(run: Run, steps: Sequence[ObservedStep]) -> None:
    """Assert that observed steps end in the bits of the unobserved ones, with all that graphs launched."""
    known = {(each.arm, each.replica): each for each in steps}
    for arm, planned in run.arms.items():
        plain, seen = known[arm, UNOBSERVED], known[arm, OBSERVED]
        of_observer = {"operators": None, "unseen": 0, "bytes": None, "seconds": plain.seconds}
        assert plain == seen.model_copy(update={**of_observer, "replica": UNOBSERVED}), arm
        assert seen.operators
        assert seen.unseen == 0, arm
        assert any(each.replayed for each in seen.operators) is (planned.arm.capture != "none"), arm
        assert 0 < (seen.bytes or 0) < 2**26, arm


@pytest.mark.parametrize("last", [0, 2])
@pytest.mark.parametrize("settings", [{}, {"capture": "backward"}, {"precision": "fp8"}, {"micro_batches": 2}])
def test_the_reference_trainer_is_observed_in_its_own_bits(
    settings: dict[str, object], last: int, tmp_path: Path
) -> None:
    run, steps = both(run_of_reference("cuda", **settings), tmp_path, last)  # type: ignore[arg-type]
    check(run, steps)
    answer = answer_of(run, steps)
    assert answer.found == "does_not_repeat", located(answer)
    compared = {row.part: row.operators for row in answer.path}
    names = {each.name for step in steps for each in step.operators or []}
    assert any("." in name and not name.startswith("aten.") for name in names)  # the trainer's own kernels
    assert (compared["forward"] or 0) >= 40


# `accelerate_loop` ends in other bits while it is observed, which an answer says as "not seen".
EXAMPLES = {
    "plain_loop": ("PLAIN-BITS", None),
    "peft_lora": ("PEFT-TRAJECTORY", "peft"),
    "transformers_trainer": ("TRAINER-TRAJECTORY", "transformers"),
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_captured_example_is_observed_in_its_own_bits(example: str, tmp_path: Path) -> None:
    name, package = EXAMPLES[example]
    if package is not None and find_spec(package) is None:
        absent(package)
    loaded = load_contract(ROOT / "examples" / example / "contract.yaml")
    planned = plan(
        [loaded],
        claims=[name],
        machine=NO_GPU,
        describe=lambda system: resolve(system).describe(),
        harness_faults=HARNESS_FAULTS,
    )
    [claim] = [each for each in loaded.contract.claims if each.id == name]
    unit = next(each for each in planned.units if each.obstacle is None)
    run = where_run(claim, unit, [each for each in planned.runs if each.id in unit.runs], {})
    assert run is not None
    check(*both(run, tmp_path, 1))


def test_a_triton_kernel_in_a_graph_is_an_operator() -> None:
    pytest.importorskip("triton")
    from scaling_kernel import scale

    a, b, table = (torch.ones(4096, device="cuda") for _ in range(3))
    scale[(1,)](a, b, table, size=4096)  # compiled before the capture
    with ObservedCaptures(lambda: SiteFinder({})) as captures, triton_announced():
        graph = capture(0, None, lambda: scale[(1,)](a, b, table, size=4096))
        a.fill_(3.0)
        b.zero_()
        observer = captures.step = StepOperators(SiteFinder({}))
        observer.begin(SiteFinder({}), {"state b": b})
        with observer:
            graph.replay()
    [launched] = observer.operators({})
    assert (launched.name, launched.writes, launched.replayed, observer.unseen) == ("scale", ["state b"], True, 0)
    assert launched.leaves[1] == digests({"b": b})["b"]
    assert launched.reads[0].digest == digests({"a": a})["a"]


def test_a_kernel_that_nobody_announces_is_counted() -> None:
    pytest.importorskip("triton")
    from scaling_kernel import scale

    a, b, table = (torch.ones(4096, device="cuda") for _ in range(3))
    scale[(1,)](a, b, table, size=4096)

    def body() -> None:
        a.add_(1)
        scale[(1,)](a, b, table, size=4096)
        b.add_(1)

    with ObservedCaptures(lambda: SiteFinder({})) as captures:
        graph = capture(0, None, body)
        observer = captures.step = StepOperators(SiteFinder({}))
        with observer:
            graph.replay()
    assert observer.unseen == 1
    _, added = observer.operators({})
    assert added.reads[0].source is None


FAULTS = {
    "stale_batch": "the batch differs",
    "frozen_learning_rate": "reference_impl/faults/step.py",
    "dropped_clip": "reference_impl/",
    "skipped_optimizer": "reference_impl/optimizer.py",
    "attention_mask_off_by_one": "reference_impl/faults/attention_kernels.py",
    "clip_last_layer_scale": "reference_impl/faults/kernels.py",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_of_the_captured_reference_trainer_is_named(fault: str, tmp_path: Path) -> None:
    number = iter(range(9))

    def execute(run: Run) -> Sequence[RunEvidence]:
        return [executed(run, tmp_path / str(next(number)))]

    answer = locate(run_of_reference("cuda", fault), execute)
    assert answer.found == "found", located(answer)
    assert FAULTS[fault] in located(answer)
