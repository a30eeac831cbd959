"""The peer of a claim about accuracy: what it computes in, how it begins anew, and that its weights are NF4's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from harness.system.protocol import Arm, ServesAsPeer, Workload
from reference_impl.config import TINY_CHECKPOINT
from reference_impl.system import QLoRASystem
from reference_impl.transformers_twin.peer import PeerRun, TransformersPeer, reference_arithmetic

OPTIONS = {
    "rank": 8,
    "alpha": 16.0,
    "warmup_steps": 2,
    "beta1": 0.9,
    "beta2": 0.999,
    "eps": 1e-8,
    "weight_decay": 0.0,
}
WORKLOAD = Workload.model_validate(
    {"model": "tiny", "batch_size": 2, "seq_len": 16, "steps": 4, "needs": {"device": "cpu"}, "options": OPTIONS}
)
SETTINGS = {"learning_rate": 0.003, "max_norm": 0.1}


def opened(dtype: str, workload: Workload = WORKLOAD) -> PeerRun:
    pytest.importorskip("bitsandbytes")
    arm = Arm.model_validate({"dtype": dtype, **SETTINGS})
    return TransformersPeer().open(workload, arm, model_directory=str(TINY_CHECKPOINT))


@pytest.fixture(scope="module")
def peer() -> Iterator[PeerRun]:
    with opened("bfloat16") as run:
        yield run


@pytest.fixture(scope="module")
def reference() -> Iterator[PeerRun]:
    with opened("float64") as run:
        yield run


def test_the_transformers_peer_computes_in_bfloat16_and_trains_in_float32(peer: PeerRun) -> None:
    assert {tensor.dtype for tensor in peer.frozen().values()} == {torch.bfloat16}
    assert {tensor.dtype for tensor in peer.parameters().values()} == {torch.float32}
    # in bfloat16 the rotation's angles would be wrong by whole turns
    buffers = dict(peer._model.named_buffers())
    assert {buffer.dtype for name, buffer in buffers.items() if "inv_freq" in name} == {torch.float32}
    assert isinstance(peer, ServesAsPeer)


def test_a_float64_reference_has_only_float64_tensors_and_records_no_tf32(reference: PeerRun) -> None:
    tensors = [*reference.frozen().values(), *reference.parameters().values()]
    assert {tensor.dtype for tensor in tensors} == {torch.float64}
    facts = reference.facts()
    assert (facts["dtype"], facts["tf32"]) == ("float64", False)


def test_torchs_matmul_precision_is_restored_after_a_reference_run() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with reference_arithmetic():
            inside = torch.get_float32_matmul_precision()
        assert (inside, torch.get_float32_matmul_precision()) == ("highest", "high")
    finally:
        torch.set_float32_matmul_precision(before)


def test_a_reference_restarted_with_a_seed_trains_like_a_reference_opened_with_this_seed(reference: PeerRun) -> None:
    def trained(run: PeerRun) -> list[float]:
        return [float(run.step(index)) for index in range(3)]

    reference.restart(5)
    first = trained(reference)
    reference.restart(6)
    other = trained(reference)
    reference.restart(5)
    with opened("float64", WORKLOAD.model_copy(update={"seed": 5})) as fresh:
        assert first == trained(reference) == trained(fresh)
    assert first[0] != other[0]


def test_a_restarted_peer_starts_and_reads_like_the_trainer_with_every_seed(peer: PeerRun) -> None:
    for seed in (0, 7):
        peer.restart(seed)
        workload = WORKLOAD.model_copy(update={"seed": seed})
        with QLoRASystem().open(workload, Arm.model_validate(SETTINGS), model_directory=str(TINY_CHECKPOINT)) as run:
            ours = run.parameters()
            assert ours.keys() == peer.parameters().keys()
            assert all(torch.equal(tensor, ours[name]) for name, tensor in peer.parameters().items())
            peer.evaluate(1, run.parameters())
            run.step(0)
            run.step(1)
            assert all(torch.equal(tensor, run.inputs()[name]) for name, tensor in peer.inputs().items())


def test_an_evaluation_uses_the_passed_parameters_and_changes_none(reference: PeerRun) -> None:
    reference.restart(0)
    given = {name: tensor.detach() + 0.25 for name, tensor in reference.parameters().items()}
    at_start, moved = float(reference.evaluate(0, reference.parameters())), float(reference.evaluate(0, given))
    assert abs(moved - at_start) > 0.1
    assert all(torch.equal(tensor, given[name]) for name, tensor in reference.parameters().items())


def test_products_of_the_peer_equal_those_of_the_bitsandbytes_layer(peer: PeerRun) -> None:
    """The peer uses a dense copy of the weights, which is faster.

    Its errors must be those of the library's 4-bit layer.
    """
    bitsandbytes = pytest.importorskip("bitsandbytes")
    projection = peer._model.base_model.model.model.layers[1].mlp.down_proj
    with opened("float32") as wide:
        weight = wide._model.base_model.model.model.layers[1].mlp.down_proj.weight.detach().clone()
    layer = bitsandbytes.nn.Linear4bit(
        *reversed(weight.shape), bias=False, compute_dtype=torch.bfloat16, quant_type="nf4", compress_statistics=False
    )
    # what NF4 left is on NF4's grid: quantized once more it stays as it is
    layer.weight = bitsandbytes.nn.Params4bit(weight, requires_grad=False, quant_type="nf4", compress_statistics=False)
    layer = layer.to("cpu")
    x = torch.randn(5, weight.shape[1], generator=torch.Generator().manual_seed(0)).bfloat16()
    assert torch.equal(layer(x), projection(x))


def test_a_closed_peer_run_keeps_no_model_in_memory() -> None:
    with opened("float32") as run:
        assert run.parameters()
    assert (dict(run.parameters()), hasattr(run, "_model")) == ({}, False)


def test_the_transformers_peer_refuses_faults() -> None:
    with pytest.raises(ValueError, match="no fault can be planted in a transformers peer"):
        TransformersPeer().open(WORKLOAD, Arm(), fault="dropped_clip")
