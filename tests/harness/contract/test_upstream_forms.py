"""What upstream's words become: a judgement with upstream's numbers, or nothing."""

from __future__ import annotations

from typing import Any

import pytest

from harness.extras.upstream.items import Item
from harness.extras.upstream.judgements import recognized

CAPTURED = {"mechanism": "cuda_graph", "candidate": "graphed"}
FIRST_AND_LAST = [0, 1, 99]


def judgement_of(**texts: str) -> dict[str, Any] | None:
    executable = recognized(Item("X-1", "falsification_tests", texts, "x.yaml:1:1"))
    return executable.judgement if executable else None


def losses(bound: float, steps: int) -> dict[str, Any]:
    compared = {"kind": "trajectory_match", "baseline": "ungraphed", "equality": "within"}
    return {**CAPTURED, **compared, "max_abs_difference": bound, "guards": {"steps": steps}}


@pytest.mark.parametrize(
    ("texts", "judgement"),
    [
        (
            {"prediction": "The loss trajectory matches ungraphed within 0.25.", "test": "Run a 50-step canary"},
            losses(0.25, 50),
        ),
        ({"formal": "|graphed_loss[t] - ungraphed_loss[t]| < 1e-3 for t in [0, 200]"}, losses(1e-3, 200)),
        ({"": "identical loss curves (divergence < 0.02 at every step for 1,000 steps)"}, losses(0.02, 1000)),
        (
            {"formal": "|grad_graphed - grad_ungraphed| < ε", "tolerance": "1e-06"},
            {**CAPTURED, "kind": "gradient_match", "baseline": "ungraphed", "steps": FIRST_AND_LAST}
            | {"equality": "within", "max_abs_difference": 1e-6},
        ),
        (
            {"prediction": "Throughput improvement >= 12.5% at batch=4", "test": "CUDA_GRAPH=0 and CUDA_GRAPH=1"},
            {**CAPTURED, "kind": "throughput_ratio", "baseline": "ungraphed", "at_least": 1.125},
        ),
        (
            {"formal": "graphed_tok_s / ungraphed_tok_s >= 2.5"},
            {**CAPTURED, "kind": "throughput_ratio", "baseline": "ungraphed", "at_least": 2.5},
        ),
        (
            {"test": "Run with FP16_GEMM=0. Run with FP16_GEMM=1, record the loss. Check abs(diff) < 2.5."},
            {"kind": "trajectory_match", "mechanism": "cuda_graph", "candidate": "half", "baseline": "full"}
            | {"equality": "within", "max_abs_difference": 2.5, "guards": {"steps": 100}, "compare": "final"}
            | {"precisions": {"candidate": "bfloat16", "baseline": "float32"}},
        ),
        (
            {"test": "Run with FP16_GEMM=1, record tok/s. Check ratio >= 1.4."},
            {**CAPTURED, "kind": "throughput_ratio", "candidate": "half", "baseline": "full", "at_least": 1.4},
        ),
        (
            {"prediction": "seed=42 and seed=123 yield different losses", "test": "Train 10 steps with both"},
            {"kind": "runs_differ", "candidate": "seed_123", "baseline": "seed_42", "steps": 10, "losses_from": 1},
        ),
        ({"prediction": "Backward graph capture succeeds"}, {**CAPTURED, "kind": "capture"}),
        ({"prediction": "ZERO NaN backward skips"}, {**CAPTURED, "kind": "capture", "skipped_steps_at_most": 0}),
        (
            {"prediction": "graph node count includes all (>400 nodes total)"},
            {**CAPTURED, "kind": "capture", "nodes_at_least": 401},
        ),
        (
            {"prediction": "All 196 per-layer gradient clipping operations run inside"},
            {**CAPTURED, "kind": "capture", "clipped_tensors_per_layer": 7},
        ),
        (
            {"formal": "sync_count(fixed) == 2 AND sync_count(current) == 168"},
            {"kind": "host_syncs", "candidate": {"arm": "ungraphed", "at_most": 2}}
            | {"control": {"arm": "synchronizing", "exactly": 168}},
        ),
        (
            {"": "peak_vram[step_100] == peak_vram[step_1] within 2%"},
            {**CAPTURED, "kind": "memory_steady", "per": "replay", "after": 1, "growth_at_most": 0.02},
        ),
        (
            {"formal": "peak_vram[replay_n] == peak_vram[replay_1]"},
            {**CAPTURED, "kind": "memory_steady", "per": "replay", "after": 1, "growth_at_most": 0.0},
        ),
        (
            {"prediction": "losses are bitwise equal at step 10", "test": "Train 10 steps twice with same seed"},
            {"kind": "repeatability", "candidate": "ungraphed", "equality": "bitwise", "max_abs_difference": 1e-5}
            | {"guards": {"steps": 10}},
        ),
        (
            {"formal": "|grad| ≤ clip_value after clip_grad_norm"},
            {"kind": "gradient_match", "candidate": "ungraphed", "steps": FIRST_AND_LAST}
            | {"clipped_norm": {"at_most": 0.1, "relative_rounding": 1e-6}},
        ),
        (
            {"test": "1000-step canary with both clipping modes, final loss diff < 0.5"},
            {"kind": "trajectory_match", "candidate": "global_clip", "baseline": "ungraphed", "equality": "within"}
            | {"max_abs_difference": 0.5, "guards": {"steps": 1000}, "compare": "final"},
        ),
    ],
)
def test_an_upstream_claim_in_a_known_form_becomes_a_claim_with_upstreams_numbers(
    texts: dict[str, str], judgement: dict[str, Any]
) -> None:
    assert judgement_of(**texts) == judgement


@pytest.mark.parametrize(
    "texts",
    [
        {"rule": "trajectory matches ungraphed within 0.1"},  # a rule names a claim; its numbers may be another's
        {"prediction": "trajectory matches ungraphed within 0"},  # no bound that anything could meet
        {"prediction": "trajectory matches ungraphed within 1e999"},  # not its first digits either
        {"prediction": "Throughput improvement >= 10% at batch=4"},  # of what over what?
        {"formal": "|grad_graphed - grad_ungraphed| < ε"},  # no number
        {"prediction": "All 170 per-layer gradient clipping operations run inside"},  # not the same in 28 layers
        {"prediction": "GPU utilization > 70%"},
    ],
)
def test_an_upstream_text_without_a_number_that_can_be_judged_is_not_recognized(texts: dict[str, str]) -> None:
    assert judgement_of(**texts) is None


def test_an_imported_claim_without_a_number_of_steps_states_that() -> None:
    executable = recognized(Item("X-1", "invariants", {"": "Forward graph capture succeeds"}, "x.yaml:1:1"))
    assert executable is not None
    assert executable.why == (
        "Upstream's words: graph capture succeeds. Upstream names no number of steps; its canary has 100."
    )
    assert executable.steps == 100


@pytest.mark.parametrize("text", ["node count " * 90_000, "bitwise equal at step 1 ; " * 40_000, "[0, " * 250_000])
def test_a_very_long_upstream_text_is_read_only_up_to_a_limit(text: str) -> None:
    assert judgement_of(prediction=text) is None
