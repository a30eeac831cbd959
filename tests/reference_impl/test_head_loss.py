"""The head's product that leaves a softmax's statistics, and the loss that reads them: when, what, and whose faults."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from harness.contract.schema import Needs
from harness.execution.probes.kernels import compare
from harness.system.protocol import Arm, Workload
from reference_impl import ops
from reference_impl.config import MODEL_PRESETS, TrainConfig
from reference_impl.faults import KERNELS, plant
from reference_impl.kernel_recording import recorded
from reference_impl.kernel_table import trainer_table
from reference_impl.kernels.cross_entropy import naive as cross_entropy
from reference_impl.kernels.products import kernel as products
from reference_impl.kernels.products import naive
from reference_impl.kernels.registry import KernelArgumentError
from reference_impl.kernels.target import planning_for
from reference_impl.prewarm import plan
from reference_impl.step_cases import STEP_OPERATIONS, Setting
from reference_impl.system import QLoRASystem

QWEN = MODEL_PRESETS["qwen2-1.5b"]
FUSED = ["products.head_logits", "cross_entropy.from_statistics"]
APART = ["cross_entropy.forward_backward"]


def operations(chunk: int = 512, dtype: str = "bf16", tokens: int = 2048, **sizes: int) -> list[str]:
    given = {"hidden": 1536, "vocabulary": 151936} | sizes
    return [spec.op for spec in products.head_specializations(tokens=tokens, chunk=chunk, dtype=dtype, **given)]


def test_the_fused_head_is_used_on_hopper_in_bfloat16_for_a_large_vocabulary() -> None:
    assert operations() == FUSED
    assert operations(dtype="fp32") == operations(chunk=256) == operations(vocabulary=32000) == APART
    assert operations(hidden=1540) == operations(vocabulary=151937) == APART  # rows that start off 16 bytes
    with planning_for("sm_100"):
        assert operations() == APART


def test_the_last_head_chunk_uses_the_librarys_product_if_it_has_few_tokens() -> None:
    assert operations(chunk=1024, tokens=1024 + 512) == 2 * FUSED
    assert operations(tokens=512 + 300) == FUSED + APART


@pytest.mark.parametrize(
    ("precision", "expected", "sizes"),
    [("dtype", FUSED, [640]), ("dtype", APART, [384]), ("fp8", ["fp8_loss.forward_backward"], [640, 384])],
)
def test_a_step_launches_exactly_the_planned_kernels(precision: str, expected: list[str], sizes: list[int]) -> None:
    model = replace(QWEN, num_layers=1)
    config = TrainConfig(
        model=model,
        rank=8,
        device="cpu",
        precision=precision,  # type: ignore[arg-type]
        loss_chunk=640,
        batch_size=2,
    )
    planned, launched = plan(model, config, (512,)), recorded(model, config, (512,))
    assert {spec.key: spec.identity for spec in planned} == {spec.key: spec.identity for spec in launched}
    assert [spec.shape[0] for spec in launched if spec.op == expected[0]] == sizes
    assert {spec.op for spec in launched} >= set(expected)


def test_a_panel_of_head_statistics_has_the_width_of_a_tile() -> None:
    """A panel is a group of columns of the logits, for which maximum and sum are computed."""
    spec = products.head_spec(512, 1536, 151936)
    assert spec.constexprs["COLUMNS"] == naive.PANEL
    assert spec.constexprs["GROUP"] == 2  # all pairs of tiles: a panel of the head is read once


def test_head_logit_arguments_of_unequal_shapes_are_refused() -> None:
    x, head, out = (torch.zeros(shape, dtype=torch.bfloat16) for shape in ((2, 192), (400, 200), (2, 400)))
    with pytest.raises(KernelArgumentError, match=r"head.*\[400, 200\].*\[400, 192\]"):
        products.head_logits(x, head, out)
    with pytest.raises(KernelArgumentError, match=r"out.*\[2, 400\].*\[2, 200\]"):
        products.head_logits(x, head[:192].view(200, 192), out)


def inputs(tokens: int, hidden: int, vocabulary: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(tokens, hidden, generator=generator, dtype=torch.float64)
    head = torch.randn(vocabulary, hidden, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, vocabulary, (tokens,), generator=generator)
    targets[0], targets[-1] = cross_entropy.IGNORED, vocabulary - 1
    return x, head, targets


@pytest.mark.parametrize("vocabulary", [40, 192, 1000])
def test_the_naive_head_loss_equals_torchs_loss_and_gradient(vocabulary: int) -> None:
    x, head, targets = inputs(5, 8, vocabulary)
    out = torch.empty(5, vocabulary, dtype=torch.float64)
    maxima, totals = naive.head_logits(x, head, out)
    assert maxima.shape == totals.shape == (5, -(-vocabulary // naive.PANEL))
    torch.testing.assert_close(out, x @ head.t())
    torch.testing.assert_close((maxima + totals.log()).logsumexp(dim=1), out.logsumexp(dim=1))
    leaf = out.clone().requires_grad_()
    expected = functional.cross_entropy(leaf, targets, reduction="none", ignore_index=cross_entropy.IGNORED)
    [gradient] = torch.autograd.grad(expected.sum(), leaf)
    losses = cross_entropy.from_statistics_(out, maxima, totals, targets, 0.37)
    torch.testing.assert_close((losses, out), (expected.detach(), 0.37 * gradient))


def test_head_logit_statistics_are_those_of_the_stored_logits() -> None:
    x, head = (tensor.bfloat16() for tensor in inputs(3, 64, 400)[:2])
    out = torch.empty(3, 400, dtype=torch.bfloat16)
    maxima, _ = naive.head_logits(x, head, out)
    assert torch.equal(maxima[:, 0], out[:, :192].float().amax(dim=1))


def test_a_logit_panel_of_only_minus_infinity_adds_nothing() -> None:
    """A panel is a group of columns of the logits, for which maximum and sum are computed."""
    x, head = torch.ones(1, 1), torch.zeros(384, 1)
    head[:192] = -torch.inf
    maxima, totals = naive.head_logits(x, head, torch.empty(1, 384))
    assert totals.tolist() == [[0.0, 192.0]]
    assert maxima.isfinite().all()


CASES = Setting(
    trainer_table("cublas"),
    TrainConfig.preset("tiny", batch_size=1, seq_len=5),
    MODEL_PRESETS["tiny"],
    "bfloat16",
    1.0,
    torch.device("cpu"),
)


def worst(fault: str | None, magnitude: float) -> dict[str, float]:
    """As KERNEL-PRODUCTS-002-GPU judges, of the twin in bfloat16: the largest error by type, infinite if not finite."""
    table = trainer_table("cublas")
    plant(fault, KERNELS, table)
    found: dict[str, float] = {}
    for comparison in STEP_OPERATIONS["products.head_logits"](replace(CASES, table=table, magnitude=magnitude)):
        case = compare(comparison)
        assert case.terms is not None
        assert (case.mistyped, case.unwritten, case.overwritten, case.zero_references) == ([], 0, 0, 0)
        for dtype, errors in case.terms.items():
            error = errors.vs_fp64 if case.finite else torch.inf
            found[dtype] = max(found.get(dtype, 0.0), error)
    return found


@pytest.mark.parametrize("magnitude", [1e-4, 1.0, 1e5])
def test_the_naive_head_loss_is_within_rounding_of_the_cases_references(magnitude: float) -> None:
    errors = worst(None, magnitude)
    assert errors.keys() == {"bfloat16", "float32"}
    assert errors["bfloat16"] <= 2.0**-8 + 1e-5
    assert errors["float32"] <= 4 * 2.0**-24


@pytest.mark.parametrize(
    ("fault", "magnitude"),
    [
        ("statistics_without_last_panel", 1.0),
        ("statistics_beyond_vocabulary", 1.0),
        ("statistics_without_maximum", 1e5),
    ],
)
def test_faults_of_statistics_are_far_beyond_the_bound(fault: str, magnitude: float) -> None:
    error = worst(fault, magnitude)["float32"]
    assert error > 0.1
    assert (error == torch.inf) == (fault == "statistics_without_maximum")


STEP = Workload(model="tiny", batch_size=1, seq_len=20, steps=2, needs=Needs(device="cpu"))


def gradients(fault: str | None) -> dict[str, Tensor]:
    with QLoRASystem().open(STEP, Arm(), fault=fault) as run:
        run.step(0)
        run.step(1)
        return {name: value.clone() for name, value in run.gradients().items()}


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Hopper: a trainer's head leaves statistics."""
    monkeypatch.setattr(naive, "serves_head", lambda *_: True)


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, right[name]) for name, value in left.items())


def test_a_trainer_with_the_fused_head_trains_like_a_trainer_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    apart = gradients(None)
    monkeypatch.setattr(naive, "serves_head", lambda *_: True)
    monkeypatch.setattr(ops, "head_then_loss", None)
    for name, value in gradients(None).items():
        torch.testing.assert_close(value, apart[name], rtol=1e-4, atol=1e-7)


@pytest.mark.usefixtures("fused")
@pytest.mark.parametrize("fault", ["statistics_without_last_panel", "statistics_without_maximum"])
def test_a_fault_in_the_fused_head_changes_the_trainers_gradients(fault: str) -> None:
    assert not same(gradients(fault), gradients(None))


@pytest.mark.parametrize("fault", ["ignored_last_token", "logit_gradients_in_fp8", "loss_without_last_token"])
def test_a_fault_in_the_loss_changes_gradients_of_the_fused_head(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    apart = gradients(fault)
    monkeypatch.setattr(naive, "serves_head", lambda *_: True)
    own = ops.head_loss
    assert same(gradients(fault), apart)
    assert ops.head_loss is own
    assert not same(apart, gradients(None))
