"""What a peer run concludes, and how calls become one run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from peer_runs import (
    BF16_FACTS,
    ENVIRONMENT,
    FP8_FACTS,
    REFERENCE,
    SHAPE,
    TORCHTUNE_FACTS,
    arm,
    complete_run,
    floors,
    with_arm,
)

from benchmarks.peer_plan import Shape
from benchmarks.peer_run import OtherRunError, PeerRun, joined, places_of, read_run
from benchmarks.peers_report import summary

LONG = Shape(1, 8192)


def later(**changes: Any) -> PeerRun:
    """A second call, of another shape."""
    run = PeerRun(
        model="qwen2-1.5b",
        batch_size=4,
        measured=(arm("graphed", 250.0, 12.001, BF16_FACTS, LONG),),
        absent={"ungraphed at 1x8192": "OutOfMemoryError: no room"},
        reference={str(LONG): REFERENCE},
        environment=ENVIRONMENT,
        call_seconds=(310.0,),
        floors={str(LONG): floors()},
    )
    return replace(run, **changes)


def test_each_arms_loss_is_compared_with_the_reference_of_its_weights_and_token_counting() -> None:
    run = complete_run()
    run = replace(run, measured=(*run.measured, arm("torchtune_compiled", 60.0, 12.501, TORCHTUNE_FACTS)))
    assert [error for _, error, _ in run.loss_errors()] == [pytest.approx(0.001)] * 4
    assert run.same_mathematics


@pytest.mark.parametrize("loss", [12.12, 12.08, float("nan"), float("inf")])
def test_an_arm_whose_loss_differs_from_the_reference_has_different_mathematics(loss: float) -> None:
    assert not with_arm(complete_run(), "hf_eager", loss_step_0=loss).same_mathematics


def test_an_arm_with_a_different_batch_digest_does_not_have_the_same_mathematics() -> None:
    assert not with_arm(complete_run(), "unsloth", batch_digest="other").same_mathematics


def test_batches_may_differ_between_two_shapes() -> None:
    longer = arm("graphed", 250.0, 12.001, BF16_FACTS, LONG)
    run = joined(complete_run(), later(measured=(replace(longer, batch_digest="of 1 x 8192"),)))
    assert run.same_mathematics


@pytest.mark.parametrize(
    ("facts", "error", "same"),
    [(FP8_FACTS, 0.048, True), (FP8_FACTS, -0.050, False), (BF16_FACTS, 0.009, True), (BF16_FACTS, 0.011, False)],
)
def test_fp8_arms_have_their_own_loss_tolerance(facts: dict[str, Any], error: float, same: bool) -> None:
    run = complete_run()
    fp8 = arm("graphed_fp8", 20.0, REFERENCE["nf4"]["all"] + error, facts)
    assert replace(run, measured=(*run.measured, fp8)).same_mathematics is same


def test_the_loss_tolerance_of_fp8_depends_on_the_number_of_targets() -> None:
    tolerances = {
        shape: complete_run().tolerance(arm("graphed_fp8", 20.0, 12.0, FP8_FACTS, Shape.parse(shape)))
        for shape in ("4x128", "4x512", "4x2048")
    }
    assert tolerances == {
        "4x128": pytest.approx(0.0543, abs=1e-4),
        "4x512": pytest.approx(0.0492, abs=1e-4),
        "4x2048": pytest.approx(0.0479, abs=1e-4),
    }


def test_rows_hold_exactly_the_published_keys() -> None:
    assert complete_run().rows()[0] == {
        "arm": "graphed",
        "batch_size": 4,
        "seq_len": 512,
        "median_ms": 25.0,
        "p10_ms": pytest.approx(24.2),
        "p90_ms": pytest.approx(26.6),
        "single_steps": 3,
        "tokens_per_s": pytest.approx(81920.0),
        "peak_gib": 3.0,
        "loss_step_0": 12.001,
    }


def test_a_stored_benchmark_run_is_read_back_unchanged(tmp_path: Path) -> None:
    assert read_run(tmp_path) is None
    run = joined(complete_run(), later())
    (tmp_path / "details.json").write_text(json.dumps(run.details()))
    assert read_run(tmp_path) == run


def test_a_run_of_another_version_is_refused_with_its_file(tmp_path: Path) -> None:
    details = complete_run().details()
    del details["call_seconds"]
    (tmp_path / "details.json").write_text(json.dumps(details))
    with pytest.raises(OtherRunError, match=r"details\.json was written by another version.*call_seconds"):
        read_run(tmp_path)


def test_two_calls_of_the_benchmark_are_joined_to_one_run() -> None:
    run = joined(complete_run(), later())
    assert [f"{m.arm} {m.shape}" for m in run.measured] == [
        *("graphed 4x512", "hf_eager 4x512", "unsloth 4x512", "gemm_floor 4x512"),
        "graphed 1x8192",
    ]
    assert sorted(run.floors) == sorted(run.reference) == ["1x8192", "4x512"]
    assert run.call_seconds == (200.0, 310.0)
    assert run.absent == {"ungraphed at 1x8192": "OutOfMemoryError: no room"}
    assert "| 1x8192 | 26.00 |" in summary(run)


def test_a_later_call_removes_measured_arms_from_the_absent_arms_and_updates_the_reasons_of_failed_arms() -> None:
    before = replace(
        complete_run(),
        absent={
            "graphed at 1x8192": "not started: out of time",
            "ungraphed at 1x8192": "not asked for",
            "floors at 1x8192": "not asked for",
            "hf_cudnn at 4x512": "RuntimeError: no plan",
            "axolotl_compiled at 4x512": "not asked for",
        },
    )
    now = later()
    now = replace(
        now, absent={**now.absent, "hf_cudnn at 4x512": "not asked for", "torchtune at 4x512": "not asked for"}
    )
    assert joined(before, now).absent == {
        "ungraphed at 1x8192": "OutOfMemoryError: no room",
        "hf_cudnn at 4x512": "RuntimeError: no plan",
        "axolotl_compiled at 4x512": "not asked for",
        "torchtune at 4x512": "not asked for",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("commit", "c0ffee+changes"),
        ("device_uuid", "GPU-2"),
        ("packages", {"torch": "2.12.0", "unsloth": None}),
        ("sources", "another digest"),
    ],
)
def test_a_run_of_a_different_machine_packages_or_sources_is_not_continued(name: str, value: object) -> None:
    with pytest.raises(
        OtherRunError, match=f"cannot be resumed, because it differs from this run: {name} was .* but is now "
    ):
        joined(complete_run(), later(environment={**ENVIRONMENT, name: value}))


def test_joining_a_benchmark_run_of_a_different_model_is_refused() -> None:
    with pytest.raises(OtherRunError, match=r"model was 'qwen2-1\.5b' but is now 'tiny'"):
        joined(complete_run(), later(model="tiny"))


def test_a_call_of_the_benchmark_measures_the_arms_that_a_run_lacks() -> None:
    run = complete_run()
    lacking = [arm for arm, shape in places_of([SHAPE], 4) if run.lacks((arm, shape))]
    assert lacking == [
        *("graphed_dense", "graphed_fp8", "ungraphed", "hf_cudnn", "hf_reduce_overhead", "hf_liger_compiled"),
        *("axolotl_compiled", "torchtune_compiled", "unsloth_all_linear"),
    ]
    assert replace(run, floors={}).lacks(("floors", SHAPE))
