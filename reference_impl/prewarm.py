"""Prewarm: compile and load every kernel that a run needs, by key, before any weight is copied to the device.

`plan` computes the kernels from the model's shape, the batch, the sequence lengths, the rank, the dtype and other
settings. It calls `specializations` of each kernel module, and a launch uses the same code to name its kernel. Kernels
of libraries have no keys and are not in the plan. Handles, workspaces and plans of libraries are created by a
rehearsal. The rehearsal is one step of a temporary model with one layer of the same shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from harness.system.protocol import Kernel, KernelInventory, KernelLedger
from reference_impl.clip import EPS
from reference_impl.config import ModelConfig, TrainConfig
from reference_impl.kernel_cache import KernelCache, cache_key, current_device, named_target, ptx_text
from reference_impl.kernels import registry
from reference_impl.kernels.clip.naive import BLOCK as CLIP_BLOCK
from reference_impl.kernels.nf4.naive import BLOCK as NF4_BLOCK
from reference_impl.kernels.registry import KernelSpec
from reference_impl.kernels.target import planning_for
from reference_impl.lora import layout
from reference_impl.trainer import Trainer, model_source, resolve_device

CUBLAS = "cublas"
# Size of the square matrices whose product creates a library's handle. Any size works.
_HANDLE_SIZE = 16
# Matrices of a group are dequantized in one launch if the number of elements of each is a multiple of this number. The
# scales of this many elements take 16 bytes.
_JOINED_ELEMENTS = 4 * NF4_BLOCK


def plan(model: ModelConfig, config: TrainConfig, seq_lens: Sequence[int]) -> list[KernelSpec]:
    """Return the kernels that a run's steps launch on CUDA, for all lengths `seq_lens`. Each kernel occurs once."""
    dtype = kernel_dtype(config)
    specs = [*_frozen_matrices(model, config, dtype), *_clip(model, config)]
    for seq_len in seq_lens:
        specs += _activations(model, config, dtype, seq_len)
        specs += _lora_gradients(model, config, dtype, seq_len)
    return list(dict.fromkeys(specs))


def kernel_dtype(config: TrainConfig) -> str:
    """Return Triton's name for the compute dtype on CUDA, such as `bf16`. On CUDA, `auto` means bfloat16."""
    return {"auto": "bf16", "bfloat16": "bf16", "float32": "fp32"}[config.dtype]


def _frozen_matrices(model: ModelConfig, config: TrainConfig, dtype: str) -> Iterator[KernelSpec]:
    """Yield the kernels that dequantize a layer's frozen matrices. Yield none if the weights are kept dense."""
    if config.weights != "nf4":
        return
    if config.precision == "fp8":
        yield from _fp8_matrices(model)
        return
    hidden = model.hidden_size
    attention = [(model.qkv_dim, hidden), (hidden, model.query_dim)]
    if all(rows * cols % _JOINED_ELEMENTS == 0 for rows, cols in attention):
        # One launch dequantizes all matrices of attention, because `dense.MatrixGroup` puts them into one buffer.
        attention = [(sum(rows * cols for rows, cols in attention) // NF4_BLOCK, NF4_BLOCK)]
    for rows, cols in [*attention, (2 * model.intermediate_size, hidden), (hidden, model.intermediate_size)]:
        yield from registry.load("nf4").specializations(rows=rows, cols=cols, dtype=dtype)


def _fp8_matrices(model: ModelConfig) -> Iterator[KernelSpec]:
    """Yield the kernels that convert each matrix of a layer to FP8, untransposed and transposed."""
    hidden, wide = model.hidden_size, model.intermediate_size
    for rows, cols in ((model.qkv_dim, hidden), (hidden, model.query_dim), (2 * wide, hidden), (hidden, wide)):
        yield from registry.load("fp8_nf4").specializations(rows=rows, cols=cols)


def _activations(model: ModelConfig, config: TrainConfig, dtype: str, seq_len: int) -> Iterator[KernelSpec]:
    """Yield the kernels for activations: rotary embedding, attention, norms, SwiGLU and the loss."""
    tokens = config.micro_batch_size * seq_len
    rotated = model.num_heads + model.num_kv_heads
    yield registry.load("rope").add_rotate_spec(
        tokens, model.qkv_dim, 2 * config.rank, seq_len, rotated, model.head_dim, dtype
    )
    yield from registry.load("attention").specializations(
        batch=config.micro_batch_size,
        seq_len=seq_len,
        heads=model.num_heads,
        kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        dtype=dtype,
    )
    yield from _norms(model, config, dtype, tokens)
    yield from _mlp(model, config, dtype, tokens)
    yield from _loss(model, config, dtype, tokens)


def _loss(model: ModelConfig, config: TrainConfig, dtype: str, tokens: int) -> Iterator[KernelSpec]:
    """Yield the kernels of the loss, and of the head's product if `kernels/products` supports its shape."""
    sizes = {"tokens": tokens, "vocabulary": model.vocab_size, "chunk": config.chunk_tokens, "dtype": dtype}
    if config.precision == "fp8":
        yield from registry.load("fp8_loss").specializations(**sizes)
        return
    yield from registry.load("products").head_specializations(hidden=model.hidden_size, **sizes)


def _mlp(model: ModelConfig, config: TrainConfig, dtype: str, tokens: int) -> Iterator[KernelSpec]:
    """Yield the kernels of SwiGLU, or fused ones that also compute the products before and after it. Without FP8, also
    yield the fused kernels for a block's other products. The shape decides which fused kernels exist."""
    if config.precision == "fp8":
        yield from registry.load("fp8_products").specializations(
            tokens=tokens, hidden=model.hidden_size, intermediate=model.intermediate_size, dtype=dtype
        )
        return
    yield from registry.load("products").specializations(
        tokens=tokens,
        hidden=model.hidden_size,
        query=model.query_dim,
        qkv=model.qkv_dim,
        intermediate=model.intermediate_size,
        ranks=2 * config.rank,
        dtype=dtype,
    )


def _norms(model: ModelConfig, config: TrainConfig, dtype: str, tokens: int) -> Iterator[KernelSpec]:
    """Yield the kernels of the norms. In FP8, also yield the kernels that quantize attention's output and its
    gradient."""
    sizes = {"tokens": tokens, "hidden": model.hidden_size, "eps": model.rms_norm_eps, "dtype": dtype}
    if config.precision != "fp8":
        norms = registry.load("rms_norm").specializations(**sizes)
        widths = (model.hidden_size, model.query_dim, model.intermediate_size)
        added = registry.load("products").adds(tokens, *widths, registry.torch_dtype(dtype))
        yield from (spec for spec in norms if not added or spec.op != "rms_norm.add_forward")
        return
    yield from registry.load("fp8_norm").specializations(**sizes, blocks=model.num_layers)
    for cols in {model.query_dim, model.qkv_dim}:
        yield from registry.load("fp8_rows").specializations(rows=tokens, cols=cols, dtype=dtype)


def _lora_gradients(model: ModelConfig, config: TrainConfig, dtype: str, seq_len: int) -> Iterator[KernelSpec]:
    """Yield the kernels that compute LoRA's gradients and reduce the gains' gradients.

    On the path `cublas` these kernels are fused. The products of a library have no key, so they are left out.
    """
    tokens, ranks = config.micro_batch_size * seq_len, 2 * config.rank
    if config.gemm == "cublas":
        yield from registry.load("lora_gradients").specializations(
            tokens=tokens, outputs=model.qkv_dim, hidden=model.hidden_size, ranks=ranks, dtype=dtype
        )
        return
    yield registry.load("rms_norm").reduce_gain_spec(tokens, model.hidden_size, 2)
    if config.gemm == "tiled":
        for k, n in ((model.qkv_dim, ranks), (ranks, model.hidden_size)):
            yield registry.load("gemm").backward_b_spec(tokens, k, n, dtype, dtype, "fp32", accumulate=False)


def _clip(model: ModelConfig, config: TrainConfig) -> Iterator[KernelSpec]:
    """Yield the kernels of the fused clip over all trainable tensors. The synchronizing clip has no kernels."""
    if config.clip_mode != "fused":
        return
    yield from registry.load("clip").specializations(
        partials=sum(math.ceil(slot.size / CLIP_BLOCK) for slot in layout(model, config.rank)),
        groups=model.num_layers if config.clip_scope == "per_layer" else 1,
        max_norm=config.max_norm,
        eps=EPS,
    )


def make_library_handles(device: torch.device) -> None:
    """Create cuBLAS's handle and workspace for the current stream, in this thread and in the device's autograd
    thread."""
    matrix = torch.ones(_HANDLE_SIZE, _HANDLE_SIZE, dtype=torch.bfloat16, device=device, requires_grad=True)
    (matrix @ matrix).sum().backward()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize(device)


def rehearse(model: ModelConfig, config: TrainConfig, seq_lens: Sequence[int]) -> None:
    """Run one step of each shape on a temporary layer of random weights, so that libraries are initialized.

    The kernels of the plan are not launched here. Their outputs stay uninitialized, which is harmless, because library
    calls accept any numbers.
    """
    trainer = Trainer(replace(config, model=replace(model, num_layers=1)))
    with registry.launching_by(_launch_nothing):
        for seq_len in seq_lens:
            trainer.set_shape(seq_len)
            trainer.step(0)
    torch.cuda.synchronize(trainer.device)


def _launch_nothing(_spec: KernelSpec, _arguments: tuple[Tensor, ...]) -> None:
    """Ignore a launch. The output tensors stay uninitialized."""


class RunKernels:
    """The kernels of one run: planned, prewarmed and launched, or cross-compiled on a machine without a GPU.

    The attributes `model_of_plan` and `seq_lens_of_plan` are the input of the plan. A planted fault replaces one of
    these two attributes, or one of the functions `plan`, `to_prewarm`, `key`, `ptx` and `warm_libraries`.
    """

    def __init__(self, config: TrainConfig, seq_lens: Sequence[int]) -> None:
        self.config = config
        self.seq_lens = tuple(dict.fromkeys(seq_lens))
        self.model: ModelConfig = model_source(config, torch.device("cpu"))[0]
        self.model_of_plan, self.seq_lens_of_plan = self.model, self.seq_lens
        self.plan: Callable[[], list[KernelSpec]] = self._plan
        self.to_prewarm: Callable[[], list[KernelSpec]] = self._all_planned
        self.key: Callable[[KernelSpec, str], str] = cache_key
        self.ptx: Callable[[KernelSpec, Any, str], str] = ptx_text
        self.warm_libraries: Callable[[], None] = self._warm_libraries
        self._cache: KernelCache | None = None

    def open(self, *, prewarm: bool) -> None:
        """Make launches on CUDA use the kernel cache. Call this before the weights are copied to the device.

        prewarm: also load all planned kernels now.
        """
        if resolve_device(self.config.device).type != "cuda":
            return
        self._cache = KernelCache(current_device(), self.key, self.ptx)
        self._cache.ledger.watch()
        registry.add_launcher(self._cache.launch)
        if prewarm:
            self._cache.ledger.phase("prewarm")
            for spec in self.to_prewarm():
                self._cache.load(spec)
            self.warm_libraries()
            torch.cuda.empty_cache()
        self._cache.ledger.phase("upload")

    def uploaded(self) -> None:
        """Record that the weights are on the device, so that later compiles and loads count for the training."""
        if self._cache is not None:
            torch.cuda.synchronize()
            self._cache.ledger.phase("train")

    def close(self) -> None:
        """Stop using the kernel cache for launches. A second call changes nothing."""
        if self._cache is not None:
            registry.remove_launcher(self._cache.launch)
            self._cache.ledger.unwatch()
            self._cache = None

    def _plan(self) -> list[KernelSpec]:
        return plan(self.model_of_plan, self.config, self.seq_lens_of_plan)

    def _all_planned(self) -> list[KernelSpec]:
        return self.plan()

    def _warm_libraries(self) -> None:
        make_library_handles(resolve_device(self.config.device))
        self._on_device().ledger.handle(CUBLAS)
        rehearse(self.model, self.config, self.seq_lens)

    def _on_device(self) -> KernelCache:
        if self._cache is None:
            raise RuntimeError(
                "the run has no kernel cache, because kernels are launched only on CUDA; open the run on a CUDA device"
            )
        return self._cache

    def inventory(self) -> KernelInventory:
        """Return the planned kernels and the kernels that launches requested so far, compiled for the CUDA device."""
        cache = self._on_device()
        return KernelInventory(_described(cache, self.plan()), _described(cache, cache.asked_for()))

    def ledger(self) -> KernelLedger:
        return self._on_device().ledger.as_evidence()

    def cross_compiled(self, target: str, *, with_used: bool = True) -> KernelInventory:
        """Return the planned kernels, compiled for the architecture `target`, such as `sm_90`. No GPU is needed.

        with_used: also return the kernels that a step launches.
        """
        from reference_impl.kernel_recording import recorded

        cache = KernelCache(named_target(target), self.key, self.ptx)
        with planning_for(target):
            planned = self.plan()
            used = recorded(self.model, self.config, self.seq_lens) if with_used else ()
        return KernelInventory(_described(cache, planned), _described(cache, used))


def _described(cache: KernelCache, specs: Sequence[KernelSpec]) -> list[Kernel]:
    return [cache.describe(spec) for spec in specs]
