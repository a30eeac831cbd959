"""Arms of the reference trainer. Captured and uncaptured arms run the same kernels, in a CUDA graph or one by one."""

from __future__ import annotations

from typing import Any

from benchmarks.arms.job import ALPHA, LEARNING_RATE, MAX_NORM, RANK, SEED, Job, OpenedArm
from reference_impl.config import TrainConfig
from reference_impl.cuda_graph import CapturingTrainer
from reference_impl.trainer import Trainer


def open_ours(job: Job) -> OpenedArm:
    """Open an arm of the reference trainer.

    `after_first_step` of the arm raises RuntimeError if the step of a captured arm was not captured, or if a product of
    the FP8 arm did not run in FP8.
    """
    config = TrainConfig.preset(
        job.checkpoint,
        batch_size=job.batch_size,
        seq_len=job.seq_len,
        rank=RANK,
        alpha=ALPHA,
        learning_rate=LEARNING_RATE,
        max_norm=MAX_NORM,
        seed=SEED,
        device=job.device,
        weights="nf4_dense" if job.arm == "graphed_dense" else "nf4",
        precision="fp8" if job.arm == "graphed_fp8" else "dtype",
    )
    trainer = Trainer(config)
    capturing = CapturingTrainer(trainer, "none" if job.arm == "ungraphed" else "step")

    def capture_facts() -> dict[str, Any]:
        record = capturing.record()
        if record.requested and not record.captured:
            raise RuntimeError(f"the step was not captured: {record.failure}")
        return {"mechanism": record.mechanism, **(_fp8_products(trainer) if config.precision == "fp8" else {})}

    kept = ", values kept dense" if config.weights == "nf4_dense" else ""
    rounded = ", rounded to FP8 as products take them" if config.precision == "fp8" else ""
    facts = {
        "trainable_parameters": trainer.trainable.flat.numel(),
        "trains": "LoRA on q and v, and the two norm gains of each layer",
        "clip": "per layer, fused",
        "quantization": f"NF4, fp32 absmax{kept}{rounded}",
        "weights": "nf4",
        "loss_positions": "all",
        "dtype": str(trainer.dtype),
    }
    return OpenedArm(capturing.step, facts, capture_facts)


def _fp8_products(trainer: Trainer) -> dict[str, Any]:
    """Return the precision of the products with frozen weights. Raises RuntimeError unless all of them ran in FP8."""
    from reference_impl.fp8_record import FP8_NAME, precision_facts

    counted = precision_facts(trainer)
    if counted["dtype"] != FP8_NAME:
        raise RuntimeError(f"only {counted['fp8_products']} of {counted['frozen_products']} products run in FP8")
    return {"products": FP8_NAME}
