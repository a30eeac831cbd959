"""What a peer run concludes from its figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers_report import Measured, PeerRun, plot, summary

BF16_FACTS = {"dtype": "torch.bfloat16", "quantization": "NF4, fp32 absmax", "loss_positions": "all"}
PEER_FACTS = {**BF16_FACTS, "loss_positions": "all but the last of each row"}
UNSLOTH_FACTS = {**PEER_FACTS, "quantization": "NF4, double-quantized absmax"}
REFERENCE = {
    512: {"nf4": {"all": 12.0, "shifted": 12.1}, "nf4_double": {"all": 12.2, "shifted": 12.3}},
}


FLOORS = {"step": 26.0, "floor": 20.0, "fused_floor": 19.5}


def arm(name: str, median: float, loss: float | None, facts: dict[str, Any]) -> Measured:
    return Measured(
        arm=name,
        seq_len=512,
        milliseconds=(median - 1, median, median + 2),
        block_ms=(median,),
        loss_step_0=loss,
        batch_digest="same",
        startup_s=1.0,
        peak_gib=3.0,
        peak_reserved_gib=3.5,
        facts=facts,
    )


def complete_run() -> PeerRun:
    return PeerRun(
        model="qwen2-1.5b",
        batch_size=4,
        measured=(
            arm("graphed", 25.0, 12.001, BF16_FACTS),
            arm("hf_eager", 100.0, 12.101, PEER_FACTS),
            arm("unsloth", 40.0, 12.301, UNSLOTH_FACTS),
            arm("gemm_floor", 20.0, None, {}),
        ),
        absent={},
        reference=REFERENCE,
        environment={"device": "a GPU", "packages": {"torch": "2.11.0", "unsloth": None}},
        seconds=200.0,
        floors={
            512: {
                **{name: {"median_ms": ms, "clock_mhz": 1500.0} for name, ms in FLOORS.items()},
                "times_floor": FLOORS["step"] / FLOORS["floor"],
                "times_fused_floor": FLOORS["step"] / FLOORS["fused_floor"],
                "peak_gib": 3.0,
            }
        },
    )


def test_the_step_stands_between_its_floors() -> None:
    """Of one process, and not of the arms' own processes, where the step takes 25 ms."""
    assert "| 512 | 26.00 | 1500 | 20.00 | 1500 | 19.50 | 1500 | 1.300 | 1.333 |" in summary(complete_run())


def with_arm(run: PeerRun, name: str, **changes: Any) -> PeerRun:
    return replace(run, measured=tuple(replace(m, **changes) if m.arm == name else m for m in run.measured))


def test_each_arm_is_held_to_the_reference_of_its_weights_and_counting() -> None:
    run = complete_run()
    assert [error for _, _, error, _ in run.loss_errors()] == [pytest.approx(0.001)] * 3
    assert run.same_mathematics


@pytest.mark.parametrize("loss", [12.12, 12.08, float("nan"), float("inf")])
def test_a_loss_off_the_reference_is_other_mathematics(loss: float) -> None:
    run = with_arm(complete_run(), "hf_eager", loss_step_0=loss)
    assert not run.same_mathematics
    assert "**The mathematics differ**" in summary(run)


def test_other_batches_are_other_mathematics() -> None:
    assert not with_arm(complete_run(), "unsloth", batch_digest="other").same_mathematics


def test_bars_are_ratios_of_medians() -> None:
    bars = {what: (figure, met) for what, _, figure, _, met in complete_run().bars()}
    assert bars == {
        "faster than hf_eager": (4.0, True),
        "faster than unsloth": (1.6, False),
        "times the GEMM floor": (1.3, False),
        "peak GiB": (3.0, True),
    }


def test_another_model_has_no_bars() -> None:
    assert replace(complete_run(), model="tiny").bars() == []


def test_an_absent_arm_is_named_and_the_run_is_not_complete() -> None:
    run = replace(complete_run(), absent={"unsloth at seq 128": "ModuleNotFoundError: No module named 'unsloth'"})
    assert not run.complete
    assert "**This run is not complete.** Absent:\n\n- unsloth at seq 128: ModuleNotFoundError" in summary(run)


def test_an_arm_that_fell_back_is_told() -> None:
    run = with_arm(complete_run(), "graphed", facts={**BF16_FACTS, "mechanism": "traced"})
    run = with_arm(run, "hf_eager", facts={**PEER_FACTS, "graph_breaks": 3, "cudagraph_skips": 1})
    assert "- graphed at seq 512: traced\n" in summary(run)
    assert "- hf_eager at seq 512: 3 graph breaks, 1 skipped CUDA graphs\n" in summary(run)


def test_rows_hold_exactly_the_published_keys() -> None:
    row = complete_run().rows()[0]
    assert row == {
        "arm": "graphed",
        "seq_len": 512,
        "median_ms": 25.0,
        "p10_ms": pytest.approx(24.2),
        "p90_ms": pytest.approx(26.6),
        "tokens_per_s": pytest.approx(81920.0),
        "peak_gib": 3.0,
        "loss_step_0": 12.001,
    }


def test_the_plot_names_every_arm(tmp_path: Path) -> None:
    plot(complete_run(), tmp_path / "peers.svg")
    text = (tmp_path / "peers.svg").read_text()
    assert all(f"<!-- {name} -->" in text for name in ("graphed", "hf_eager", "unsloth", "gemm_floor", "25.0"))
