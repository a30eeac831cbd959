"""Kernels are sorted by the names that they carry on a GPU."""

from __future__ import annotations

import pytest

from benchmarks.kernel_kinds import kind_of


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTN", "GEMM"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>", "GEMM"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_7", "attention"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda>", "copy"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", "elementwise"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor>", "clip + Adam"),
        ("void kDequantizeBlockwise<__nv_bfloat16, 512, 64, 8, 2>", "dequantize"),
        ("nf4_dequantize_kernel", "dequantize"),
        ("rms_norm_reduce_gain_kernel", "norm"),
        ("cross_entropy_forward_backward_kernel", "cross-entropy"),
        ("triton_red_fused_add_mul_native_layer_norm_backward_3", "norm"),
        ("triton_poi_fused_add_mul_7", "compiled Triton"),
        ("Memcpy HtoD (Pinned -> Device)", "copy"),
        ("void foo::bar<int>", "other"),
    ],
)
def test_a_kernel_name_determines_its_kind(name: str, kind: str) -> None:
    assert kind_of(name) == kind
