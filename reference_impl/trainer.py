"""The reference trainer: QLoRA fine-tuning without autograd and without a host sync.

    trainer = Trainer(TrainConfig.preset("tiny"))
    for index in range(100):
        loss = trainer.step(index)          # 0-d tensor on the device

A capture needs all of the following properties:

- `prepare(index)` copies batch ``index`` and its learning rate into static tensors. `body()` is the whole step on
  static tensors: forward, backward, clip, optimizer. It reads no Python state that changes between steps, and never
  waits for the device.
- `forward_body()` and `backward_body()` are two halves of the same step, so that backward, clip and optimizer can be
  captured without the forward pass. Both halves use the same static activations. `forward_body()` must have run once
  without a capture before `backward_body()` is captured.
- With micro-batches, `body()` runs forward and backward of each micro-batch, then clip and optimizer once.
- With ranks, each rank takes its rows of a batch, and `update()` begins with the sum of the ranks' gradients.
- `state_tensors()` returns everything that `body()` changes, so that a warm-up or a recording can be undone.
- `set_shape()` selects the static batch buffers of another shape. Each shape keeps its own buffers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from reference_impl import gemm, ops
from reference_impl.accumulation import Accumulation
from reference_impl.attention import StepShape
from reference_impl.checkpoint import CheckpointWeights, RandomWeights, WeightSource, read_config
from reference_impl.clip import GradientClip
from reference_impl.config import MODEL_PRESETS, TINY_CHECKPOINT, ModelConfig, TrainConfig, learning_rate_at
from reference_impl.data import TextBatches, read_text, tokenize
from reference_impl.data_parallel import Ranks
from reference_impl.errors import ReferenceImplError
from reference_impl.fp8_model import Fp8Model
from reference_impl.model import Model, ModelContext
from reference_impl.optimizer import FlatAdamW


@dataclass
class StaticBuffers:
    """The tensors for batches of one shape. Their addresses never change."""

    tokens: Tensor  # int64 [batch, seq_len]; with k micro-batches [k, batch / k, seq_len]
    targets: Tensor  # the same shape as `tokens`
    shape: StepShape  # number and length of the sequences that pass through the model at the same time
    # activations, if forward and backward are captured in separate graphs; otherwise None
    context: ModelContext | None = None


def resolve_device(name: str) -> torch.device:
    """Return the device with this name. For "auto" return the current CUDA device, or the CPU if there is none.

    Raises `ReferenceImplError` for CUDA on a machine without CUDA.
    """
    available = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda", torch.cuda.current_device()) if available else torch.device("cpu")
    device = torch.device(name)
    if device.type == "cuda" and not available:
        raise ReferenceImplError("device", f"got {name!r}, but no CUDA device is available", "use device='cpu'")
    return device


def checkpoint_directory(config: TrainConfig) -> Path | None:
    """Return the directory of the weights of ``config.model``, or None for random weights from the seed."""
    if isinstance(config.model, ModelConfig):
        return None
    if config.model == "tiny":
        return TINY_CHECKPOINT
    return None if config.model in MODEL_PRESETS else Path(config.model)


def model_source(config: TrainConfig, device: torch.device) -> tuple[ModelConfig, WeightSource, Path | None]:
    """Return the configuration and the frozen weights of ``config.model``, and the path of its tokenizer.

    The path is None if each byte of the text is a token.
    """
    directory = checkpoint_directory(config)
    if directory is None:
        shape = config.model if isinstance(config.model, ModelConfig) else MODEL_PRESETS[config.model]
        return shape, RandomWeights(shape, config.seed, device), None
    model_config = read_config(directory)
    tokenizer = directory / "tokenizer.json"
    source = CheckpointWeights(directory, model_config, device)
    return model_config, source, tokenizer if tokenizer.is_file() else None


class Trainer:
    """One QLoRA training. On one machine, two trainers with equal configurations are bitwise equal at every step.

    ``ranks``: the ranks that train together, or None for a single process. A batch of all ranks has
    ``config.batch_size`` sequences for each rank.
    """

    def __init__(self, config: TrainConfig, ranks: Ranks | None = None) -> None:
        self.config = config
        self.ranks = ranks
        self.device = resolve_device(config.device)
        default = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        self.dtype = default if config.dtype == "auto" else getattr(torch, config.dtype)
        self.model_config, source, tokenizer = model_source(config, self.device)
        with torch.no_grad():
            model = Fp8Model if config.precision == "fp8" else Model
            self.model = model(self.model_config, config, source, self.device, self.dtype)
        gemm.install(self.model.blocks, config.gemm)
        self.trainable = self.model.trainable
        self.optimizer = FlatAdamW(self.trainable.flat, config)
        slots = self.trainable.slots
        self.clip = GradientClip([slot.size for slot in slots], [slot.layer for slot in slots], config, self.device)
        parts = config.micro_batches
        self.accumulation = Accumulation(self.model, parts, 1 if ranks is None else ranks.count) if parts > 1 else None
        self.data = TextBatches(tokenize(read_text(config.data), tokenizer), self.model_config.vocab_size, config.seed)
        self._buffers: dict[tuple[int, int], StaticBuffers] = {}
        self._read: tuple[tuple[int, torch.Size] | None, tuple[Tensor, ...]] = None, ()
        self.static = self.set_shape(config.seq_len)

    def set_shape(self, seq_len: int, batch_size: int | None = None) -> StaticBuffers:
        """Select batches of this shape for later steps. Return its static buffers, which are created only once."""
        if seq_len < 1:
            raise ReferenceImplError("seq_len", f"got {seq_len}", "use an integer of at least 1")
        batch = self.config.batch_size if batch_size is None else batch_size
        if batch < 1:
            raise ReferenceImplError("batch_size", f"got {batch}", "use an integer of at least 1")
        key = (batch, seq_len)
        if key not in self._buffers:
            model = self.model_config
            cos, sin = ops.rope_tables(seq_len, model.head_dim, model.rope_theta, self.device)
            parts = self.config.micro_batches
            if batch % parts:
                raise ReferenceImplError("batch_size", f"got {batch}", f"use a multiple of micro_batches ({parts})")
            size = key if parts == 1 else (parts, batch // parts, seq_len)
            tokens = torch.zeros(size, dtype=torch.int64, device=self.device)
            shape = StepShape(batch // parts, seq_len, cos, sin)
            self._buffers[key] = StaticBuffers(tokens, torch.zeros_like(tokens), shape)
        self.static = self._buffers[key]
        return self.static

    def batch(self, index: int) -> tuple[Tensor, Tensor]:
        """Return this rank's rows of batch ``index`` in the current shape: tokens and targets, int64 on the CPU."""
        static = self.static
        tokens, targets = self.data.batch(index, self.mean_over // static.shape.seq_len, static.shape.seq_len)
        if self.ranks is not None:
            tokens, targets = self.ranks.rows(tokens), self.ranks.rows(targets)
        return tokens.view(static.tokens.shape), targets.view(static.tokens.shape)

    @property
    def mean_over(self) -> int:
        """Return the number of tokens of one update (all micro-batches and ranks). The loss is the mean over these
        tokens."""
        return self.static.tokens.numel() * (1 if self.ranks is None else self.ranks.count)

    def prepare(self, index: int) -> None:
        """Copy batch ``index`` and its learning rate into the static tensors, without waiting for the device."""
        self.optimizer.learning_rate.fill_(learning_rate_at(self.config, index))
        self.read_ahead(index)
        for static, value in zip((self.static.tokens, self.static.targets), self._read[1], strict=True):
            static.copy_(value, non_blocking=True)

    def read_ahead(self, index: int) -> None:
        """Read batch ``index`` into host memory, unless it is already there. Call this while the device is busy."""
        wanted = (index, self.static.tokens.shape)
        if self._read[0] != wanted:
            # Use new pinned memory for each batch. torch does not reuse pinned memory before the copy from this memory
            # has ended.
            on_gpu = self.device.type == "cuda"
            self._read = wanted, tuple(value.pin_memory() if on_gpu else value for value in self.batch(index))

    @torch.no_grad()
    def body(self) -> Tensor:
        """Run one whole step on the static tensors. Return the loss before the update (0-d)."""
        loss = self.gradients_body()
        self.update()
        return loss

    @torch.no_grad()
    def gradients_body(self) -> Tensor:
        """Run forward and backward on the static tensors, and return the loss. Gradients are not summed over ranks."""
        static = self.static
        if self.accumulation is not None:
            return self._own_mean(self.accumulation.gradients(static.tokens, static.targets, static.shape))
        loss, context = self._forward()
        self.model.backward(context, static.shape, consume=True)
        return loss

    @torch.no_grad()
    def forward_body(self) -> Tensor:
        """Run the first half of the step: forward, loss and the head's backward. Store activations in static tensors.

        Raises `ReferenceImplError` with micro-batches, because each micro-batch has its own forward and backward pass.
        """
        static = self.static
        if self.accumulation is not None:
            found = f"got {self.config.micro_batches}, but a step with micro-batches cannot be captured in two halves"
            raise ReferenceImplError("micro_batches", found, "capture the whole step, or use 1")
        loss, context = self._forward()
        if static.context is None:
            static.context = context
        else:
            for kept, fresh in zip(static.context.tensors(), context.tensors(), strict=True):
                kept.copy_(fresh)
        return loss

    @torch.no_grad()
    def backward_body(self) -> None:
        """Run the step's second half, from the static activations: backward, clip and optimizer."""
        if self.static.context is None:
            raise RuntimeError("backward_body() has no activations; call forward_body() first")
        self.model.backward(self.static.context, self.static.shape, consume=False)
        self.update()

    def _forward(self) -> tuple[Tensor, ModelContext]:
        static = self.static
        loss, context = self.model.forward(static.tokens, static.targets, static.shape, mean_over=self.mean_over)
        return self._own_mean(loss), context

    def _own_mean(self, part: Tensor) -> Tensor:
        """Return the mean loss over this rank's tokens. part: their losses' sum / (number of tokens of all ranks)."""
        return part if self.ranks is None else part * self.ranks.count

    def update(self) -> None:
        """Sum the flat gradient over ranks, clip this sum, and update the parameters."""
        if self.ranks is not None:
            self.ranks.sum_(self.trainable.gradient)
        self.clip.apply_(self.trainable.gradient)
        self.optimizer.update_(self.trainable.flat, self.trainable.gradient, self.clip.norms)

    def step(self, index: int) -> Tensor:
        """Run training step ``index``. Return a copy of the loss before the update (0-d). Later steps do not change the
        copy."""
        self.prepare(index)
        return self.body().clone()

    def state_tensors(self) -> dict[str, Tensor]:
        """Return, by name, every tensor that `body` changes and that exists longer than one step. The tensors'
        addresses never change."""
        return {
            "parameters": self.trainable.flat,
            "gradients": self.trainable.gradient,
            **self.trainable.working_tensors(),
            **self.optimizer.state_tensors(),
            **self.clip.state_tensors(),
            **({} if self.accumulation is None else self.accumulation.state_tensors()),
        }

    def parameters(self) -> dict[str, Tensor]:
        """Return float32 views of the trainable tensors, with names such as ``layers.<i>.lora_a_q``."""
        return self.trainable.parameters()

    def gradients(self) -> dict[str, Tensor]:
        """Return float32 views of the gradients of the last step after the clip, by the names of the parameters."""
        return self.trainable.gradients()

    def gradient_norms(self) -> tuple[Tensor, Tensor]:
        """Return the norms of the last step before the clip, and the scales of the clip.

        Both are float32 [layers], or [1] for a global clip.
        """
        return self.clip.norms, self.clip.scales

    def frozen_tensors(self) -> dict[str, Tensor]:
        """Return every tensor that training must not change."""
        return self.model.frozen_tensors()
