"""The first difference of captured steps on a device: digests in a graph, equal bits, launches and planted faults."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from claims_in_process import executed
from observed_steps import observed_steps, require_own_bits, run_of_example
from reference_where import run_of_reference
from torch import Tensor

from harness.api.first_difference import locate
from harness.devices.graphs import capture
from harness.evidence.plan_records import Run
from harness.evidence.run_evidence import RunEvidence
from harness.execution.watchers.reductions import as_hex, digest_on_device, digests
from harness.execution.watchers.step_operators import ObservedCaptures, StepOperators
from harness.judging.first_difference import answer_of
from harness.report.located import located
from harness.system.replay.launches import triton_announced
from harness.system.replay.sites import SiteFinder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),  # of libraries' steps: a worker of the harness raises none of them
]
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


@pytest.mark.parametrize("last", [0, 2])
@pytest.mark.parametrize("settings", [{}, {"capture": "backward"}, {"precision": "fp8"}, {"micro_batches": 2}])
def test_observing_the_reference_trainer_keeps_its_bits(settings: dict[str, object], last: int, tmp_path: Path) -> None:
    run, steps = observed_steps(run_of_reference("cuda", **settings), tmp_path, last)  # type: ignore[arg-type]
    require_own_bits(run, steps)
    answer = answer_of(run, steps)
    assert answer.found == "does_not_repeat", f"{located(answer)}: {answer.model_dump_json()}"
    compared = {row.part: row.operators for row in answer.path}
    names = {each.name for step in steps for each in step.operators or []}
    assert any("." in name and not name.startswith("aten.") for name in names)  # the trainer's own kernels
    assert (compared["forward"] or 0) >= 40


@pytest.mark.parametrize("example", ["plain_loop", "peft_lora", "transformers_trainer"])
def test_observing_a_captured_example_keeps_its_bits(example: str, tmp_path: Path) -> None:
    require_own_bits(*observed_steps(run_of_example(example, {}), tmp_path, 1))


def test_a_nondeterministic_example_is_observed_under_deterministic_algorithms(tmp_path: Path) -> None:
    run = run_of_example("accelerate_loop", {"noise_floor": 9e-5})
    require_own_bits(*observed_steps(run, tmp_path, 1))


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


def test_an_unannounced_triton_kernel_is_counted_as_unseen() -> None:
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
