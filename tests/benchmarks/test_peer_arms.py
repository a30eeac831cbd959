"""What the arms of other projects are given, where it decides what they train."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import Tensor

from benchmarks.arms import fused_peers
from benchmarks.arms.job import Job
from benchmarks.peer_checkpoint import _double_nf4, _plain_nf4, torchao_nf4


class Model(torch.nn.Module):
    """As transformers' model whose `forward` Liger has patched: the loss is a function of a module of Liger's."""

    def __init__(self, liger: ModuleType) -> None:
        super().__init__()
        self.liger = liger
        self.embedding = torch.nn.Embedding(256, 4)

    def forward(self, input_ids: Tensor, labels: Tensor) -> SimpleNamespace:
        return SimpleNamespace(loss=self.liger.LigerForCausalLMLoss(self.embedding(input_ids).tanh(), labels))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo's, at its break
def test_liger_loss_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[bool] = []

    def loss(hidden: Tensor, _labels: Tensor) -> Tensor:
        compiled.append(torch.compiler.is_compiling())
        return hidden.square().mean()

    kernels, model = ModuleType("liger_kernel.transformers"), ModuleType("liger_kernel.transformers.model.qwen2")
    kernels.__dict__["apply_liger_kernel_to_qwen2"] = lambda **_: None
    model.__dict__["LigerForCausalLMLoss"] = loss
    modules = {module.__name__: module for module in (kernels, model)}
    monkeypatch.setattr(fused_peers, "import_module", modules.__getitem__)
    monkeypatch.setattr(fused_peers, "peft_model", lambda _job: Model(model))
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    opened = fused_peers.open_liger(Job("hf_liger_compiled", "tiny", 2, 8, "cpu", "", ""))
    assert opened.step(0) is not None
    assert compiled == [False]
    assert opened.facts["loss"] == "Liger's, not compiled"


def exact_weights() -> Tensor:
    """[512, 128] of numbers that every machine computes alike."""
    numbers = ((torch.arange(512 * 128) * 7919) % 2003 - 1001) / 2**15
    return numbers.view(512, 128) * ((torch.arange(512) % 7 + 1) / 4)[:, None]


@pytest.mark.parametrize(
    ("dtype", "digest"), [(torch.bfloat16, "bd47b7a7ed6668be"), (torch.float32, "748395ec693a7dbd")]
)
def test_the_torchao_quantization_has_the_recorded_digest(dtype: torch.dtype, digest: str) -> None:
    """The recorded digest is that of `to_nf4(weights).get_original_weight()` in torchao 0.15.0, used by torchtune."""
    found = torchao_nf4(exact_weights().to(dtype))
    assert hashlib.sha256(found.view(torch.uint8).numpy().tobytes()).hexdigest()[:16] == digest


def test_torchao_nf4_of_bfloat16_loses_ten_times_the_error_of_double_quantization() -> None:
    weights = torch.randn(512, 1536, generator=torch.Generator().manual_seed(0)).mul(0.02).bfloat16()
    plain = _plain_nf4(weights)

    def lost(other: Tensor) -> float:
        return float((other.float() - plain).norm() / plain.norm())

    assert lost(_double_nf4(weights)) == pytest.approx(0.0021, rel=0.1)
    assert lost(torchao_nf4(weights.float())) < 0.005
    assert lost(torchao_nf4(weights)) == pytest.approx(0.023, rel=0.1)


def test_the_benchmark_packs_the_torchao_version_of_the_recorded_digest() -> None:
    packed = (Path(__file__).parents[2] / "benchmarks" / "pack_peers.sh").read_text()
    assert "torchtune=(torchtune==0.6.1 torchao==0.15.0)" in packed
    assert "liger_kernel==0.8.5" in packed
