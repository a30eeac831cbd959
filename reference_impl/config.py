"""Settings of a training run: frozen and validated dataclasses, importable without torch.

`ModelConfig` is the shape of a Qwen2-style decoder, and `TrainConfig` holds the settings of one training run.
`TrainConfig.preset("tiny", seed=1)` fills in the fixed values of a preset model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from reference_impl.errors import ReferenceImplError

ClipScope = Literal["per_layer", "global"]
ClipMode = Literal["fused", "synchronizing"]
WeightFormat = Literal["nf4", "nf4_dense", "full"]
DtypeName = Literal["auto", "bfloat16", "float32"]
GemmPath = Literal["cublas", "tiled", "fp16", "bf16"]
Precision = Literal["dtype", "fp8"]

TINY_CHECKPOINT = Path(__file__).parent / "checkpoints" / "tiny"


def _require(*, condition: bool, argument: str, found: object, remedy: str) -> None:
    if not condition:
        raise ReferenceImplError(argument, f"got {found!r}", remedy)


def _require_positive(config: object, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        ok = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        _require(condition=ok, argument=name, found=value, remedy="use an integer of at least 1")


def _require_choice(config: object, name: str, choices: tuple[str, ...]) -> None:
    value = getattr(config, name)
    _require(condition=value in choices, argument=name, found=value, remedy=f"choose one of {', '.join(choices)}")


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a decoder. ``attention_bias``: True for Qwen2, which has biases in q, k and v; False for Llama."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rope_theta: float = 1e4
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = True
    attention_bias: bool = True

    def __post_init__(self) -> None:
        _require_positive(
            self,
            "hidden_size",
            "intermediate_size",
            "num_layers",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "vocab_size",
        )
        _require(
            condition=self.num_heads % self.num_kv_heads == 0,
            argument="num_kv_heads",
            found=self.num_kv_heads,
            remedy=f"use a divisor of num_heads ({self.num_heads})",
        )
        _require(
            condition=self.head_dim % 2 == 0,
            argument="head_dim",
            found=self.head_dim,
            remedy="use an even number, because rotary embedding rotates pairs of elements",
        )
        for name in ("rope_theta", "rms_norm_eps"):
            value = getattr(self, name)
            ok = math.isfinite(value) and value > 0
            _require(condition=ok, argument=name, found=value, remedy="use a finite positive number")

    @property
    def query_dim(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def qkv_dim(self) -> int:
        """Return the number of rows of the fused projection to query, key and value heads (in this order)."""
        return self.query_dim + 2 * self.kv_dim


MODEL_PRESETS: dict[str, ModelConfig] = {
    "tiny": ModelConfig(
        hidden_size=128,
        intermediate_size=384,
        num_layers=4,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        vocab_size=256,
    ),
    # The published shape of Qwen2-1.5B. Its weights are random numbers from a seed.
    "qwen2-1.5b": ModelConfig(
        hidden_size=1536,
        intermediate_size=8960,
        num_layers=28,
        num_heads=12,
        num_kv_heads=2,
        head_dim=128,
        vocab_size=151936,
        rope_theta=1e6,
    ),
}

_CHUNK_TOKENS: dict[Precision, int] = {"dtype": 512, "fp8": 1024}
_TRAIN_PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"seq_len": 64, "rank": 8, "alpha": 16.0, "learning_rate": 1e-2, "max_norm": 0.1},
    # These settings were tested on an H200, without graphs, in 100 steps of batch size 4. The mean loss of the last 20
    # steps was 5.39, 5.17 and 4.70 at sequence lengths 32, 128 and 512. The loss of the untrained control was 12.16,
    # 12.12 and 12.14. In every step, the clip was active in at least one layer.
    "qwen2-1.5b": {"seq_len": 512, "learning_rate": 1e-3, "max_norm": 0.1},
}


@dataclass(frozen=True)
class TrainConfig:
    """The settings of one training run.

    ``model``: a preset name, a Hugging Face model directory, or a `ModelConfig` (with seeded random weights).
    ``device``: "auto" means CUDA if there is a GPU. ``dtype``: "auto" means bfloat16 on CUDA and float32 on a CPU.
    ``learning_rate``: the peak of the schedule, which is a linear warm-up and then a cosine down to a tenth of the
    peak; 0 trains nothing.
    ``weight_decay``: applied to every trainable tensor, as in one parameter group of `torch.optim.AdamW`.
    ``data``: a text file or folder; None means the text in `reference_impl/text/`.
    ``micro_batches``: the number of equal parts of a batch that are processed one after the other for one update.
    ``loss_chunk``: the number of tokens whose logits exist at one time. None means 512, or 1024 in FP8. A product in
    FP8 takes half the time, so 1024 tokens give launches the same share of the time as 512 without FP8.
    ``weights``: "nf4" dequantizes the frozen matrices at each use. "nf4_dense" dequantizes the same values once and
    keeps them, in four times the memory. "full" keeps the weights without rounding them to NF4.
    ``gemm``: the code that computes the backward products, see `reference_impl.gemm`.
    ``precision``: the number format of the operands of products with frozen weights: "fp8" (`reference_impl.fp8`), or
    "dtype" for the format in the setting ``dtype``.
    ``adapters``: False leaves LoRA out of the forward pass; its factors still exist, with the same initial values.
    """

    model: str | ModelConfig = "tiny"
    batch_size: int = 4
    seq_len: int = 64
    steps: int = 100
    seed: int = 0
    rank: int = 16
    alpha: float = 32.0
    learning_rate: float = 2e-4
    warmup_steps: int = 5
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    max_norm: float = 1.0
    clip_scope: ClipScope = "per_layer"
    clip_mode: ClipMode = "fused"
    weights: WeightFormat = "nf4"
    dtype: DtypeName = "auto"
    device: str = "auto"
    data: str | None = None
    loss_chunk: int | None = None
    gemm: GemmPath = "cublas"
    precision: Precision = "dtype"
    adapters: bool = True
    micro_batches: int = 1

    @property
    def chunk_tokens(self) -> int:
        """Return the number of tokens whose logits exist at one time: ``loss_chunk``, or the default if it is None."""
        return self.loss_chunk or _CHUNK_TOKENS[self.precision]

    @property
    def micro_batch_size(self) -> int:
        """Return the number of sequences that pass through the model at one time."""
        return self.batch_size // self.micro_batches

    @classmethod
    def preset(cls, model: str, **overrides: Any) -> TrainConfig:
        """Return the preset configuration for ``model``, with the fields in ``overrides`` replaced. A model without a
        preset gets the fields' defaults."""
        return cls(**{"model": model, **_TRAIN_PRESETS.get(model, {}), **overrides})

    def __post_init__(self) -> None:
        _require_positive(self, "batch_size", "seq_len", "steps", "rank", "micro_batches")
        if self.loss_chunk is not None:
            _require_positive(self, "loss_chunk")
        _require(
            condition=self.batch_size % self.micro_batches == 0,
            argument="micro_batches",
            found=self.micro_batches,
            remedy=f"use a divisor of batch_size ({self.batch_size})",
        )
        _require_choice(self, "clip_scope", get_args(ClipScope))
        _require_choice(self, "clip_mode", get_args(ClipMode))
        _require_choice(self, "weights", get_args(WeightFormat))
        _require_choice(self, "dtype", get_args(DtypeName))
        _require_choice(self, "gemm", get_args(GemmPath))
        _require_choice(self, "precision", get_args(Precision))
        for name in ("learning_rate", "weight_decay", "warmup_steps", "seed"):
            value = getattr(self, name)
            ok = math.isfinite(value) and value >= 0
            _require(condition=ok, argument=name, found=value, remedy="use a finite number that is not negative")
        for name in ("alpha", "eps", "max_norm"):
            value = getattr(self, name)
            ok = math.isfinite(value) and value > 0
            _require(condition=ok, argument=name, found=value, remedy="use a finite positive number")
        for name in ("beta1", "beta2"):
            value = getattr(self, name)
            _require(condition=0 <= value < 1, argument=name, found=value, remedy="use a number in [0, 1)")
        self._check_model()

    def _check_model(self) -> None:
        if isinstance(self.model, ModelConfig) or self.model in MODEL_PRESETS:
            return
        _require(
            condition=Path(self.model).is_dir(),
            argument="model",
            found=self.model,
            remedy=f"name a preset ({', '.join(MODEL_PRESETS)}) or a directory with config.json and safetensors",
        )


def learning_rate_at(config: TrainConfig, index: int) -> float:
    """Return the learning rate of step ``index`` (from 0): a linear warm-up, then a cosine to a tenth of the peak.

    From ``config.steps`` on, the rate remains a tenth of the peak.
    """
    if index < config.warmup_steps:
        return config.learning_rate * (index + 1) / config.warmup_steps
    span = max(1, config.steps - config.warmup_steps)
    progress = min(1.0, (index - config.warmup_steps) / span)
    return config.learning_rate * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress)))
