"""Invented runs for the report: one with every kind of evidence and verdict, and small ones to be changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from times_builders import clocked

from harness.contract.schema import Contract
from harness.evidence import arm_records, run_evidence, run_records
from harness.judging.verdict import Demanded, Figure, Interval, Status, Verdict
from harness.report.view import ReportView
from harness.run_directory.bundle import Header
from harness.run_directory.costs import Costs, costs
from harness.run_directory.verdict_file import Control, DrillMachine, DrillRecord, NotDrilled, Row, Triple

CONTRACT: dict[str, Any] = {
    "schema": "contract/v2",
    "id": "cuda-graph-backward-v1",
    "title": "A captured QLoRA step trains like the uncaptured one, and faster",
    "system": "reference_impl.system:QLoRASystem",
    "workloads": {
        "tiny": {"model": "tiny", "batch_size": 4, "seq_len": 64, "steps": 100},
        "qwen2-1.5b": {"model": "qwen2-1.5b", "batch_size": 4, "seq_len": 512, "steps": 100},
    },
    "arms": {
        "graphed": {"capture": "step"},
        "ungraphed": {"capture": "none"},
        "untrained": {"capture": "none", "learning_rate": 0},
    },
    "claims": [
        {
            "id": "F-GRAPH-BWD-001",
            "title": "The loss trajectory matches the ungraphed one",
            "kind": "trajectory_match",
            "candidate": "graphed",
            "baseline": "ungraphed",
            "max_abs_difference": 0.1,
            "equality": "bitwise",
            "guards": {"steps": 100, "training_effect": {"control": "untrained", "last": 20, "at_least": 0.2}},
            "judged_on": ["tiny", "qwen2-1.5b"],
            "why": "0.1 is upstream's number. Bitwise is ours: the same kernels run in the same order.",
            "if_fails": "A batch that was rebound instead of copied, or a learning rate frozen in the graph.",
            "falsified_by": ["stale_batch", "frozen_learning_rate"],
        },
        {
            "id": "CGB-EQ-001",
            "title": "Every gradient is the ungraphed one",
            "kind": "gradient_match",
            "candidate": "graphed",
            "baseline": "ungraphed",
            "steps": [0, 50, 99],
            "equality": "within",
            "max_abs_difference": 1e-5,
            "clipped_norm": {"at_most": 1.0, "relative_rounding": 1e-5},
            "judged_on": ["qwen2-1.5b"],
            "why": "Upstream's bound.",
            "if_fails": "Gradients aliased to the graph's static buffers.",
        },
        {
            "id": "F-GRAPH-BWD-002",
            "title": "The step is captured, cleanly and completely",
            "kind": "capture",
            "candidate": "graphed",
            "judged_on": ["qwen2-1.5b"],
            "why": "A capture that records and never launches loses a step.",
            "if_fails": "A host sync inside the step.",
        },
        {
            "id": "F-GRAPH-BWD-003",
            "title": "The captured step is at least 1.10 times as fast",
            "kind": "throughput_ratio",
            "candidate": "graphed",
            "baseline": "ungraphed",
            "at_least": 1.1,
            "trajectory": "F-GRAPH-BWD-001",
            "judged_on": ["qwen2-1.5b"],
            "why": "Upstream's number, at batch 4.",
            "if_fails": "The step is bound by the GPU, not by launches.",
        },
        {
            "id": "C-PREWARM-001",
            "title": "Every kernel is compiled before the weights arrive",
            "kind": "prewarm",
            "candidate": "graphed",
            "scope": "device",
            "judged_on": ["qwen2-1.5b"],
            "why": "A late compile fails when memory is full.",
            "if_fails": "A kernel stored under another's key.",
        },
        {
            "id": "F-PTX-001",
            "title": "Every kernel's PTX target is the device's",
            "kind": "ptx_target",
            "candidate": "graphed",
            "policy": "exact",
            "target": "device",
            "judged_on": ["tiny"],
            "why": "A wrong target is compiled again at load.",
            "if_fails": "A target string that is hard-coded.",
        },
    ],
}
TENSORS = (
    "self_attn.q_proj.lora_a",
    "self_attn.q_proj.lora_b",
    "self_attn.v_proj.lora_a",
    "self_attn.v_proj.lora_b",
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
)


def contract(**changes: Any) -> Contract:
    """Return `CONTRACT` with top-level values replaced."""
    return Contract.model_validate(CONTRACT | changes)


def listing_two() -> Contract:
    """Return the contract with two claims that no kind can judge."""
    listed = {"source": "graph: proof_obligations (up/graph.yaml:5:3)", "why": "no number"}
    return contract(unchecked=[{"id": f"G-{n}", "title": f"Pretty <b>{n}</b>", **listed} for n in (1, 2)])


def header(**changes: Any) -> Header:
    """Return the header of a run directory without units, on an unknown machine; changes: as in JSON."""
    values = {
        "purpose": "verify",
        "started_at": "2026-11-20T11:00:00+00:00",
        "command": ["harness", "verify", "contracts/"],
        "environment": {},
        "units": [],
        "runs": {},
        "digests": {"contracts": {}, "source": "0f" * 32},
    }
    return Header.model_validate(values | changes)


def waiver(workload: str, **changes: Any) -> dict[str, Any]:
    """Return a waiver of F-GRAPH-BWD-001 on a workload, as a header records it."""
    values = {"contract": CONTRACT["id"], "claim": "F-GRAPH-BWD-001", "workload": workload}
    signed = {"owner": "ada", "reason": "known", "expires": "2027-01-01", "expired": False}
    return {**values, **signed, **changes}


def series(loss: Any) -> run_evidence.Series:
    losses = np.asarray(loss, dtype=np.float64)
    count = len(losses)
    zeros = np.zeros(count, dtype=np.int64)
    return run_evidence.Series(losses, ["d"] * count, zeros, zeros)


def arm(name: str, loss: Any, replica: int = 0, **seen: Any) -> run_evidence.ArmEvidence:
    start = arm_records.ArmStart(
        arm=name,
        replica=replica,
        trainable_digest="a",
        frozen_digest="b",
        trainable_tensors=168,
        facts={"layers": 28, "device": "cuda", "text_digest": "5f3c9e"},
    )
    of_end = {"trainable_digest": "c", "frozen_digest": "b", "skipped_steps": 0, "steps_called": len(loss)}
    end = seen.pop("end", arm_records.ArmEnd(arm=name, replica=replica, **of_end))
    return run_evidence.ArmEvidence(start, end, series(loss), **seen)


def verdict(claim: str, workload: str = "tiny", status: Status = Status.PASS, **changes: Any) -> Verdict:
    values: dict[str, Any] = {
        "contract": CONTRACT["id"],
        "claim": claim,
        "workload": workload,
        "status": status,
        "reason": "held",
        "message": "100 steps are equal in every bit.",
        "denominators": {"steps": 100},
    }
    return Verdict(**(values | changes))


def decided_by(demanded: Demanded) -> dict[str, Any]:
    """Return changes for a verdict whose judge compared only this."""
    return {"demands": (demanded,), "decided": demanded}


def ratio_of(value: float, low: float = -0.01, high: float = 0.02) -> dict[str, Any]:
    """Return changes for a speed ratio that must be at least 1.1; low, high: offsets of its interval's ends."""
    interval = Interval(value + low, value + high, 0.99, "one-sided bounds", "processes")
    return decided_by(Demanded("mean_ratio", value, "at least", 1.1, "x", interval=interval))


def loss_curve(steps: int, seed: int = 0) -> Any:
    """Return losses that fall, with noise of batches."""
    noise = np.random.default_rng(seed).normal(0, 0.05, steps)
    return 2.4 + 1.8 * np.exp(-np.arange(steps) / (steps / 3)) + noise


def small_view(**changes: Any) -> ReportView:
    """Return a run with one claim on one workload that holds: two arms with equal trajectories of 100 steps."""
    curve = loss_curve(100)
    arms = {"ungraphed": [arm("ungraphed", curve), arm("ungraphed", curve, 1)], "graphed": [arm("graphed", curve)]}
    run = run_evidence.RunEvidence("tiny-paired", "paired", arms)
    unit = {"contract": CONTRACT["id"], "claim": "F-GRAPH-BWD-001", "workload": "tiny", "runs": ["tiny-paired"]}
    values: dict[str, Any] = {
        "header": header(units=[unit]),
        "contracts": [contract()],
        "verdicts": [verdict("F-GRAPH-BWD-001")],
        "evidence": {run.run_id: run},
    }
    return ReportView(**(values | changes))


def view_of(*statuses: Status, **changes: Any) -> ReportView:
    """Return verdicts with these statuses on workloads w0, w1, …, without evidence; changes: fields of the view."""
    verdicts = [
        verdict("F-GRAPH-BWD-001", f"w{place}", status, message=f"message {place}", reason=f"reason_{place}")
        for place, status in enumerate(statuses)
    ]
    return replace(view_with(*verdicts, contracts=[contract()]), **changes)


def view_with(*verdicts: Verdict, contracts: Sequence[Contract] = (), **header_changes: Any) -> ReportView:
    """Return a run with only these verdicts; header_changes: fields of the header."""
    return ReportView(header(**header_changes), contracts, verdicts, {})


def full_view() -> ReportView:
    """Return a run with every kind of evidence and every status, as large as a real one."""
    names = {
        "paired": "qwen2-1.5b-paired",
        "tiny": "tiny-paired",
        "kernels": "tiny-kernels",
        "prewarm": "qwen2-1.5b-prewarm",
    }
    timing = [_timing(process) for process in range(8)]
    evidence = {run.run_id: run for run in [_paired(names["paired"]), _diverging(names["tiny"]), *timing]}
    evidence[names["prewarm"]] = _prewarm(names["prewarm"])
    evidence[names["kernels"]] = _kernels(names["kernels"])
    evidence["broken"] = run_evidence.RunEvidence(
        "broken",
        "paired",
        {},
        death=run_evidence.Death(
            cause="signal", detail="SIGKILL", phase="capture", stack='File "trainer.py", line 12 in step'
        ),
    )
    units = [
        ("F-GRAPH-BWD-001", "qwen2-1.5b", [names["paired"]]),
        ("F-GRAPH-BWD-001", "tiny", [names["tiny"]]),
        ("CGB-EQ-001", "qwen2-1.5b", [names["paired"]]),
        ("F-GRAPH-BWD-002", "qwen2-1.5b", ["broken", names["paired"]]),
        ("F-GRAPH-BWD-003", "qwen2-1.5b", [run.run_id for run in timing]),
        ("C-PREWARM-001", "qwen2-1.5b", [names["prewarm"]]),
        ("F-PTX-001", "tiny", [names["kernels"]]),
    ]
    planned = [{"contract": CONTRACT["id"], "claim": a, "workload": b, "runs": c} for a, b, c in units]
    environment = {
        "git": {"commit": "4afac30f0e0c2a1d"},
        "gpu": {"name": "NVIDIA H200", "driver": "580.65.06", "memory_gib": 139.8},
        "versions": {"python": "3.12.3", "torch": "2.11.0+cu130", "cuda": "13.0", "triton": "3.6.0"},
        "cpu": {"model": "Xeon", "cores": 16},
    }
    command = ["harness", "verify", "contracts/", "--gate"]
    full = header(command=command, units=planned, environment=environment)
    return ReportView(full, [contract()], _verdicts(), evidence, drill=_drill(), gate=True, costs=_costs(evidence))


def _costs(runs: Iterable[str]) -> Costs:
    """Return every kind of cost except `other` for each run; runs overlap, and every third needs no GPU."""
    names = ["start", "a.0: open", "a: warm-up", "timed", "a.0: steps", "b.0: steps", "a.0: host syncs", "a.0: census"]
    names += ["a: kernels", "a: inventory", "a: measure a step's memory in another process"]
    workers = {
        run: [
            clocked(
                *((name, 2.0 + 3 * step) for step, name in enumerate(names)),
                end=36.0 + place,
                ended=37.0 + place,
                started=1000.0 + 20 * place,
                gpu="GPU-1" if place % 3 else None,
                stopped=[(5.0, 6.0)],
                processor=30.0,
            )
        ]
        for place, run in enumerate(runs)
    }
    return costs(workers, {"c": {"b"}}, has_gpu=True)


def drill_view() -> ReportView:
    """Return the full run with a fault planted."""
    return planted(full_view())


def planted(view: ReportView, fault: str = "stale_batch") -> ReportView:
    """Return the view of a run directory in which this fault was planted."""
    return replace(view, header=view.header.model_copy(update={"purpose": "fault", "fault": fault}))


def whole_drill_view(*statuses: Status, killed: Sequence[bool], not_run: int = 0, gate: bool = False) -> ReportView:
    """Return the view of a drill: controls with these statuses (default: one that holds), and a row for each fault."""
    return view_of(
        *(statuses or (Status.PASS,)),
        gate=gate,
        header=header(purpose="drill"),
        drill=drilled(killed=killed, not_run=not_run),
    )


def drilled(*, killed: Sequence[bool], not_run: int = 0, reason: str = "needs_cuda") -> DrillRecord:
    """Return the record of a drill with one control, which held, and a row for each entry of `killed`."""
    record, unit = _drill(), {"contract": CONTRACT["id"], "claim": "F-GRAPH-BWD-001"}
    left = [NotDrilled(**unit, fault=f"left{index}", reason=reason, message="needs CUDA") for index in range(not_run)]
    control = Control(**unit, workload="tiny", status="PASS", reason="held", message="it held")
    rows = [
        record.rows[0].model_copy(update={"fault": f"fault{index}", "killed": one}) for index, one in enumerate(killed)
    ]
    counted = {"planned": len(rows) + len(left), "rows": rows, "not_run": left}
    return record.model_copy(update={"controls": [control], **counted})


def _verdicts() -> list[Verdict]:
    differs = {
        "first_differing_step": Figure(value=12, unit="step"),
        "max_abs_difference": Figure(value=0.0321),
        "within_upstream_tolerance": Figure(value=True),
    }
    bounds = {"mean_ratio": Figure(value=1.39), "lower_bound": Figure(value=1.36), "upper_bound": Figure(value=1.42)}
    ratios = (1.393, 1.396, 1.37255, 1.353, 1.365, 1.358, 1.41, 1.368)
    bounds |= {f"ratio.process_{place}": Figure(value=ratio) for place, ratio in enumerate(ratios)}
    return [
        verdict("F-GRAPH-BWD-001", "qwen2-1.5b", mechanism="cuda_graph"),
        verdict(
            "F-GRAPH-BWD-001",
            "tiny",
            Status.FAIL,
            reason="differs",
            message="The losses differ from step 12 on, by at most 0.0321.",
            figures=differs,
        ),
        verdict(
            "CGB-EQ-001",
            "qwen2-1.5b",
            message="168 tensors at 3 steps agree within 1e-05.",
            denominators={"tensors": 504},
        ),
        verdict(
            "F-GRAPH-BWD-002",
            "qwen2-1.5b",
            Status.ERROR,
            reason="worker_signal",
            message="The worker was killed by SIGKILL.",
        ),
        verdict(
            "F-GRAPH-BWD-003",
            "qwen2-1.5b",
            message="1.39 times as fast.",
            figures=bounds,
            denominators={"processes": 8},
        ),
        verdict(
            "C-PREWARM-001",
            "qwen2-1.5b",
            Status.INCONCLUSIVE,
            reason="limits_exceeded",
            message="The device was shared.",
        ),
        verdict(
            "F-PTX-001",
            "tiny",
            Status.NOT_RUN,
            reason="needs_cuda",
            message="needs CUDA: this machine has no CUDA device",
        ),
    ]


def _drill() -> DrillRecord:
    unit = {"contract": CONTRACT["id"], "claim": "F-GRAPH-BWD-001", "workload": "tiny", "message": "what was seen"}
    differs = Triple(status="FAIL", reason="differs", figures={"first_differing_step": 1})
    held = Triple(status="PASS", reason="held")
    return DrillRecord(
        planned=2,
        recorded_at="2026-11-20",
        machine=DrillMachine(cuda=True, gpus=["NVIDIA H200"], host_memory_gib=200.0),
        contracts={CONTRACT["id"]: "0d" * 32},
        controls=[],
        rows=[
            Row(
                fault="stale_batch",
                expected=differs,
                seen=differs,
                killed=True,
                upstream_alone_passes=False,
                **unit,
            ),
            Row(
                fault="frozen_learning_rate",
                expected=differs,
                seen=held,
                killed=False,
                upstream_alone_passes=True,
                **unit,
            ),
        ],
    )


def _paired(run_id: str) -> run_evidence.RunEvidence:
    curve = loss_curve(100, 3)
    kernels = {
        f"void at::native::vectorized_elementwise_kernel<4, functor_{place}, array<char*, 3>>": 400 - 9 * place
        for place in range(45)
    }
    nodes = arm_records.GraphNodes(
        label="step", by_type={"kernel": 3328, "memset": 141}, kernels=kernels, device_to_host_copies=0
    )
    capture = arm_records.CaptureEvidence(
        arm="graphed",
        replica=0,
        mechanism="cuda_graph",
        requested=True,
        captured=True,
        failure=None,
        captures=1,
        warmup_steps=3,
        replays=100,
        uncaptured_steps=0,
        nodes=[nodes],
        recorded_operations=0,
        fake_pass_clean=None,
        moved_buffers=[],
        static_buffers=340,
        observed_steps=4,
        observed_graph_launches=4,
        observed_replayed_operations=None,
    )
    place = arm_records.SyncPlace(
        file="reference_impl/clip.py", line=41, operation="aten._local_scalar_dense", count=168
    )
    readings = [
        arm_records.DetectorReading(detector=name, steps=1, count=168, places=[place], sees_planted=True)
        for name in ("dispatch_mode", "profiler")
    ]
    syncs = arm_records.HostSyncEvidence(arm="ungraphed", replica=0, layers=28, replayed=False, readings=readings)
    samples = [
        arm_records.MemorySample(step=step, allocated_bytes=9_600_000_000 + 4096 * step, reserved_bytes=10_200_000_000)
        for step in range(100)
    ]
    memory = arm_records.MemoryEvidence(arm="graphed", replica=0, per="replay", samples=samples)
    arms = {
        "ungraphed": [arm("ungraphed", curve, syncs=syncs), arm("ungraphed", curve, 1)],
        "graphed": [arm("graphed", curve, capture=capture, memory=[memory], gradients=_gradients())],
        "untrained": [arm("untrained", loss_curve(100, 4) + 0.6)],
    }
    return run_evidence.RunEvidence(run_id, "paired", arms)


def _gradients() -> list[arm_records.Gradients]:
    draw = np.random.default_rng(1)
    records = []
    for step in (0, 50, 99):
        tensors = [
            arm_records.TensorReduction(
                name=f"model.layers.{layer}.{name}",
                digest="x",
                elements=1536,
                max_abs=0.5,
                max_abs_difference=float(draw.choice([0.0, 10 ** draw.uniform(-8, -5.2)])),
                baseline_digest="y",
                baseline_max_abs=0.5,
            )
            for layer in range(28)
            for name in TENSORS
        ]
        groups = [
            arm_records.GroupNorm(group=f"layer {layer}", before=2.0 + layer / 10, after=1.0) for layer in range(28)
        ]
        records.append(
            arm_records.Gradients(
                arm="graphed", replica=0, step=step, baseline="ungraphed", tensors=tensors, groups=groups
            )
        )
    return records


def _diverging(run_id: str) -> run_evidence.RunEvidence:
    curve = loss_curve(100, 5)
    other = curve.copy()
    other[12:] += 0.03 * np.linspace(0.1, 1, 88)
    again = curve + 1e-7
    arms = {
        "ungraphed": [arm("ungraphed", curve), arm("ungraphed", again, 1)],
        "graphed": [arm("graphed", other)],
        "untrained": [arm("untrained", loss_curve(100, 6) + 0.5)],
    }
    return run_evidence.RunEvidence(run_id, "paired", arms)


def _timing(process: int) -> run_evidence.RunEvidence:
    draw = np.random.default_rng(process)
    blocks = [
        run_records.Block(
            arm=name,
            round=place // 4,
            position=place % 4,
            steps=20,
            first_step=20 * place,
            seconds=20 * (0.0435 if name == "graphed" else 0.0605 * float(np.exp(draw.normal(0, 0.03)))),
        )
        for place, name in enumerate(["graphed", "ungraphed", "ungraphed", "graphed"] * 4)
    ]
    timing = run_records.TimingEvidence(
        process=process,
        candidate="graphed",
        baseline="ungraphed",
        blocks=blocks,
        observed_steps=4,
        observed_graph_launches={"graphed": 4, "ungraphed": 0},
    )
    samples = [
        run_records.TelemetrySample(
            seconds=float(second),
            sm_clock_mhz=1980.0 - 15 * (second % 7 == process),
            power_w=420.0 + second,
            temperature_c=48.0 + second / 6,
            throttle_reasons=["sw_power_cap"] if second == 20 and process == 2 else [],
            foreign_processes=0,
            host_load_per_core=0.2,
        )
        for second in range(30)
    ]
    return run_evidence.RunEvidence(
        f"throughput-{process}", "throughput", {}, timing=timing, telemetry=run_records.Telemetry(samples=samples)
    )


def _prewarm(run_id: str) -> run_evidence.RunEvidence:
    events = [
        run_records.JitEvent(key=f"lora_{place}", event="compile", phase="prewarm", seconds=0.4 + place * 0.11)
        for place in range(30)
    ]
    events += [
        run_records.JitEvent(key=f"lora_{place}", event="load", phase="prewarm", seconds=0.45 + place * 0.11)
        for place in range(30)
    ]
    events.append(run_records.JitEvent(key="cross_entropy", event="compile", phase="train", seconds=7.3))
    seen = run_records.PrewarmEvidence(
        arm="graphed",
        events=events,
        phases={"prewarm": 0.3, "upload": 4.0, "train": 6.2},
        handles={"cublas": 3.9},
        free_bytes_after_fill=3_000_000,
        steps_after_fill=2,
    )
    return run_evidence.RunEvidence(run_id, "prewarm", {}, prewarm={"graphed": seen})


def _kernels(run_id: str) -> run_evidence.RunEvidence:
    records = [
        run_records.KernelRecord(
            key=f"rms_norm(1536,{place})",
            name="rms_norm",
            ptx_digest="ab" * 32,
            targets=["sm_90a"] if place else [],
            versions=["8.7"],
            entries=["rms_norm"],
        )
        for place in range(24)
    ]
    seen = run_records.KernelsEvidence(
        arm="graphed",
        device="sm_90",
        device_readable=True,
        driver_ptx_version="9.0",
        compiled_for=None,
        planned=records,
        used=records,
    )
    cases = [
        run_records.KernelCase(
            operation="rms_norm",
            dtype="float32",
            shape="4x64x256",
            magnitude=1.0,
            error_vs_naive=2e-7,
            error_vs_fp64=3e-7,
            naive_error_vs_fp64=3e-7,
            finite=True,
            unwritten=0,
            repeat_equal=True,
        )
    ]
    match = run_records.KernelMatchEvidence(arm="graphed", cases=cases, compiled=records[:2], constants={"tile": 16})
    return run_evidence.RunEvidence(run_id, "kernels", {}, kernels={"graphed": seen}, kernel_match={"graphed": match})
