"""Captured steps on a device: bitwise training from step zero, scopes, moved buffers, memory, census and syncs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from measured_systems import Measured
from step_function_systems import Chooses, OwnOptimizer, Regression, Waits
from torch import Tensor, nn

from harness.contract.schema import Arm, Needs, Workload
from harness.devices.graphs import census, clipped_by
from harness.evidence.arm_records import CaptureEvidence, HostSyncEvidence, MemoryEvidence
from harness.evidence.plan_records import PlannedArm, Run
from harness.evidence.run_evidence import parsed
from harness.execution.probes import paired
from harness.execution.recorder import Recorder
from harness.execution.watchers.host_sync import observe_syncs
from harness.system.replay.captured_step import CapturedStep
from harness.system.replay.state import MOVED

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
WORKLOAD = Workload(model="any", batch_size=2, seq_len=4, steps=12, needs=Needs(device="cuda"))
SYSTEM = "step_function_systems:Regression"


class Tiny:
    """Regression with fused AdamW on static buffers; forward and backward halves for the split scope."""

    def __init__(self) -> None:
        torch.manual_seed(7)
        self.model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).cuda()
        self.rate = torch.tensor(1e-2, device="cuda")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.rate, fused=True, capturable=True)
        self.optimizer._warned_capturable_if_run_uncaptured = True  # the plain twin runs the same optimizer
        self.x, self.y = torch.zeros(5, 6, device="cuda"), torch.zeros(5, 1, device="cuda")

    def prepare(self, index: int) -> None:
        generator = torch.Generator().manual_seed(100 + index)
        self.x.copy_(torch.randn(5, 6, generator=generator))
        self.y.copy_(torch.randn(5, 1, generator=generator))
        self.rate.fill_(1e-2 / (1 + index))

    def forward(self) -> Tensor:
        self.loss = nn.functional.mse_loss(self.model(self.x), self.y)
        return self.loss.detach()

    def backward(self) -> None:
        self.optimizer.zero_grad()
        self.loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.optimizer.step()

    def body(self) -> Tensor:
        loss = self.forward()
        self.backward()
        return loss

    def state(self) -> dict[str, Tensor]:
        return dict(self.model.named_parameters())

    def static(self) -> dict[str, Tensor]:
        return {"x": self.x, "y": self.y, "rate": self.rate}


def train(tiny: Tiny, step: Callable[[], Tensor], steps: int = 20) -> list[float]:
    losses = []
    for index in range(steps):
        tiny.prepare(index)
        losses.append(step())
    return [float(loss) for loss in losses]


def test_a_captured_step_trains_bitwise_like_the_plain_step_from_step_zero() -> None:
    plain, other = Tiny(), Tiny()
    other.prepare(0)
    step = CapturedStep(other.body, other.state, other.static)
    step.capture()
    assert train(other, step.replay) == train(plain, plain.body)
    for name, parameter in plain.state().items():
        assert torch.equal(parameter, other.state()[name]), name
    assert (step.replays, step.warmup_steps, step.buffers.moved) == (20, 3, set())


def test_captured_steps_start_from_the_nonzero_initial_state_of_the_optimizer() -> None:
    losses = {}
    for capture in ("none", "step"):
        with OwnOptimizer().open(WORKLOAD, Arm.model_validate({"capture": capture})) as run:
            losses[capture] = [float(run.step(index)) for index in range(12)]
            record = run.capture_record()
    assert losses["step"] == losses["none"]
    assert (record.failure, record.captured, record.replays) == (None, True, 12)


def test_captures_of_whole_step_and_backward_pass_share_a_memory_pool_and_train_alike() -> None:
    plain, other = Tiny(), Tiny()
    other.prepare(0)
    step = CapturedStep({"forward": other.forward, "backward": other.backward}, other.state, other.static)
    step.capture()
    assert train(other, step.replay) == train(plain, plain.body)
    assert list(step.raw_graphs()) == ["forward", "backward"]


def test_a_captured_step_reports_a_buffer_whose_address_changed() -> None:
    tiny = Tiny()
    step = CapturedStep(tiny.body, tiny.state, tiny.static)
    step.capture()
    step.replay()
    kept, tiny.x = tiny.x, tiny.x.clone()
    step.replay()
    tiny.x = kept
    step.replay()
    assert step.buffers.moved == {"x"}
    assert step.buffers.seen()["x"] == MOVED


def test_repeated_captures_on_one_stream_leak_no_memory() -> None:
    tiny, stream = Tiny(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    sizes = []
    for _ in range(6):
        step = CapturedStep(tiny.body, tiny.state, tiny.static, stream=stream)
        step.capture()
        step.replay()
        step.release()
        torch.cuda.synchronize()
        sizes.append((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
    assert sizes[-1][0] <= sizes[1][0]
    assert sizes[-1][1] <= sizes[1][1]


def test_the_list_of_graph_nodes_names_kernels_and_finds_copies_to_the_host() -> None:
    a = torch.ones(1000, device="cuda")
    pinned = torch.zeros(1000, pin_memory=True)

    def body() -> Tensor:
        total = (a * 2).sum()
        pinned.copy_(a, non_blocking=True)
        return total

    step = CapturedStep(body, lambda: {"a": a})
    step.capture()
    (graph,) = step.raw_graphs().values()
    nodes = census("step", graph)
    assert nodes.by_type["kernel"] == sum(nodes.kernels.values()) == 2
    assert nodes.by_type["memcpy"] == nodes.device_to_host_copies == 1
    assert not any(name == "?" for name in nodes.kernels)
    assert nodes.clipped_tensors is None


def test_arguments_of_captured_kernels_are_read() -> None:
    from cuda.bindings import runtime

    from harness.devices.graphs import _kernel_parameters, _nodes, _pointer_arguments

    pytest.importorskip("triton")
    from scaling_kernel import scale

    a, b = torch.ones(4096, device="cuda"), torch.zeros(4096, device="cuda")
    table = torch.ones(1, device="cuda")

    def body() -> Tensor:
        scale[(1,)](a, b, table, size=4096)
        return b.sum()

    step = CapturedStep(body, lambda: {"b": b})
    step.capture()
    (graph,) = step.raw_graphs().values()
    nodes = census("step", graph, {"scale": {table.data_ptr(): 168}})
    assert nodes.clipped_tensors == 168
    assert nodes.kernels["scale"] == 1
    kernel = runtime.cudaGraphNodeType.cudaGraphNodeTypeKernel
    arguments = [_pointer_arguments(_kernel_parameters(node)) for node, kind in _nodes(graph) if kind == kernel]
    assert any(each[:3] == [a.data_ptr(), b.data_ptr(), table.data_ptr()] for each in arguments)
    assert clipped_by({1: 5}, [2, 1]) == 5


@pytest.mark.parametrize(("system", "per_step"), [(Regression(), 0), (Waits(), 5), (Chooses(), 1)])
def test_both_sync_detectors_count_the_same_syncs_in_a_plain_arm(system: Regression, per_step: int) -> None:
    evidence = observe_syncs(lambda: system.open(WORKLOAD, Arm()), "arm", 0, announced=WORKLOAD.steps, unwatched=3)
    assert [(reading.detector, reading.count) for reading in evidence.readings] == [
        ("profiler", 2 * per_step),
        ("dispatch_mode", 2 * per_step),
    ]
    assert all(reading.sees_planted for reading in evidence.readings)
    for reading in evidence.readings:
        assert all(Path(place.file).name == "step_function_systems.py" for place in reading.places)


def test_the_profiler_and_the_debug_mode_find_no_sync_in_a_replay() -> None:
    opens = lambda: Regression().open(WORKLOAD, Arm(capture="step"))
    evidence = observe_syncs(opens, "arm", 0, announced=WORKLOAD.steps)
    assert evidence.replayed
    assert [(reading.detector, reading.count, reading.sees_planted) for reading in evidence.readings] == [
        ("profiler", 0, True),
        ("sync_debug_mode", 0, True),
    ]


def test_a_paired_run_watches_launches_from_the_first_step(tmp_path: Path) -> None:
    run = Run(
        id="r",
        contract="c",
        probe="paired",
        workload_name="w",
        workload=WORKLOAD,
        arms={
            "plain": PlannedArm(arm=Arm(), system=SYSTEM, observe_syncs=True),
            "captured": PlannedArm(arm=Arm(capture="step"), system=SYSTEM, observe_syncs=True),
        },
        baseline_of={"captured": "plain"},
        gradient_steps=[0, 5],
    )
    with Recorder(tmp_path) as recorder:
        paired.execute(run, recorder)
    records = [parsed(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    (capture,) = [record for record in records if isinstance(record, CaptureEvidence)]
    assert (capture.mechanism, capture.captured, capture.failure) == ("cuda_graph", True, None)
    assert (capture.replays, capture.uncaptured_steps, capture.warmup_steps) == (12, 0, 3)
    assert (capture.observed_steps, capture.observed_graph_launches) == (6, 6)
    assert capture.device_work is not None
    assert (capture.device_work.steps, [each.launches for each in capture.device_work.launched]) == (3, [3])
    assert capture.device_work.outside_kernel_seconds == 0.0
    assert capture.every_step is not None
    assert capture.every_step.steps == 11
    assert (capture.static_buffers, capture.moved_buffers) == (6, [])
    assert (tmp_path / "plain.0.csv").read_text() == (tmp_path / "captured.0.csv").read_text()
    memory = [record for record in records if isinstance(record, MemoryEvidence) and record.arm == "captured"]
    assert len(memory[0].samples) == 12
    assert [record.replayed for record in records if isinstance(record, HostSyncEvidence)] == [False, True]


def test_a_replay_updates_the_metric_that_its_step_stores() -> None:
    """Batches have two shapes in turn, each with its own graph, and every step assigns the metric to the same
    attribute.
    """
    found = {}
    for capture in ("none", "step"):
        system = Measured()
        with system.open(
            WORKLOAD.model_copy(update={"seq_len": [4, 8]}), Arm.model_validate({"capture": capture})
        ) as run:
            reported, kept = [], []
            for index in range(WORKLOAD.steps):
                run.step(index)
                reported.append(float(run.metrics()["largest_weight"]))
                kept.append(float(system.largest))
            assert run.capture_record().captured is (capture == "step"), run.capture_record().failure
        found[capture] = reported
        assert kept == reported
    assert found["step"] == found["none"]
    assert len(set(found["step"])) > 1
