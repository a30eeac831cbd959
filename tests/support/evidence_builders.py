"""Build evidence, contracts and verdicts for tests of judges. Every builder makes what passes; keywords change it.

The arms: `graphed` captures its step, `ungraphed` and `synchronizing` do not, `untrained` has learning rate 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from harness.contract.conditional import Bounds
from harness.contract.schema import Contract
from harness.contract.strict_yaml import Document
from harness.errors import HarnessError
from harness.evidence.arm_records import (
    ArmEnd,
    ArmStart,
    CaptureEvidence,
    DetectorReading,
    DeviceWork,
    Draws,
    EndDifference,
    Gradients,
    GraphNodes,
    GroupNorm,
    HostSyncEvidence,
    Launched,
    MemoryEvidence,
    MemorySample,
    OutsideWork,
    State,
    StepWatch,
    SyncPlace,
    TensorReduction,
)
from harness.evidence.environment_records import GpuFacts
from harness.evidence.run_evidence import ArmEvidence, RunEvidence, Series
from harness.evidence.run_records import Block, Telemetry, TelemetrySample, TimingEvidence
from harness.judging.registry import judge_unit
from harness.judging.verdict import Verdict

STEPS = 10
LAYERS = 2
LOSSES = np.linspace(3.0, 2.0, STEPS)
BATCHES = [f"batch{index}" for index in range(STEPS)]
ARMS: dict[str, dict[str, Any]] = {
    "graphed": {"capture": "step"},
    "ungraphed": {"capture": "none"},
    "nudged": {"capture": "none"},
    "synchronizing": {"capture": "none", "clip_mode": "synchronizing"},
    "untrained": {"capture": "none", "learning_rate": 0},
    "other_system": {"capture": "none", "system": "elsewhere:System"},
    "ranked": {"capture": "none", "ranks": 2},
    "ranked_graph": {"capture": "step", "ranks": 2},
    "one_model": {"capture": "none", "ranks": 2, "model_parallel": 2},
    "one_model_captured": {"capture": "step", "ranks": 2, "model_parallel": 2},
    "same_system": {"capture": "none", "system": "some.system:System"},
}
TEXT = {"title": "a title", "judged_on": ["w"], "why": "a reason", "if_fails": "a cause"}
TRAJECTORY = {
    "id": "TRAJECTORY",
    "kind": "trajectory_match",
    "candidate": "graphed",
    "baseline": "ungraphed",
    "equality": "bitwise",
    "max_abs_difference": 0.1,
    "guards": {
        "steps": STEPS,
        "distinct_batches": STEPS,
        "clip_active_steps": STEPS - 1,
        "training_effect": {"control": "untrained", "last": 2, "at_least": 0.2},
    },
}


DREW = {"torch.cpu": "aa"}  # a generator that a step moved, and where it left it


def contract_of(*claims: Mapping[str, Any], steps: int = STEPS) -> Contract:
    """Return a contract with these claims (their texts are filled in) over one workload `w`; bounds may have cases."""
    value = {
        "schema": "contract/v2",
        "id": "contract",
        "title": "a title",
        "system": "some.system:System",
        "workloads": {"w": {"model": "m", "batch_size": 4, "seq_len": 64, "steps": steps}},
        "arms": ARMS,
        "claims": [TEXT | dict(claim) for claim in claims],
    }
    bounds = Bounds(Document("c.yaml", "", value, {}, {(): (1, 1)}))
    assert bounds.errors == []
    return bounds.attach([(each, Contract.model_validate(each.document.value)) for each in bounds.readings()])


def verdict_of(
    claim: Mapping[str, Any],
    *runs: RunEvidence,
    beside: Sequence[Mapping[str, Any]] = (),
    gpu: GpuFacts = GpuFacts(),  # noqa: B008 - frozen
    steps: int = STEPS,
) -> Verdict:
    """Return the verdict on a claim of a contract with the claims `beside` and `steps` steps, on a machine `gpu`."""
    contract = contract_of({"id": "CLAIM"} | dict(claim), *beside, steps=steps)
    return judge_unit(contract, contract.claims[0], "w", runs, None, gpu)


def series(
    losses: Sequence[float] | np.ndarray[Any, Any] = LOSSES,
    *,
    batches: Sequence[str] | None = None,
    tokens: Sequence[int] | int = 256,
    active: Sequence[int] | int = 2,
    metrics: Mapping[str, Sequence[float] | np.ndarray[Any, Any]] | None = None,
) -> Series:
    """Return a series; without `batches`, every step has a different batch."""
    steps = len(losses)
    return Series(
        loss=np.asarray(losses, dtype=np.float64),
        batch_digest=[f"batch{index}" for index in range(steps)] if batches is None else list(batches),
        clip_active_groups=np.full(steps, active) if isinstance(active, int) else np.asarray(active),
        tokens=np.full(steps, tokens) if isinstance(tokens, int) else np.asarray(tokens),
        metrics={name: np.asarray(values, dtype=np.float64) for name, values in (metrics or {}).items()},
    )


def state(parameters: str, /, **others: Mapping[str, str]) -> State:
    """Return digests of four parameters, a buffer, a moment and a generator; `others` replace categories."""
    digests: dict[str, dict[str, str]] = {
        "parameters": {f"p{index}": f"{parameters}{index}" for index in range(4)},
        "buffers": {"mean": "b"},
        "optimizer": {"p0.exp_avg": "m"},
        "generators": {"torch.cpu": "g"},
        **{category: dict(found) for category, found in others.items()},
    }
    return State(digests=digests, tensors=sum(map(len, digests.values())))


def apart(arm: str = "ungraphed", largest: float | None = 0.0, replica: int = 0) -> EndDifference:
    """Return the difference between the end parameters of an execution and those of an arm's execution."""
    return EndDifference(arm=arm, replica=replica, tensors=2, largest=largest, tensor="p0")


def arm(
    name: str,
    losses: Sequence[float] | np.ndarray[Any, Any] = LOSSES,
    *,
    replica: int = 0,
    start: str = "start",
    end: str = "end",
    frozen: str = "frozen",
    frozen_end: str | None = None,
    tensors: int = 2,
    skipped: int = 0,
    steps_called: int | None = None,
    facts: Mapping[str, Any] | None = None,
    capture: CaptureEvidence | None = None,
    syncs: HostSyncEvidence | None = None,
    gradients: Sequence[Gradients] = (),
    memory: Sequence[MemoryEvidence] = (),
    start_state: Mapping[str, Mapping[str, str]] | None = None,
    end_state: Mapping[str, Mapping[str, str]] | None = None,
    differences: Sequence[EndDifference] = (apart(),),
    names: Sequence[str] | None = ("a", "b"),
    inputs: Sequence[str] | None = ("targets", "tokens"),
    dtypes: Sequence[str] | None = ("float32",),
    rounded: str | None = None,
    **columns: Any,
) -> ArmEvidence:
    """Return one execution of an arm, trained. States change by category; `columns` are passed to `series`.

    The harness saw as many captures begin as `capture` records (`counted` changes this number). An arm that requests a
    capture must have a record of it.
    """
    if capture is None and ARMS.get(name, {}).get("capture", "none") != "none":
        raise ValueError(f"a recorder writes what became of the capture of {name}")
    return ArmEvidence(
        start=ArmStart(
            arm=name,
            replica=replica,
            trainable_digest=start,
            frozen_digest=frozen,
            trainable_tensors=tensors,
            facts={"layers": LAYERS} if facts is None else dict(facts),
            state=state(start, **(start_state or {})),
            trainable_names=None if names is None else list(names),
            trainable_dtypes=None if dtypes is None else list(dtypes),
            rounded_digest=rounded,
        ),
        end=ArmEnd(
            arm=name,
            replica=replica,
            trainable_digest=end,
            frozen_digest=frozen if frozen_end is None else frozen_end,
            capture_attempts=0 if capture is None else capture.captures,
            capture_errors=[],
            skipped_steps=skipped,
            steps_called=len(losses) if steps_called is None else steps_called,
            state=state(end, **(end_state or {})),
            differences=list(differences),
            input_names=None if inputs is None else list(inputs),
        ),
        series=series(losses, **columns),
        gradients=list(gradients),
        capture=capture,
        syncs=syncs,
        memory=list(memory),
    )


def counted(execution: ArmEvidence, attempts: int | None, failed: int = 0) -> ArmEvidence:
    """Return the execution with this number of captures begun, `failed` of which failed.

    attempts: None if it was recorded before captures were counted.
    """
    error = str(HarnessError("the capture must succeed", where="model.py:7", got="RuntimeError: a sync"))
    errors = None if attempts is None else [error] * failed
    seen = {"capture_attempts": attempts, "capture_errors": errors}
    assert execution.end is not None
    return replace(execution, end=execution.end.model_copy(update=seen))


def unrecorded(execution: ArmEvidence) -> ArmEvidence:
    """Return the execution without its record of the capture, which was lost."""
    return replace(execution, capture=None)


def twice(name: str, losses: Sequence[float] | np.ndarray[Any, Any] = LOSSES, **changes: Any) -> list[ArmEvidence]:
    """Return two equal executions of an arm."""
    return [arm(name, losses, replica=replica, **changes) for replica in (0, 1)]


def graphed(losses: Sequence[float] | np.ndarray[Any, Any] = LOSSES, **changes: Any) -> ArmEvidence:
    """Return an execution of `graphed` that replayed its CUDA graph once in each step."""
    replayed = cuda_graph(replays=max(len(losses), 1), every_step=watch_of(max(len(losses) - 1, 1)))
    return arm("graphed", losses, **{"capture": replayed, **changes})


def drew(
    execution: ArmEvidence,
    *operators: str,
    captured: Sequence[Sequence[str]] = (),
    generators: Mapping[str, str] = DREW,
    step: int = 1,
) -> ArmEvidence:
    """Return the execution with a record of the random numbers that its step drew."""
    assert execution.end is not None
    draws = Draws(
        step=step,
        operators=list(operators),
        captured=[list(each) for each in captured],
        generators=dict(generators),
    )
    return replace(execution, end=execution.end.model_copy(update={"draws": draws}))


def untrained(**changes: Any) -> ArmEvidence:
    """Return the control, whose losses and parameters do not change."""
    return arm("untrained", **{"losses": np.full(STEPS, 3.0), "end": "start", **changes})


def paired(*executions: ArmEvidence, **changes: Any) -> RunEvidence:
    """Return a paired run of executions in this order; replicas of an arm follow each other."""
    arms: dict[str, list[ArmEvidence]] = {}
    for execution in executions:
        arms.setdefault(execution.start.arm, []).append(execution)
    return RunEvidence(**{"run_id": "run", "probe": "paired", "arms": arms, **changes})


def again(execution: ArmEvidence) -> ArmEvidence:
    """Return a second execution of an arm, equal to the first."""
    return replace(execution, start=execution.start.model_copy(update={"replica": 1}))


def trajectory_run(
    candidate: ArmEvidence | None = None,
    baseline: ArmEvidence | None = None,
    control: ArmEvidence | None = None,
    repetition: ArmEvidence | None = None,
) -> RunEvidence:
    """Return a paired run that passes `TRAJECTORY`, with the given executions replacing its own."""
    baseline = baseline or arm("ungraphed")
    return paired(
        baseline,
        repetition or again(baseline),
        candidate or graphed(),
        control or untrained(),
    )


def graph(**changes: Any) -> GraphNodes:
    """Return one graph of 12 kernels over two layers, with six clipped tensors for each layer."""
    return GraphNodes(
        **{
            "label": "step",
            "by_type": {"kernel": 12, "memset": 1},
            "kernels": {"gemm": 8, "clip": 4},
            "device_to_host_copies": 0,
            "clipped_tensors": 12,
            **changes,
        }
    )


def cuda_graph(**changes: Any) -> CaptureEvidence:
    """Return a captured CUDA graph, replayed in ten steps, three of them watched, that executed its nodes."""
    nodes = changes.get("nodes", [graph()])
    return CaptureEvidence(
        **{
            "arm": "graphed",
            "replica": 0,
            "mechanism": "cuda_graph",
            "requested": True,
            "captured": True,
            "failure": None,
            "captures": 1,
            "warmup_steps": 3,
            "replays": STEPS,
            "uncaptured_steps": 0,
            "nodes": nodes,
            "recorded_operations": 0,
            "fake_pass_clean": None,
            "moved_buffers": [],
            "static_buffers": 5,
            "observed_steps": 3,
            "observed_graph_launches": 3,
            "observed_replayed_operations": None,
            "device_work": device_work(nodes, captures=changes.get("captures", 1)),
            "every_step": watch_of(STEPS - 1),
            **changes,
        }
    )


def watch_of(steps: int) -> StepWatch:
    """Return a watch of `steps` single steps, each of which copied its batch in."""
    return StepWatch(steps=steps, fewest_operations=4, most_operations=5, busiest_step=7)


def device_work(nodes: Sequence[GraphNodes], captures: int = 1, **changes: Any) -> DeviceWork:
    """Return the work of three replays over the captured shapes: 30 ms in the launches, and copies outside them."""
    launches = 3 // max(captures, 1)
    return DeviceWork(
        **{
            "steps": 3,
            "launched": [Launched(launches=launches, by_type=each.by_type, kernels=each.kernels) for each in nodes],
            "launched_seconds": 0.03,
            "outside_kernel_seconds": 0.0,
            "outside": [OutsideWork(name="Memcpy HtoD (Pinned -> Device)", count=6, seconds=0.0003)],
            **changes,
        }
    )


def traced(**changes: Any) -> CaptureEvidence:
    """Return a traced step of 40 operations, replayed in ten steps; two more operations in each copy the batch in."""
    return cuda_graph(
        **{
            "mechanism": "traced",
            "nodes": [],
            "recorded_operations": 40,
            "fake_pass_clean": True,
            "observed_graph_launches": None,
            "observed_replayed_operations": 3 * 42,
            "device_work": None,
            "every_step": StepWatch(steps=STEPS - 1, fewest_operations=42, most_operations=42, busiest_step=1),
            **changes,
        }
    )


def syncs(name: str, counts: Mapping[str, int], *, steps: int = 2, **changes: Any) -> HostSyncEvidence:
    """Return readings by detector: the count over `steps`, the same rate in judged steps; all saw the planted sync."""
    readings = [
        DetectorReading(
            detector=detector,
            steps=steps,
            count=count,
            places=[SyncPlace(file="clip.py", line=7, operation="item", count=count)] if count else [],
            sees_planted=True,
        )
        for detector, count in counts.items()
    ]
    judged = [
        each.model_copy(update={"steps": STEPS - 1, "count": each.count * (STEPS - 1) // max(steps, 1)})
        for each in readings
    ]
    every_step = [
        each.model_copy(update={"first_step": 1 if each.count else None, "most": -(-each.count // each.steps)})
        for each in judged
    ]
    return HostSyncEvidence(
        **{
            "arm": name,
            "replica": 0,
            "layers": LAYERS,
            "replayed": False,
            "readings": readings,
            "every_step": every_step,
            **changes,
        }
    )


def reduction(name: str, **changes: Any) -> TensorReduction:
    """Return a gradient equal to the baseline's."""
    return TensorReduction(
        **{
            "name": name,
            "digest": "same",
            "elements": 8,
            "max_abs": 0.5,
            "max_abs_difference": 0.0,
            "baseline_digest": "same",
            "baseline_max_abs": 0.5,
            **changes,
        }
    )


def gradients(step: int = 0, **changes: Any) -> Gradients:
    """Return two gradients and one clipped group of a step."""
    return Gradients(
        **{
            "arm": "graphed",
            "replica": 0,
            "step": step,
            "baseline": "ungraphed",
            "tensors": [reduction("a"), reduction("b")],
            "groups": [GroupNorm(group="layer0", before=4.0, after=1.0)],
            **changes,
        }
    )


def memory(allocated: Sequence[int], reserved: Sequence[int] | None = None, per: str = "replay") -> MemoryEvidence:
    """Return samples of memory, in bytes."""
    return MemoryEvidence(
        arm="graphed",
        replica=0,
        per=per,
        samples=[
            MemorySample(step=step, allocated_bytes=ours, reserved_bytes=theirs)
            for step, (ours, theirs) in enumerate(zip(allocated, reserved or allocated, strict=True))
        ],
    )


def blocks(candidate: Sequence[float], baseline: Sequence[float], *, steps: int = 20) -> list[Block]:
    """Return ABBA rounds (the candidate is A) of step times in seconds; each arm has two in a round."""
    found = []
    for index in range(len(candidate) // 2):
        ours, theirs = candidate[2 * index : 2 * index + 2], baseline[2 * index : 2 * index + 2]
        order = [("graphed", ours[0]), ("ungraphed", theirs[0]), ("ungraphed", theirs[1]), ("graphed", ours[1])]
        found += [
            Block(
                arm=name,
                round=index,
                position=position,
                steps=steps,
                seconds=time * steps,
                processor_seconds=time * steps,
                first_step=0,
                enqueue_seconds=time / (10 if name == "graphed" else 1),
                untimed_helper_seconds=0.0,
            )
            for position, (name, time) in enumerate(order)
        ]
    return found


def sample(**changes: Any) -> TelemetrySample:
    """Return a sample of a quiet machine."""
    return TelemetrySample(
        **{
            "seconds": 0.0,
            "sm_clock_mhz": 1980.0,
            "power_w": 500.0,
            "temperature_c": 50.0,
            "throttle_reasons": [],
            "foreign_processes": 0,
            "host_load_per_core": 0.2,
            **changes,
        }
    )


def watched_all_along(timed: Sequence[Block], **changes: Any) -> Telemetry:
    """Return a sample for each second, of a quiet machine with these changes."""
    seconds = sum(block.seconds for block in timed)
    last = max(1, math.ceil(seconds)) if math.isfinite(seconds) else 1
    samples = [sample(seconds=float(second), **changes) for second in range(last + 1)]
    return Telemetry(samples=samples, timed_seconds=seconds)


def timed_run(
    process: int,
    candidate: Sequence[float] = (0.01,) * 4,
    baseline: Sequence[float] = (0.02,) * 4,
    *,
    timing: Mapping[str, Any] | None = None,
    ours: ArmEvidence | None = None,
    theirs: ArmEvidence | None = None,
    telemetry: Telemetry | None = None,
    steps: int = 2,
) -> RunEvidence:
    """Return one process of a throughput comparison; step times in seconds, one for each block of `steps` steps."""
    losses = np.linspace(3.0, 2.0, steps * len(candidate))
    timing = dict(timing or {})
    if timing.get("observed_device_seconds") != {}:  # a moment of each arm's, unless the test says how long, or none
        moment = {"graphed": 1e-12, "ungraphed": 1e-12}
        timing["observed_device_seconds"] = moment | timing.get("observed_device_seconds", {})
    evidence = TimingEvidence(
        **{
            "process": process,
            "candidate": "graphed",
            "baseline": "ungraphed",
            "blocks": blocks(candidate, baseline, steps=steps),
            "observed_steps": 4,
            "observed_graph_launches": {"graphed": 4, "ungraphed": 0},
            "processors": 16,
            **timing,
        }
    )
    return RunEvidence(
        run_id=f"timed{process}",
        probe="throughput",
        arms={"graphed": [ours or graphed(losses)], "ungraphed": [theirs or arm("ungraphed", losses)]},
        timing=evidence,
        telemetry=watched_all_along(evidence.blocks) if telemetry is None else telemetry,
    )
