"""A plan's specs are a run's specs, and nothing but the spec selects machine code."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from reference_impl.kernels import registry
from reference_impl.kernels.registry import KERNELS, KernelArgumentError, KernelSpec
from reference_impl.kernels.triton_source import TritonFunction


@pytest.fixture
def launched() -> Iterator[list[KernelSpec]]:
    """Records launches instead of making them."""
    specs: list[KernelSpec] = []

    def record(spec: KernelSpec, _arguments: tuple[Tensor, ...]) -> None:
        specs.append(spec)

    with registry.launching_by(record):
        yield specs


def planned_specs(dtype: str = "bf16", tokens: int = 6) -> list[KernelSpec]:
    load = registry.load
    return [
        *load("nf4").specializations(rows=8, cols=64, dtype=dtype),
        *load("nf4").specializations(rows=8, cols=64, dtype=dtype, double=True),
        *load("rms_norm").specializations(tokens=tokens, hidden=64, eps=1e-6, dtype=dtype),
        load("rope").add_rotate_spec(tokens, 64, 8, 3, 3, 16, dtype),
        *load("attention").specializations(batch=tokens // 3, seq_len=3, heads=2, kv_heads=1, head_dim=16, dtype=dtype),
        *load("swiglu").specializations(tokens=tokens, intermediate=48, dtype=dtype),
        *load("swiglu").specializations(tokens=tokens, intermediate=48, dtype=dtype, gated=False),
        *load("cross_entropy").specializations(tokens=tokens, vocabulary=40, chunk=4, dtype=dtype),
        *load("softmax").specializations(rows=tokens, columns=40, dtype=dtype),
        *load("clip").specializations(partials=3, groups=2, max_norm=1.0, eps=1e-6),
        *load("gemm").specializations(m=tokens, k=16, n=32, grad_dtype=dtype, weight_dtype="fp16"),
        *load("gemm").specializations(m=tokens, k=16, n=32, grad_dtype=dtype, accumulate=True),
        *load("lora_gradients").specializations(tokens=tokens, outputs=64, hidden=64, ranks=8, dtype=dtype),
        *load("fp8_rows").specializations(rows=tokens, cols=64, dtype=dtype),
        *load("fp8_norm").specializations(tokens=tokens, hidden=64, eps=1e-6, dtype=dtype, blocks=2),
        *load("fp8_swiglu").specializations(tokens=tokens, intermediate=48, dtype=dtype),
        *load("fp8_nf4").specializations(rows=8, cols=64),
        *load("fp8_loss").specializations(tokens=tokens, vocabulary=40, chunk=4, dtype=dtype),
    ]


def call_every_wrapper(dtype: torch.dtype, tokens: int) -> None:
    load = registry.load
    codes, absmax = torch.zeros(256, dtype=torch.uint8), torch.zeros(8)
    load("nf4").dequantize(codes, absmax, 8, 64, dtype)
    scale_codes = torch.zeros(8, dtype=torch.uint8)
    load("nf4").dequantize_double(codes, scale_codes, torch.zeros(256), absmax[:1], absmax[0], 8, 64, dtype)
    x, gain, rstd = torch.zeros(tokens, 64, dtype=dtype), torch.zeros(64), torch.zeros(tokens)
    load("rms_norm").forward(x, gain, 1e-6)
    load("rms_norm").add_forward(x, x, gain, 1e-6)
    load("rms_norm").backward(x, x, gain, rstd)
    load("rms_norm").backward(x, x, gain, rstd, x)
    gains, low_rank = load("rms_norm").gain_partials(x, 2), x[:, :8].contiguous()
    load("lora_gradients").write(
        x, low_rank, low_rank, rstd, x, gains, torch.zeros(64, 8), torch.zeros(8, 64), torch.zeros(2, 64)
    )
    table = torch.zeros(3, 8)
    load("rope").add_rotate_(x, low_rank, torch.zeros(64, 8, dtype=dtype), table, table, 3, 3, 16)
    qkv, sizes = torch.zeros(tokens, 64, dtype=dtype), (tokens // 3, 3, 2, 1, 16)
    output, log_sum_exp = load("attention").forward(qkv, *sizes)
    load("attention").backward(output, qkv, output, log_sum_exp, table, table, *sizes)
    act = torch.zeros(tokens, 48, dtype=dtype)
    load("swiglu").backward(act, torch.zeros(tokens, 96, dtype=dtype))
    load("swiglu").forward(torch.zeros(tokens, 96, dtype=dtype))
    load("swiglu").silu_backward(act, load("swiglu").silu_forward(act))
    for rows in (4, tokens - 4):
        logits = torch.zeros(rows, 40, dtype=dtype)
        load("cross_entropy").forward_backward_(logits, torch.zeros(rows, dtype=torch.int64), 1.0)
    p = torch.zeros(tokens, 40, dtype=dtype)
    load("softmax").backward(p, p)
    starts, counts = torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int32)
    partials = load("clip").squared_sum_partials(gain, starts, counts, torch.zeros(3))
    load("clip").clip_scale_reduce(partials, counts, 1.0, 1e-6, torch.zeros(2), torch.zeros(2))
    load("clip").scale_apply_(gain, torch.zeros(2), starts, counts, counts)
    a, grad_c = torch.zeros(tokens, 16, dtype=dtype), torch.zeros(tokens, 32, dtype=dtype)
    load("gemm").backward_a(grad_c, torch.zeros(16, 32, dtype=torch.float16))
    load("gemm").backward_b(a, grad_c)
    load("gemm").backward_a(grad_c, torch.zeros(16, 32), out=a, accumulate=True)
    load("gemm").backward_b(a, grad_c, out=torch.zeros(16, 32, dtype=dtype), accumulate=True)
    call_every_fp8_wrapper(dtype, tokens)


def call_every_fp8_wrapper(dtype: torch.dtype, tokens: int) -> None:
    load = registry.load
    x, gain, rstd = torch.zeros(tokens, 64, dtype=dtype), torch.zeros(64), torch.zeros(tokens)
    load("fp8_rows").quantize(x)
    load("fp8_norm").add_forward(x, None, gain, 1e-6, keep=True)
    for keep in (True, False):
        load("fp8_norm").add_forward(x, x, gain, 1e-6, keep=keep)
    partials = load("rms_norm").gain_partials(x, 1)[0]
    for residual in (None, x):
        load("fp8_norm").backward_to_partials(x, x, gain, rstd, partials, residual)
    gate_up = torch.zeros(tokens, 96, dtype=dtype)
    load("fp8_swiglu").forward(gate_up)
    load("fp8_swiglu").backward(torch.zeros(tokens, 48, dtype=dtype), gate_up)
    codes, absmax = torch.zeros(256, dtype=torch.uint8), torch.zeros(8)
    load("fp8_nf4").rows(codes, absmax, torch.zeros(8), 64)
    load("fp8_nf4").transposed(codes, absmax, torch.zeros(64), 8)
    for rows in (4, tokens - 4):
        load("fp8_loss").forward_backward(torch.zeros(rows, 40, dtype=dtype), torch.zeros(rows, dtype=torch.int64))


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_planned_keys_are_exactly_the_keys_that_wrappers_launch(dtype: str, launched: list[KernelSpec]) -> None:
    call_every_wrapper(registry.torch_dtype(dtype), tokens=6)
    assert {spec.key for spec in launched} == {spec.key for spec in planned_specs(dtype)}


def test_every_module_with_kernels_is_part_of_the_plan() -> None:
    # `test_products.py` and `test_fp8_products.py` have those of products, which serve larger shapes alone
    assert {spec.op.partition(".")[0] for spec in planned_specs()} == set(KERNELS) - {"products", "fp8_products"}


def test_each_kernel_key_belongs_to_one_kernel_identity() -> None:
    specs = [
        spec
        for dtype, tokens in itertools.product(("bf16", "fp32"), (6, 9, 3000))
        for spec in planned_specs(dtype, tokens)
    ]
    by_key: dict[str, set[object]] = {}
    for spec in specs:
        by_key.setdefault(spec.key, set()).add(spec.identity)
    assert len(by_key) > 60
    assert [key for key, identities in by_key.items() if len(identities) > 1] == []


@pytest.mark.parametrize("spec", planned_specs(), ids=lambda spec: spec.op)
def test_a_kernel_spec_describes_the_arguments_of_its_kernel(spec: KernelSpec) -> None:
    if not isinstance(spec.function, TritonFunction):
        pytest.skip("its arguments are named by its `CudaFunction`")
    parameters = spec.function.jit.params
    # last comes what the target decides and no spec says: whether the kernel starts early
    assert [*spec.signature, "PDL"] == [parameter.name for parameter in parameters]
    constants = [name for name, kind in spec.signature.items() if kind == "constexpr"]
    assert [*constants, "PDL"] == [parameter.name for parameter in parameters if parameter.is_constexpr]
    # What the decorator exempts from specialization is what the spec calls unaligned: else the kernel compiled
    # offline is another one than the kernel launched.
    exempt = [parameter.name for parameter in parameters if parameter.do_not_specialize_on_alignment]
    assert exempt == [pointer.name for pointer in spec.pointers if not pointer.aligned]


def test_epsilon_and_sequence_length_are_part_of_a_kernel_key() -> None:
    rms_norm, rope = registry.load("rms_norm"), registry.load("rope")
    assert rms_norm.forward_spec(6, 64, 1e-6, "bf16").key == "rms_norm.forward/6x64/bf16/eps=1e-06/w1s1"
    assert rms_norm.forward_spec(6, 64, 1e-5, "bf16").key == "rms_norm.forward/6x64/bf16/eps=1e-05/w1s1"
    short = rope.add_rotate_spec(6, 64, 8, 3, 3, 16, "bf16")
    assert short.key == "rope.add_rotate/6x64x8x3x3x16/bf16/-/w4s1"
    assert short != rope.add_rotate_spec(6, 64, 8, 6, 3, 16, "bf16")


def test_a_kernel_identity_includes_compiler_inputs_that_the_key_lacks() -> None:
    swiglu = registry.load("swiglu")
    right, swapped = swiglu.backward_spec(6, 48, "bf16"), swiglu.backward_spec(48, 6, "bf16")
    assert right.identity == swiglu.backward_spec(6, 48, "bf16").identity
    disguised = dataclasses.replace(swapped, shape=right.shape)
    assert disguised.key == right.key
    assert disguised.identity != right.identity


def test_a_kernel_without_fused_multiply_add_has_a_key_of_its_own() -> None:
    spec = registry.load("nf4").dequantize_spec(8, 64, "bf16")
    assert spec.key == "nf4.dequantize/8x64/bf16/-/w4s1u"
    assert dataclasses.replace(spec, enable_fp_fusion=True).key == "nf4.dequantize/8x64/bf16/-/w4s1"


def test_the_launcher_that_was_added_last_launches_kernels_until_it_is_removed() -> None:
    spec = registry.load("softmax").backward_spec(2, 8, "fp32")
    tensors = [torch.zeros(2, 8) for _ in range(3)]
    launches: list[str] = []

    def first(_spec: KernelSpec, _arguments: tuple[Tensor, ...]) -> None:
        launches.append("first")

    def second(_spec: KernelSpec, _arguments: tuple[Tensor, ...]) -> None:
        launches.append("second")

    registry.add_launcher(first)
    registry.add_launcher(second)
    registry.launch(spec, *tensors)
    registry.remove_launcher(first)
    registry.launch(spec, *tensors)
    registry.remove_launcher(second)
    assert launches == ["second", "second"]
    with pytest.raises(ValueError, match="not in list"):
        registry.remove_launcher(second)


def test_the_alignment_of_a_fake_tensor_follows_from_its_offset(launched: list[KernelSpec]) -> None:
    softmax = registry.load("softmax")
    with FakeTensorMode():
        softmax.backward(torch.zeros(4, 8), torch.zeros(4, 8))
        storage = torch.zeros(40)
        with pytest.raises(KernelArgumentError, match="not 16-byte aligned"):
            softmax.backward(storage[1:33].view(4, 8), torch.zeros(4, 8))
    assert [spec.shape for spec in launched] == [(4, 8)]


def test_a_launch_with_an_empty_grid_launches_no_kernel(launched: list[KernelSpec]) -> None:
    registry.load("softmax").backward(torch.zeros(0, 8), torch.zeros(0, 8))
    assert launched == []


ARGUMENT_ERRORS: dict[str, tuple[Callable[[], object], str]] = {
    "dtype": (
        lambda: registry.load("softmax").backward(torch.zeros(2, 8), torch.zeros(2, 8).bfloat16()),
        "softmax.backward: argument 'grad_p' is torch.float32; pass bf16",
    ),
    "double": (
        lambda: registry.load("softmax").backward(torch.zeros(2, 8).double(), torch.zeros(2, 8).double()),
        "softmax.backward: argument 'p' is torch.float64; use one of",
    ),
    "contiguity": (
        lambda: registry.load("softmax").backward(torch.zeros(8, 2).T, torch.zeros(2, 8)),
        r"softmax.backward: argument 'grad_p' is not contiguous \(strides \(1, 2\)\)",
    ),
    "alignment": (
        lambda: registry.load("rms_norm").forward(torch.zeros(2, 8), torch.zeros(9)[1:], 1e-6),
        "rms_norm.forward: argument 'gain' is not 16-byte aligned",
    ),
    "shape": (
        lambda: registry.load("rms_norm").forward(torch.zeros(2, 8), torch.zeros(9), 1e-6),
        r"rms_norm.forward: argument 'gain' is of shape \[9\]; pass a tensor of shape \[8\]",
    ),
    "blocks": (
        lambda: registry.load("nf4").dequantize_spec(3, 10, "fp32"),
        "nf4.dequantize: argument 'rows, cols' is 3 x 10; pass a multiple of 64 elements",
    ),
    "accumulate": (
        lambda: registry.load("gemm").backward_b(torch.zeros(2, 3), torch.zeros(2, 4), accumulate=True),
        "gemm.backward_b: argument 'out' is missing; pass the tensor that the product is added to",
    ),
    "sequence": (
        lambda: registry.load("rope").add_rotate_(
            torch.zeros(4, 32), torch.zeros(4, 8), torch.zeros(32, 8), torch.zeros(3, 8), torch.zeros(3, 8), 3, 1, 16
        ),
        "rope.add_rotate: argument 'qkv' is .* pass whole sequences",
    ),
    "factors": (
        lambda: registry.load("rope").add_rotate_(
            torch.zeros(3, 32), torch.zeros(3, 8), torch.zeros(32, 6), torch.zeros(3, 8), torch.zeros(3, 8), 3, 1, 16
        ),
        r"rope.add_rotate: argument 'b' is of shape \[32, 6\]; pass a tensor of shape \[32, 8\]",
    ),
    "groups": (
        lambda: registry.load("attention").forward(torch.zeros(4, 56), 1, 4, 3, 2, 8),
        "attention.forward: argument 'qkv' is for 3 query heads and 2 key heads with head_dim 8; use",
    ),
    "count": (
        lambda: registry.launch(registry.load("softmax").backward_spec(2, 8, "fp32"), torch.zeros(2, 8)),
        "softmax.backward: argument '.*' is 1 tensors; pass",
    ),
}


@pytest.mark.parametrize("case", ARGUMENT_ERRORS)
def test_a_launch_with_a_tensor_for_which_no_kernel_was_planned_is_refused(
    case: str, launched: list[KernelSpec]
) -> None:
    call, message = ARGUMENT_ERRORS[case]
    with pytest.raises(KernelArgumentError, match=message):
        call()
    assert launched == []
