"""What NVRTC compiled is kept on disk and compiled once; each compile, hit and load is told; and it may be missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from scaled_copy import scaled_copy_spec

from reference_impl.kernel_cache import KernelCache, named_target
from reference_impl.kernels import nvrtc, registry
from reference_impl.kernels.nvrtc import Binary, NvrtcMissingError, compile_source

SOURCE = 'extern "C" __global__ void kernel(int* out) { *out = 1; }'
OPTIONS = ("--gpu-architecture=sm_90a",)


@pytest.fixture(autouse=True)
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is reported, in a cache of the test's own."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    reported: list[str] = []
    monkeypatch.setattr(nvrtc, "listeners", [lambda event, name: reported.append(f"{event} {name}")])
    return reported


def compiled(
    source: str = SOURCE, label: str = "kernel.cu", *, inner: str = "", options: tuple[str, ...] = ()
) -> Binary:
    return compile_source("kernel", label, source, {"inner.cuh": inner}, (*OPTIONS, *options))


def kept(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache").rglob("*.cubin"))


def test_a_kernel_compiled_earlier_is_read_from_disk(events: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    first = compiled()
    monkeypatch.setattr(nvrtc, "_compiled", None)  # whoever calls it fails
    assert compiled() == first
    assert events == ["compile kernel", "disk_hit kernel"]


def test_the_cache_key_of_a_compilation_consists_of_source_included_files_options_and_version(
    events: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled()
    compiled(SOURCE + "\n")
    compiled(inner="\n")
    compiled(options=("--fmad=false",))
    monkeypatch.setattr("cuda.bindings.nvrtc.nvrtcVersion", lambda: (0, 99, 0))
    compiled()
    assert (events, len(kept(tmp_path))) == (["compile kernel"] * 5, 5)


@pytest.mark.parametrize("damage", ["short", "empty", "changed"])
def test_an_incomplete_cached_compilation_is_compiled_again(damage: str, events: list[str], tmp_path: Path) -> None:
    first = compiled()
    [file] = kept(tmp_path)
    whole = file.read_bytes()
    file.write_bytes({"short": whole[:-1], "empty": b"", "changed": whole[:-1] + bytes([whole[-1] ^ 1])}[damage])
    assert compiled() == first
    assert (events, file.read_bytes()) == (["compile kernel"] * 2, whole)


@pytest.mark.parametrize("missing", ["library", "bindings"])
def test_a_missing_nvrtc_is_reported_with_the_install_command(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_found() -> None:
        raise RuntimeError("libnvrtc.so.13: No such file")

    if missing == "library":
        monkeypatch.setattr("cuda.bindings.nvrtc.nvrtcVersion", not_found)
    else:
        monkeypatch.delattr("cuda.bindings.nvrtc")
        monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)
    with pytest.raises(
        NvrtcMissingError, match=r"^libnvrtc: .* need NVRTC.*; found .*Error: .*; pip install .*'nvidia-cuda-nvrtc>=13'"
    ):
        compiled()


def test_the_ledger_of_kernels_names_a_planned_and_an_unplanned_cuda_kernel() -> None:
    asked, behind = scaled_copy_spec(100, 36), scaled_copy_spec(8, 36)
    for phase, event in (("prewarm", "compile"), ("train", "disk_hit")):
        cache = KernelCache(named_target("sm_90"))
        cache.ledger.watch()
        try:
            cache.ledger.phase(phase)
            cache.load(asked)
            registry.offline_compile(behind, 90)
        finally:
            cache.ledger.unwatch()
        cache.ledger.unwatch()  # twice does no harm
        registry.offline_compile(behind, 90)
        assert [(one.key, one.event, one.phase) for one in cache.ledger.as_evidence().events] == [
            ("scaled_copy/100x36/fp32/factor=0.1/w4s1@sm_90", event, phase),
            ("unplanned/scaled_copy", event, phase),
        ]
