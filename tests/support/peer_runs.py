"""An invented peer run at 4 x 512; tests of its report change its figures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.peer_plan import Shape
from benchmarks.peer_run import Measured, PeerRun

SHAPE = Shape(4, 512)
BF16_FACTS = {
    "dtype": "torch.bfloat16",
    "quantization": "NF4, fp32 absmax",
    "weights": "nf4",
    "loss_positions": "all",
}
FP8_FACTS = {**BF16_FACTS, "products": "float8_e4m3fn"}
PEER_FACTS = {**BF16_FACTS, "loss_positions": "all but the last of each row"}
UNSLOTH_FACTS = {**PEER_FACTS, "quantization": "NF4, double-quantized absmax", "weights": "nf4_double"}
TORCHTUNE_FACTS = {**UNSLOTH_FACTS, "weights": "nf4_torchao"}
REFERENCE = {
    "nf4": {"all": 12.0, "shifted": 12.1},
    "nf4_double": {"all": 12.2, "shifted": 12.3},
    "nf4_torchao": {"all": 12.4, "shifted": 12.5},
}
FLOORS = {"step": 26.0, "floor": 20.0, "fused_floor": 19.5, "fp8_step": 19.0}
ENVIRONMENT = {
    "commit": "c0ffee",
    "device": "a GPU",
    "device_uuid": "GPU-1",
    "packages": {"torch": "2.11.0", "unsloth": None},
}


def arm(name: str, median: float, loss: float | None, facts: dict[str, Any], shape: Shape = SHAPE) -> Measured:
    return Measured(
        arm=name,
        batch_size=shape.batch_size,
        seq_len=shape.seq_len,
        milliseconds=(median - 1, median, median + 2),
        block_ms=(median,),
        block_steps=5,
        sitting="1.0",
        loss_step_0=loss,
        batch_digest="same",
        startup_s=1.0,
        peak_gib=3.0,
        peak_reserved_gib=3.5,
        facts=facts,
    )


def floors() -> dict[str, Any]:
    return {
        **{name: {"median_ms": ms, "clock_mhz": 1500.0, "single_steps": 25} for name, ms in FLOORS.items()},
        "times_floor": FLOORS["step"] / FLOORS["floor"],
        "times_fused_floor": FLOORS["step"] / FLOORS["fused_floor"],
        "fp8_times_floor": FLOORS["fp8_step"] / FLOORS["floor"],
        "peak_gib": 3.0,
    }


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
        reference={str(SHAPE): REFERENCE},
        environment=ENVIRONMENT,
        call_seconds=(200.0,),
        floors={str(SHAPE): floors()},
    )


def with_arm(run: PeerRun, name: str, **changes: Any) -> PeerRun:
    return replace(run, measured=tuple(replace(m, **changes) if m.arm == name else m for m in run.measured))
