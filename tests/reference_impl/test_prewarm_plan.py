"""The plan names exactly the kernels that a step asks for, in every mode."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from budget import slow_but
from scaled_copy import scaled_copy_spec

from reference_impl import prewarm
from reference_impl.config import MODEL_PRESETS, ModelConfig, TrainConfig
from reference_impl.kernel_cache import Device
from reference_impl.kernel_recording import recorded
from reference_impl.kernels import registry
from reference_impl.kernels.registry import KernelSpec
from reference_impl.kernels.target import hopper
from reference_impl.prewarm import RunKernels, plan

TINY = MODEL_PRESETS["tiny"]
QWEN = MODEL_PRESETS["qwen2-1.5b"]
ONE_LAYER = replace(TINY, num_layers=1)
EQUAL_HEADS = replace(TINY, num_kv_heads=TINY.num_heads)
LLAMA = replace(TINY, attention_bias=False, tie_word_embeddings=False, rms_norm_eps=1e-5)
RAGGED = replace(
    TINY, hidden_size=24, num_heads=2, num_kv_heads=1, head_dim=8, intermediate_size=40, num_layers=2, vocab_size=70
)
MODES: dict[str, tuple[ModelConfig, dict[str, Any]]] = {
    "nf4": (TINY, {}),
    "full": (TINY, {"weights": "full"}),
    "tiled": (TINY, {"gemm": "tiled"}),
    "tiled-full-fp32": (TINY, {"gemm": "tiled", "weights": "full", "dtype": "float32"}),
    "half-products": (TINY, {"gemm": "fp16"}),
    "global-clip": (TINY, {"clip_scope": "global", "max_norm": 0.5}),
    "rank-3": (TINY, {"rank": 3, "gemm": "tiled"}),
    "ragged-chunks": (TINY, {"loss_chunk": 96, "batch_size": 3}),
    "one-layer": (ONE_LAYER, {}),
    "equal-heads": (EQUAL_HEADS, {}),
    "llama": (LLAMA, {}),
    "ragged": (RAGGED, {"weights": "full", "gemm": "tiled"}),
    "28-layers": (QWEN, {}),
    "fp8": (TINY, {"precision": "fp8"}),
    "fp8-one-layer": (ONE_LAYER, {"precision": "fp8", "loss_chunk": 96, "batch_size": 3}),
    "fp8-28-layers": (QWEN, {"precision": "fp8"}),
}


def keys(specs: list[KernelSpec] | tuple[KernelSpec, ...]) -> list[str]:
    return sorted(spec.key for spec in specs)


@pytest.mark.parametrize("mode", slow_but([mode for mode, (model, _) in MODES.items() if model is not QWEN], MODES))
def test_the_prewarm_plan_equals_the_kernels_that_a_step_launches(mode: str) -> None:
    model, settings = MODES[mode]
    config = replace(TrainConfig(model=model, rank=8, device="cpu"), **settings)
    seq_lens = (64,) if model is QWEN else (64, 128)  # what a second length adds does not depend on how many layers
    planned, launched = plan(model, config, seq_lens), recorded(model, config, seq_lens)
    assert keys(planned) == keys(launched)
    identities = {spec.key: spec.identity for spec in launched}
    assert {spec.key: spec.identity for spec in planned} == identities


def test_weight_matrices_that_cannot_be_joined_are_planned_separately() -> None:
    # qkv is 32 x 24 = 768 elements, output 24 x 16 = 384: the latter's scales would end off a 16-byte boundary
    model = replace(RAGGED, intermediate_size=64)
    config = TrainConfig(model=model, rank=8, device="cpu")
    shapes = [spec.shape for spec in plan(model, config, (64,)) if spec.op == "nf4.dequantize"]
    assert shapes == [(32, 24), (24, 16), (128, 24), (24, 64)]
    assert keys(plan(model, config, (64,))) == keys(recorded(model, config, (64,)))


def test_the_28_layer_plan_contains_the_expected_kernel_keys() -> None:
    config = TrainConfig.preset("qwen2-1.5b", device="cpu", max_norm=1.0, loss_chunk=512)
    found = keys(plan(QWEN, config, (512,)))
    assert "rms_norm.add_forward/2048x1536/bf16/eps=1e-06/w4s1" in found
    assert "products.down_swiglu_backward/2048x8960x1536/bf16/columns=192/w12s4" in found
    assert "products.head_logits/512x151936x1536/bf16/columns=192/w12s4" in found
    assert "cross_entropy.from_statistics/512x151936x792/bf16/-/w16s1" in found
    assert "clip.scale_reduce/2240x28/fp32/max_norm=1.0,eps=1e-06/w4s1" in found


def test_a_synchronizing_clip_has_no_kernel() -> None:
    config = TrainConfig(clip_mode="synchronizing", device="cpu")
    assert [spec.op for spec in plan(TINY, config, (64,)) if spec.op.startswith("clip")] == []


def test_a_kernel_is_planned_once_for_equal_sequence_lengths() -> None:
    kernels = RunKernels(TrainConfig.preset("tiny", device="cpu"), (64, 64))
    assert keys(kernels.plan()) == keys(plan(kernels.model, kernels.config, (64,)))


@pytest.mark.parametrize(("target", "cuda"), [("sm_90", True), ("sm_80", False), ("sm_120", False)])
def test_a_hopper_kernel_is_planned_and_launched_only_for_hopper(
    target: str, cuda: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    swiglu = registry.load("swiglu")
    of_triton = swiglu.forward_spec

    def forward_spec(tokens: int, intermediate: int, dtype: str) -> KernelSpec:
        spec: KernelSpec = of_triton(tokens, intermediate, dtype)
        return replace(spec, function=scaled_copy_spec(8, 32).function) if hopper() else spec

    def stand_in(target: str) -> Device:
        compiled = SimpleNamespace(asm={"ptx": ""}, metadata=SimpleNamespace(shared=0, num_warps=4))
        return Device(target, lambda _spec: compiled, lambda *_: None)

    monkeypatch.setattr(swiglu, "forward_spec", forward_spec)
    monkeypatch.setattr(prewarm, "named_target", stand_in)
    inventory = RunKernels(TrainConfig.preset("tiny", device="cpu"), (64,)).cross_compiled(target)
    for kernels in (inventory.planned, inventory.used):
        [forward] = [kernel for kernel in kernels if kernel.key.startswith("swiglu.forward")]
        assert (forward.name == "scaled_copy") == cuda
    assert sorted(kernel.key for kernel in inventory.planned) == sorted(kernel.key for kernel in inventory.used)


@pytest.mark.parametrize("precision", ["dtype", "fp8"])
def test_recording_kernels_leaves_no_state_in_the_process(precision: Any) -> None:
    """It also leaves no cached tensors without values, which later steps of the process would use."""
    import torch

    from reference_impl import fp8, kernel_recording, ops
    from reference_impl.trainer import Trainer

    kernel_recording._recorded.cache_clear()
    recorded(TINY, TrainConfig(device="cpu", precision=precision), (16,))
    assert "naive" in ops._pick("clip", torch.zeros(1)).__name__
    after = Trainer(TrainConfig.preset("tiny", device="cpu", precision=precision))
    loss = after.step(0)
    assert loss.item() > 0
    assert after.trainable.flat.isfinite().all()
    for dtype, values in fp8._VALUES.items():
        assert torch.equal(values.nan_to_num(), torch.arange(256, dtype=torch.uint8).view(dtype).float().nan_to_num())


def test_a_cpu_trainer_needs_no_kernel_cache_to_be_opened() -> None:
    kernels = RunKernels(TrainConfig.preset("tiny", device="cpu"), (64,))
    kernels.open(prewarm=True)
    kernels.uploaded()
    kernels.close()
    with pytest.raises(RuntimeError, match="launched only on CUDA"):
        kernels.inventory()
