"""Every path of the backward products on the GPU, against fp64 and every other, TF32 kept out of cuBLAS, captured."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import get_args

import pytest
import torch
from torch import Tensor

from harness.contract.schema import Needs
from harness.execution.probes.kernels import compare
from harness.system.protocol import Arm, Workload
from reference_impl.config import GemmPath
from reference_impl.errors import ReferenceImplError
from reference_impl.faults import FAULTS, KERNELS
from reference_impl.gemm import BackwardGemm
from reference_impl.system import QLoRASystem

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

PATHS: tuple[GemmPath, ...] = get_args(GemmPath)
# The bounds of contracts/gemm-backward-tiled-v1.yaml, relative to the largest element; derived there.
BOUND = {"cublas": 1e-4, "tiled": 1e-4, "fp16": 2e-3, "bf16": 1.6e-2}
DTYPE = {"cublas": "float32", "tiled": "float32", "fp16": "float16", "bf16": "bfloat16"}
SIZES = [(17, 33, 70), (512, 1536, 16), (512, 16, 1536), (300, 257, 1536)]
OPERATIONS = ["gemm.backward_a", "gemm.backward_a_accumulate", "gemm.backward_b"]
WORKLOAD = Workload(model="tiny", batch_size=4, seq_len=65, steps=1, needs=Needs(device="cuda"))


def operands(sizes: tuple[int, int, int], scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """A, B of weights' size, and grad_C of size `scale`."""
    m, k, n = sizes
    generator = torch.Generator("cuda").manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device="cuda")

    return normal(m, k), normal(k, n) * 2e-2, normal(m, n) * scale


def relative(got: Tensor, exact: Tensor) -> float:
    assert bool(got.isfinite().all())
    return ((got.double() - exact.double()).abs().max() / exact.double().abs().max()).item()


@pytest.fixture
def tf32_allowed() -> Iterator[None]:
    """The process lets cuBLAS use TF32, as a training script may."""
    allowed = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    yield
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    torch.backends.cuda.matmul.fp32_precision = allowed


@pytest.mark.parametrize("scale", [1.0, 1e5])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_gemm_path_agrees_with_fp64_and_with_the_other_paths(sizes: tuple[int, int, int], scale: float) -> None:
    a, b, grad_c = operands(sizes, scale)
    grads_a: dict[str, Tensor] = {}
    grads_b: dict[str, Tensor] = {}
    for path in PATHS:
        gemm = BackwardGemm(path)
        grads_a[path], grads_b[path] = gemm.grad_a(grad_c, gemm.cache_weight(b)), gemm.grad_b(a, grad_c)
        assert relative(grads_a[path], grad_c.double() @ b.double().t()) <= BOUND[path], path
        assert relative(grads_b[path], a.double().t() @ grad_c.double()) <= BOUND[path], path
    for one, other in combinations(PATHS, 2):
        assert relative(grads_a[one], grads_a[other]) <= BOUND[one] + BOUND[other], (one, other)
        assert relative(grads_b[one], grads_b[other]) <= BOUND[one] + BOUND[other], (one, other)


@pytest.mark.usefixtures("tf32_allowed")
def test_cublas_does_not_use_tf32_even_where_the_process_allows_it() -> None:
    a, b, grad_c = operands((512, 1536, 1024), 1e5)
    exact = grad_c.double() @ b.double().t()
    # The library left to itself shows that the setting has an effect; 1e-5 lies between fp32 and TF32.
    assert relative(grad_c @ b.t(), exact) > 1e-4
    gemm = BackwardGemm("cublas")
    assert relative(gemm.grad_a(grad_c, b), exact) < 1e-5
    assert relative(gemm.grad_b(a, grad_c), a.double().t() @ grad_c.double()) < 1e-5
    total = gemm.grad_a(grad_c, b)
    assert relative(gemm.grad_a(grad_c, b, total, accumulate=True), 2 * exact) < 1e-5


@pytest.mark.parametrize("path", ["cublas", "tiled"])
def test_bf16_operands_are_stored_in_fp32_without_rounding_in_between(path: GemmPath) -> None:
    a, _, grad_c = (tensor.bfloat16() for tensor in operands((300, 256, 1536), 1.0))
    out = torch.full((256, 1536), float("nan"), device="cuda")
    assert BackwardGemm(path).grad_b(a, grad_c, out) is out
    assert relative(out, a.double().t() @ grad_c.double()) < 1e-5


@pytest.mark.parametrize("path", PATHS)
def test_a_captured_product_replays_to_the_eager_bits(path: GemmPath) -> None:
    gemm, (a, b, grad_c) = BackwardGemm(path), operands((512, 256, 1536), 1.0)
    weight = gemm.cache_weight(b)
    outputs = [torch.zeros(512, 256, device="cuda"), torch.zeros(256, 1536, device="cuda")]

    def body() -> None:
        gemm.grad_a(grad_c, weight, outputs[0])
        gemm.grad_a(grad_c, weight, outputs[0], accumulate=True)
        gemm.grad_b(a, grad_c, outputs[1])

    body()
    eager = [output.clone() for output in outputs]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    for output in outputs:
        output.fill_(float("nan"))
    graph.replay()
    for output, expected in zip(outputs, eager, strict=True):
        assert torch.equal(output, expected)


@pytest.mark.parametrize("path", PATHS)
def test_the_kernel_cases_of_a_gemm_path_are_complete_repeatable_and_within_the_contracts_bound(path: GemmPath) -> None:
    kernels = QLoRASystem().kernel_cases(WORKLOAD, Arm(gemm=path))
    cases = [compare(case) for case in kernels.comparisons(OPERATIONS, [DTYPE[path]], [1.0, 1e5])]
    assert {(case.operation, case.magnitude) for case in cases} == {
        (op, size) for op in OPERATIONS for size in (1.0, 1e5)
    }
    for case in cases:
        assert case.finite, case
        assert (case.unwritten, case.repeat_equal) == (0, True), case
        assert max(case.error_vs_fp64, case.error_vs_naive) <= BOUND[path], case
    compiled = kernels.compiled()
    metadata = {(kernel.shared_memory_bytes, kernel.threads) for kernel in compiled}
    assert metadata == ({(2048, 256)} if path == "tiled" else set())


@pytest.mark.parametrize("fault", ["tf32_backward", "unwritten_tile"])
def test_a_faulty_matrix_product_is_found(fault: str) -> None:
    assert FAULTS[fault].hook is KERNELS
    kernels = QLoRASystem().kernel_cases(WORKLOAD, Arm(gemm="tiled"), fault=fault)
    cases = [compare(case) for case in kernels.comparisons(["gemm.backward_a"], ["float32"], [1.0])]
    shown = [case for case in cases if case.unwritten or case.error_vs_fp64 > BOUND["tiled"]]
    assert shown


def test_gain_sums_in_order_of_arrival_differ_between_calls_but_the_kernels_sums_do_not() -> None:
    for fault, repeatable in (("atomic_gain_reduction", False), (None, True)):
        kernels = QLoRASystem().kernel_cases(WORKLOAD, Arm(), fault=fault)
        cases = [compare(case) for case in kernels.comparisons(["rms_norm.gain_gradient"], ["float32"], [1.0])]
        assert all(case.repeat_equal for case in cases) is repeatable


def test_operands_on_two_devices_are_refused() -> None:
    a, b, grad_c = operands((16, 16, 16), 1.0)
    with pytest.raises(ReferenceImplError, match="b: on cpu"):
        BackwardGemm("tiled").grad_a(grad_c, b.cpu())
    with pytest.raises(ReferenceImplError, match="grad_c: on cpu"):
        BackwardGemm("cublas").grad_b(a, grad_c.cpu())
