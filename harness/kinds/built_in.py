"""The harness's own kinds of claim, a row each, in the order in which messages and the published schema list them.

Capabilities `parameters` and `inputs`: equal starts and equal batches are proven by digests of both.
"""

from __future__ import annotations

from harness.kinds.kind import Kind

MISSING_RUN = "harness.drill.evidence_faults:MISSING_RUN"
NO_STEPS = "harness.drill.evidence_faults:NO_STEPS"

_ROWS = (
    Kind(
        name="trajectory_match",
        model="harness.contract.kinds.training:TrajectoryMatch",
        judge="harness.judge.trajectory_match:judge",
        probes={"paired": ()},
        capabilities=frozenset({"parameters", "inputs"}),
        judges_unreadable_device=False,
        card=("trajectories",),
        evidence_faults=(MISSING_RUN, NO_STEPS),
        reasons={},
    ),
    Kind(
        name="gradient_match",
        model="harness.contract.kinds.training:GradientMatch",
        judge="harness.judge.gradient_match:judge",
        probes={"paired": ()},
        capabilities=frozenset({"gradients"}),
        judges_unreadable_device=False,
        card=("gradients",),
        evidence_faults=(MISSING_RUN,),
        reasons={},
    ),
    Kind(
        name="capture",
        model="harness.contract.kinds.replay:Capture",
        judge="harness.judge.capture:judge",
        probes={"paired": ()},
        capabilities=frozenset({"capture"}),
        judges_unreadable_device=False,
        card=("graph", "syncs"),
        evidence_faults=(MISSING_RUN,),
        reasons={},
    ),
    Kind(
        name="throughput_ratio",
        model="harness.contract.kinds.throughput:ThroughputRatio",
        judge="harness.judge.throughput_ratio:judge",
        probes={"throughput": ("candidate", "baseline", "blocks", "block_steps")},
        capabilities=frozenset({"parameters", "inputs"}),
        judges_unreadable_device=False,
        card=("throughput",),
        evidence_faults=(MISSING_RUN,),
        reasons={},
    ),
    Kind(
        name="host_syncs",
        model="harness.contract.kinds.replay:HostSyncs",
        judge="harness.judge.host_syncs:judge",
        probes={"paired": ()},
        capabilities=frozenset(),
        judges_unreadable_device=False,
        card=("syncs",),
        evidence_faults=(MISSING_RUN,),
        reasons={},
    ),
    Kind(
        name="ptx_target",
        model="harness.contract.kinds.kernels:PtxTarget",
        judge="harness.judge.ptx_target:judge",
        probes={"kernels": ("target",)},
        capabilities=frozenset({"kernels"}),
        judges_unreadable_device=True,
        card=("ptx",),
        evidence_faults=(MISSING_RUN,),
        reasons={},
    ),
    Kind(
        name="prewarm",
        model="harness.contract.kinds.kernels:Prewarm",
        judge="harness.judge.prewarm:judge",
        probes={"kernels": ("target", "scope"), "prewarm": ("target", "handles", "memory_filled")},
        capabilities=frozenset({"kernels"}),
        judges_unreadable_device=False,
        card=("jit", "ptx"),
        evidence_faults=(MISSING_RUN,),
        reasons={},
    ),
    Kind(
        name="kernel_match",
        model="harness.contract.kinds.kernels:KernelMatch",
        judge="harness.judge.kernel_match:judge",
        probes={"kernel_match": ("operations", "max_relative_error", "magnitudes")},
        capabilities=frozenset({"kernel_cases"}),
        judges_unreadable_device=False,
        card=("accuracy",),
        evidence_faults=(MISSING_RUN,),
        reasons={},
    ),
    Kind(
        name="repeatability",
        model="harness.contract.kinds.training:Repeatability",
        judge="harness.judge.repeatability:judge",
        probes={"paired": ()},
        capabilities=frozenset({"parameters", "inputs"}),
        judges_unreadable_device=False,
        card=("trajectories",),
        evidence_faults=(MISSING_RUN, NO_STEPS),
        reasons={},
    ),
    Kind(
        name="memory_steady",
        model="harness.contract.kinds.replay:MemorySteady",
        judge="harness.judge.memory_steady:judge",
        probes={"paired": (), "recapture": ("after",)},
        capabilities=frozenset(),
        judges_unreadable_device=False,
        card=("memory",),
        evidence_faults=(MISSING_RUN,),
        reasons={},
    ),
)
BUILT_IN = {row.name: row for row in _ROWS}
