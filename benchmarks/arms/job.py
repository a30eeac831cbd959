"""The job that every arm gets, and the interface that every opened arm has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from reference_impl.config import MODEL_PRESETS, ModelConfig
from reference_impl.data import TextBatches, read_text, tokenize

RANK = 16
ALPHA = 32.0
LEARNING_RATE = 2e-4
MAX_NORM = 1.0
SEED = 0

LORA_TARGETS = ["q_proj", "v_proj"]
ALL_LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@dataclass(frozen=True)
class Job:
    """The task of one process: one arm at one shape. Both Hugging Face checkpoints have the same weights."""

    arm: str
    model: str
    batch_size: int
    seq_len: int
    device: str
    checkpoint: str
    # a checkpoint with the same weights and with a tokenizer; Unsloth loads no model without a tokenizer
    tokenized: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def config(self) -> ModelConfig:
        return MODEL_PRESETS[self.model]

    def batches(self) -> TextBatches:
        """Return the batches that all arms train on. A batch depends only on the step's index."""
        return TextBatches(tokenize(read_text(None), None), self.config.vocab_size, SEED)


@dataclass(frozen=True)
class OpenedArm:
    """An arm that is ready to train. ``step`` enqueues one step and returns its loss (0-d). It returns None if the arm
    has no loss."""

    step: Callable[[int], Tensor | None]
    facts: dict[str, Any]
    after_first_step: Callable[[], dict[str, Any]] = dict


def device_batch(batches: TextBatches, job: Job, index: int) -> Tensor:
    """Return the tokens [B, S] of batch ``index`` on the job's device, copied without a host sync."""
    tokens, _ = batches.batch(index, job.batch_size, job.seq_len)
    device = torch.device(job.device)
    return tokens.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tokens
