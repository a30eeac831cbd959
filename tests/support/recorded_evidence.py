"""Evidence of every kind, written by production code and judged PASS: the base for the matrix of checks.

A probe is executed in this process with a tiny system on a CPU. If a kind needs a GPU or several ranks, the evidence is
that of a published run. Nothing here builds a record.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from between_steps import EVALUATION, RESUME
from claims_in_process import ARMS, STEPS, WITH_CONTROL, contract_of, executed, planned_of
from claims_in_process import CLAIM as IN_PROCESS

from harness.api.rejudge import copies
from harness.contract.schema import AnyClaim, Contract
from harness.evidence.environment_records import GpuFacts
from harness.evidence.run_evidence import RunEvidence
from harness.judging.registry import judge_unit
from harness.judging.verdict import Verdict
from harness.run_directory.bundle import Bundle, read_bundle

ROOT = Path(__file__).parents[2]
CLAIM = IN_PROCESS | WITH_CONTROL
TEXT = {name: CLAIM[name] for name in ("id", "title", "why", "if_fails", "judged_on")}
PAIR = TEXT | {"candidate": "captured", "baseline": "plain"}
REGRESSION = "step_function_systems:Regression"


@dataclass(frozen=True)
class Recorded:
    """A unit with the evidence on which it was judged PASS."""

    contract: Contract
    claim: AnyClaim
    workload: str
    runs: list[RunEvidence]
    gpu: GpuFacts = GpuFacts()  # noqa: RUF009 - frozen

    def verdict(self, runs: list[RunEvidence] | None = None) -> Verdict:
        """Return the verdict on these runs, or on the recorded ones."""
        return judge_unit(self.contract, self.claim, self.workload, self.runs if runs is None else runs, None, self.gpu)


@dataclass(frozen=True)
class OnCpu:
    """A claim about a tiny system."""

    system: str
    claim: Mapping[str, Any]
    steps: int = STEPS
    arms: Mapping[str, Mapping[str, Any]] | None = None  # None: those of `claims_in_process`

    def recorded(self, directory: Path) -> Recorded:
        """Execute the claim's runs, and return them as they are read back."""
        contract = contract_of(self.system, self.claim, 0, self.steps, ARMS if self.arms is None else self.arms)
        runs = [executed(run, directory / run.id) for run in planned_of(contract).runs]
        return Recorded(contract, contract.claims[0], "w", runs)


@dataclass(frozen=True)
class Published:
    """A unit of a published run."""

    folder: str
    claim: str
    workload: str

    def recorded(self, _: Path) -> Recorded:
        """Return the run's evidence, judged by the run's own copy of the contract."""
        bundle, contracts = _read(self.folder)
        unit = next(each for each in bundle.header.units if (each.claim, each.workload) == (self.claim, self.workload))
        contract = next(each for each in contracts if each.id == unit.contract)
        claim = next(each for each in contract.claims if each.id == self.claim)
        runs = [bundle.evidence(run) for run in unit.runs]
        return Recorded(contract, claim, self.workload, runs, bundle.header.environment.gpu)


@functools.cache
def _read(folder: str) -> tuple[Bundle, list[Contract]]:
    """Return a published run and its own copies of its contracts; several units may be of one run."""
    bundle = read_bundle(ROOT / "reports" / folder)
    return bundle, [each.contract for each in copies([bundle])]


GUARDS = CLAIM["guards"]
SEEDS = {
    **PAIR, "kind": "not_worse", "direction": "lower_is_better", "last": 5, "margin": 0.05, "seeds": [3, 1, 4, 0, 5],
    "guards": {"steps": 14, "distinct_batches": 14,
               "training_effect": {"control": "untrained", "last": 5, "at_least": 0.05}},
}  # fmt: skip
RANKS = "gates/2026-11-23-h200x2-ranks-trains-tiny"
CAPTURED = "gates/2026-12-01-h200-gate-training-step"
BASES: dict[str, dict[str, OnCpu | Published]] = {
    "trajectory_match": {
        "bitwise": OnCpu(REGRESSION, CLAIM),
        "within": OnCpu(REGRESSION, CLAIM | {"equality": "within"}),
        "noise": OnCpu(REGRESSION, CLAIM | {"equality": "noise"}),
    },
    "gradient_match": {
        "bitwise": OnCpu(REGRESSION, PAIR | {"kind": "gradient_match", "equality": "bitwise", "steps": [0, 5]}),
        "clipped": Published(CAPTURED, "CLIP-FUSED-001", "smoke"),
    },
    "capture": {
        "traced": OnCpu(REGRESSION, TEXT | {"kind": "capture", "candidate": "captured", "mechanism": "traced"}),
        "cuda_graph": Published("examples/2026-11-22-h200-plain_loop", "PLAIN-CAPTURE", "small"),
    },
    "capture_fallback": {
        "refused": OnCpu("step_function_systems:Waits", PAIR | {"kind": "capture_fallback", "steps": STEPS}),
    },
    "throughput_ratio": {
        "bitwise": Published("gates/2026-12-01-h200-gate-backward", "F-GRAPH-BWD-003", "tiny"),
        "within": Published("examples/2026-11-22-h200-plain_loop", "PLAIN-SPEED", "cuda"),
    },
    "host_syncs": {
        "traced": OnCpu(
            REGRESSION,
            TEXT | {"kind": "host_syncs", "candidate": {"arm": "captured", "exactly": 0},
                    "control": {"arm": "waits", "exactly": 5}},
            arms={**ARMS, "waits": {"capture": "none", "system": "step_function_systems:Waits"}},
        ),
    },
    "ptx_target": {"offline": Published("2026-11-23-h200-drill-untimed", "PTX-TARGET-001", "cross-1.5b-512")},
    "prewarm": {"offline": Published("2026-11-23-h200-drill-untimed", "PREWARM-COVERAGE-001", "cross-tiny")},
    "kernel_match": {"interpreted": Published("2026-11-23-h200-drill-untimed", "CLIP-KERNELS-001", "interpreted")},
    "step_match": {
        "captured": OnCpu(
            "single_step_systems:Captured",
            TEXT | {"kind": "step_match", "candidate": "trained", "reference": "exact", "yardstick": "noisy",
                    "max_evaluation_error": 1e-5, "times_yardstick": 4.0, "max_update_error": 1e-5, "steps": 8},
            steps=8,
            arms={
                "exact": {"dtype": "float64", "system": "single_step_systems:Reference"},
                "noisy": {"dtype": "float32", "system": "single_step_systems:Reference"},
                "trained": {"capture": "step"},
            },
        ),
    },
    "repeatability": {
        "captured": OnCpu(
            REGRESSION,
            TEXT | {"kind": "repeatability", "candidate": "captured", "equality": "bitwise",
                    "max_abs_difference": 0.1, "guards": GUARDS, "runs": 3},
        ),
        "plain": OnCpu(
            REGRESSION,
            TEXT | {"kind": "repeatability", "candidate": "plain", "equality": "bitwise",
                    "max_abs_difference": 0.1, "guards": GUARDS, "runs": 2},
        ),
    },
    "runs_differ": {
        "captured": OnCpu(
            REGRESSION,
            PAIR | {"kind": "runs_differ", "baseline": "faster", "steps": STEPS, "losses_from": 1},
            arms={**ARMS, "faster": {"capture": "none", "learning_rate": 0.02}},
        ),
    },
    "step_accuracy": {
        "bf16": Published("accuracy/2026-11-22-h200-step-accuracy-drill", "REF-STEP-GPU-001", "tiny"),
    },
    "accumulation": {
        "traced": OnCpu(
            "accumulating_systems:Accumulating",
            TEXT | {"kind": "accumulation", "mechanism": "traced", "candidate": "captured", "baseline": "one-batch",
                    "micro_batches": 4, "steps": [0, 1], "max_relative_difference": 1e-3},
            steps=4,
            arms={"captured": {"capture": "step", "micro_batches": 4}, "one-batch": {"capture": "none"}},
        ),
    },
    "not_worse": {
        "seeds": OnCpu("measured_systems:Measured", SEEDS, steps=14),
        "resumed": Published("gates/2026-12-01-h200-gate-not-worse", "RESUME-NOT-WORSE-001", "tiny"),
    },
    "memory_steady": {
        "replay": Published(CAPTURED, "CGTS-INV-005", "tiny"),
        "recapture": Published(CAPTURED, "F-CGT-004-recapture", "tiny-shapes"),
    },
    "peak_memory": {"cuda_graph": Published("gates/2026-12-01-h200-gate-memory", "MEM-PEAK-001-tiny", "tiny")},
    "long_replay": {
        "traced": OnCpu(
            REGRESSION,
            PAIR | {"kind": "long_replay", "mechanism": "traced", "steps": 12, "every": 4, "distinct_batches": 12},
        ),
    },
    "resume": {
        "captured": OnCpu("checkpoint_systems:Right", RESUME | {"candidate": "captured", "baseline": "plain"}),
    },
    "evaluation": {
        "captured": OnCpu(
            "checkpoint_systems:Right",
            EVALUATION | {"candidate": "captured", "plain": "plain", "max_relative_difference": 1e-6},
        ),
    },
    "ranks_agree": {"cuda_graph": Published(RANKS, "RANKS-002", "tiny")},
    "ranks_match": {"cuda_graph": Published(RANKS, "RANKS-003", "tiny")},
}  # fmt: skip
