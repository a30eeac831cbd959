"""Kernels of CUDA C++ compiled without a GPU: what of a spec reaches them, what tells them apart, what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scaled_copy import BOX_COLUMNS, SHARED_MEMORY, scaled_copy_spec

from reference_impl.kernel_cache import KernelCache, KeyCollisionError, cache_key, named_target
from reference_impl.kernels import registry
from reference_impl.kernels.cuda_source import Address, CudaFunction, TensorMap
from reference_impl.kernels.nvrtc import CompilationError, CudaSourceError
from reference_impl.kernels.spec import Constant, KernelArgumentError, KernelSpec, Pointer
from reference_impl.offline_compiler import OfflineCompilation, compiled_kernel, describe, rebuild

pytestmark = pytest.mark.usefixtures("own_cache")


def function_of(spec: KernelSpec) -> CudaFunction:
    assert isinstance(spec.function, CudaFunction)
    return spec.function


def changed(spec: KernelSpec, **fields: Any) -> KernelSpec:
    """The spec with another function, which differs by `fields`."""
    return replace(spec, function=replace(function_of(spec), **fields))


def source_spec(tmp_path: Path, source: str, **constexprs: Constant) -> KernelSpec:
    """A kernel of a source that stores what is compared with it in PTX: `out` is its one pointer."""
    file = tmp_path / "kernel.cu"
    file.write_text(source)
    function = CudaFunction(file, "kernel", parameters=(Address(0),), shared_memory=0)
    return KernelSpec(
        op="kernel",
        shape=(1,),
        dtype="fp32",
        constants=(),
        num_warps=2,
        num_stages=3,
        function=function,
        pointers=(Pointer("out", "fp32"),),
        constexprs=constexprs,
        grid=(4,),
    )


WAIT = 'asm volatile("griddepcontrol.wait;" ::: "memory");'


def storing(*values: str, type_: str = "float", before: str = "") -> str:
    stores = "\n".join(f"    out[{place}] = {value};" for place, value in enumerate(values))
    return f'{before}\nextern "C" __global__ void kernel({type_}* out) {{ {WAIT}\n{stores}\n}}\n'


def ptx_of(spec: KernelSpec) -> str:
    text: str = registry.offline_compile(spec, 90).asm["ptx"]
    return text


def stored(ptx: str) -> list[int]:
    """The constants that a kernel stores, in order; of a float the number that its bits are."""
    return [int(number) for number in re.findall(r"\bmov\.[bu]32\s+%r\d+, (-?\d+);", ptx)]


def test_a_cuda_kernel_is_cached_like_a_triton_kernel() -> None:
    spec = scaled_copy_spec(100, 36)
    cache = KernelCache(named_target("sm_90"))
    cache.load(spec)
    kernel = cache.describe(spec)
    assert (kernel.key, kernel.name) == ("scaled_copy/100x36/fp32/factor=0.1/w4s1@sm_90", "scaled_copy")
    assert re.findall(r"^\.target (\S+)$", kernel.ptx, re.MULTILINE) == ["sm_90a"]
    assert (kernel.shared_memory_bytes, kernel.threads) == (SHARED_MEMORY, 128)
    assert kernel.load_route == "cubin, cuModuleLoadData"
    cubin = registry.offline_compile(spec, 90).asm["cubin"]
    assert (cubin[:4], "cp.async.bulk.tensor.2d" in kernel.ptx) == (b"\x7fELF", True)


def test_constants_of_a_kernel_spec_are_passed_as_macros(tmp_path: Path) -> None:
    names = ("NUM_WARPS", "NUM_STAGES", "CLUSTER", "T", "NEGATIVE", "40 + YES", "50 + NO")
    spec = source_spec(tmp_path, storing(*names, type_="int"), T=7, NEGATIVE=-3, YES=True, NO=False)
    assert stored(ptx_of(spec)) == [2, 3, 1, 7, -3, 41, 50]
    assert ptx_of(source_spec(tmp_path, storing("0.5f * WORD"), WORD="out[1]")).count("ld.global") == 1


@pytest.mark.parametrize(
    ("number", "bits"), [(0.1, "3DCCCCCD"), (-1e-6, "B58637BD"), (1 / 3, "3EAAAAAB"), (2.0, "40000000")]
)
def test_a_python_float_in_a_kernel_spec_means_the_fp32_number_that_it_rounds_to(
    number: float, bits: str, tmp_path: Path
) -> None:
    ptx = ptx_of(source_spec(tmp_path, storing("FACTOR"), FACTOR=number))
    assert stored(ptx) == [int.from_bytes(bytes.fromhex(bits), signed=True)]


def test_disabling_fp_fusion_removes_fused_multiply_add(tmp_path: Path) -> None:
    spec = source_spec(tmp_path, storing("out[1] * out[2] + out[3]"))
    assert ("fma.rn.f32" in ptx_of(spec), "fma.rn.f32" in ptx_of(replace(spec, enable_fp_fusion=False))) == (
        True,
        False,
    )


def test_a_changed_include_file_next_to_a_source_gives_a_new_kernel(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "outer.cuh").write_text('#include "inner.cuh"\n')
    (tmp_path / "shared" / "inner.cuh").write_text("#define NUMBER 5\n")
    spec = source_spec(tmp_path, storing("NUMBER", type_="int", before='#include "shared/outer.cuh"'))
    first = ptx_of(spec)
    (tmp_path / "shared" / "inner.cuh").write_text("#define NUMBER 6\n")
    second = ptx_of(spec)
    assert [stored(first), stored(second)] == [[5], [6]]


IDENTITIES: dict[str, Callable[[KernelSpec], KernelSpec]] = {
    "source": lambda spec: changed(spec, source=Path("other.cu")),
    "entry": lambda spec: changed(spec, entry="other"),
    "shared memory": lambda spec: changed(spec, shared_memory=2048),
    "cluster": lambda spec: changed(spec, cluster=2),
    "sizes": lambda spec: with_map(spec, sizes=(36, 99)),
    "strides": lambda spec: with_map(spec, strides=(40,)),
    "box": lambda spec: with_map(spec, box=(BOX_COLUMNS, 4)),
    "swizzle": lambda spec: with_map(spec, swizzle=0),
    "pointer": lambda spec: with_map(spec, pointer=1),
    "order": lambda spec: changed(spec, parameters=function_of(spec).parameters[::-1]),
    "constant": lambda spec: replace(spec, constexprs={**spec.constexprs, "SWIZZLE": 0}),
}


def with_map(spec: KernelSpec, **fields: Any) -> KernelSpec:
    tensor_map, *others = function_of(spec).parameters
    return changed(spec, parameters=(replace(tensor_map, **fields), *others))


@pytest.mark.parametrize("difference", IDENTITIES)
def test_kernels_with_one_key_that_compute_different_results_are_refused_by_the_cache(difference: str) -> None:
    spec = scaled_copy_spec(100, 36)
    other = IDENTITIES[difference](spec)
    assert spec.identity == scaled_copy_spec(100, 36).identity != other.identity
    assert cache_key(spec, "sm_90") == cache_key(other, "sm_90")
    cache = KernelCache(named_target("sm_90"))
    cache.load(spec)
    with pytest.raises(KeyCollisionError, match="scaled_copy/100x36"):
        cache.load(other)


def test_a_kernel_description_can_be_compiled_to_the_same_kernel_in_another_process() -> None:
    spec = scaled_copy_spec(100, 36, cluster=2)
    again = rebuild(describe(spec))
    assert (again, again.identity, again.grid) == (spec, spec.identity, spec.grid)
    [elsewhere] = OfflineCompilation([spec], 90).kernels()
    assert elsewhere == compiled_kernel(spec, registry.offline_compile(spec, 90))
    assert (elsewhere.name, elsewhere.shared_memory_bytes, elsewhere.threads) == ("scaled_copy", SHARED_MEMORY, 128)


SOURCE_ERRORS: dict[str, tuple[str, type[CudaSourceError], str]] = {
    "no C++": (
        storing("undeclared"),
        CompilationError,
        r'kernel.cu: the source .* must compile; found errors; .*\n.*/kernel\.cu\(3\): error: identifier "undeclared"',
    ),
    "in an included file": (
        storing("1", before='#include "broken.cuh"'),
        CompilationError,
        r'broken\.cuh\(2\): error: identifier "number" is undefined',
    ),
    "no file": (
        storing("1", before='\n\n#include "absent.cuh"'),
        CudaSourceError,
        r"kernel\.cu:3: a file that is included .* must be next to .*; found no .*absent\.cuh; correct the name",
    ),
    "one name of two files": (
        storing("1", before='#include "folder/outer.cuh"\n#include "inner.cuh"'),
        CudaSourceError,
        r"two included files must not have the same name; found .*inner\.cuh and .*inner\.cuh; rename one",
    ),
    "no entry": (
        storing("1").replace("kernel(", "other("),
        CudaSourceError,
        r'the source must have an entry extern "C" kernel; found other; correct the entry',
    ),
    "no wait": (
        storing("1").replace(WAIT, ""),
        CudaSourceError,
        (
            r"a kernel must wait for the kernel before it, .*; found no griddepcontrol\.wait; call begin\(\) of "
            r"hopper\.cuh"
        ),
    ),
    "static shared memory": (
        storing("(part[threadIdx.x] = 1, __syncthreads(), part[0])", before="__shared__ float part[37];"),
        CudaSourceError,
        r"shared memory must be dynamic, .*; found \.shared .*part\[148\];; make the array a part of",
    ),
}


@pytest.mark.parametrize("case", SOURCE_ERRORS)
def test_a_source_that_cannot_be_compiled_is_refused_by_file_and_line(case: str, tmp_path: Path) -> None:
    source, kind, message = SOURCE_ERRORS[case]
    (tmp_path / "broken.cuh").write_text("\nint f() { return number; }\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "outer.cuh").write_text('#include "inner.cuh"\n')
    (tmp_path / "folder" / "inner.cuh").write_text("")
    (tmp_path / "inner.cuh").write_text("")
    with pytest.raises(kind, match=message):
        registry.offline_compile(source_spec(tmp_path, source), 90)


def test_warnings_of_the_cuda_compiler_are_raised_as_python_warnings(tmp_path: Path) -> None:
    spec = source_spec(tmp_path, storing("1", before="__device__ int f() { int unused; return 0; }"))
    with pytest.warns(UserWarning, match=r'kernel\.cu\(1\): warning .*"unused" was declared but never referenced'):
        registry.offline_compile(spec, 90)


@pytest.mark.parametrize("sm", [80, 100, 120])
def test_compiling_a_hopper_source_for_a_different_target_is_refused(sm: int) -> None:
    with pytest.raises(CudaSourceError, match=rf"scaled_copy: .* capability 9\.0; found sm_{sm}; use another kernel"):
        registry.offline_compile(scaled_copy_spec(100, 36), sm)


ARGUMENT_ERRORS: dict[str, tuple[Callable[[KernelSpec], KernelSpec], str]] = {
    "pointer": (lambda spec: with_map(spec, pointer=3), "of no pointer; use an index below 3"),
    "rank": (lambda spec: with_map(spec, sizes=(36,)), "give 1 to 5 dimensions"),
    "box": (lambda spec: with_map(spec, box=(BOX_COLUMNS,)), "give 1 to 5 dimensions"),
    "size": (lambda spec: with_map(spec, sizes=(36, 0)), r"give sizes from 1 to 2\^32"),
    "stride": (lambda spec: with_map(spec, strides=(37,)), "on a 16-byte boundary"),
    "unaligned": (lambda spec: with_map(spec, pointer=2), "on a 16-byte boundary"),
    "long box": (lambda spec: with_map(spec, box=(BOX_COLUMNS, 257)), "1 to 256 elements in each dimension"),
    "ragged box": (lambda spec: with_map(spec, box=(3, 8), swizzle=0), "a multiple of 16 bytes"),
    "swizzle": (lambda spec: with_map(spec, swizzle=16), "a swizzle of 0, 32, 64 or 128 bytes"),
    "wide box": (lambda spec: with_map(spec, swizzle=64), "a box whose row is no longer"),
    "shared memory": (lambda spec: changed(spec, shared_memory=232449), "use at most 232448 bytes"),
    "grid": (lambda spec: changed(spec, cluster=4), r"is \(2, 13\); use a first size that is a multiple"),
    "infinite": (lambda spec: replace(spec, constexprs={"FACTOR": 1e39}), "'FACTOR' is 1e.39; give a number that"),
}


@pytest.mark.parametrize("case", ARGUMENT_ERRORS)
def test_kernel_arguments_that_the_driver_would_refuse_are_refused_when_compiling_offline(case: str) -> None:
    change, message = ARGUMENT_ERRORS[case]
    with pytest.raises(KernelArgumentError, match=f"scaled_copy: argument .*{message}"):
        registry.offline_compile(change(scaled_copy_spec(100, 36)), 90)


def test_a_one_dimensional_tensor_map_needs_no_stride() -> None:
    spec = scaled_copy_spec(8, 32)
    flat = replace(function_of(spec), parameters=(TensorMap(0, (256,), (), (32,), swizzle=128),))
    assert registry.offline_compile(replace(spec, function=flat), 90).metadata.name == "scaled_copy"
