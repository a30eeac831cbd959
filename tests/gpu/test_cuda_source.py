"""Kernels of CUDA C++ on a Hopper GPU: tensor maps, clusters and streams arrive, in a capture, too; loads are seen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from scaled_copy import scaled, scaled_copy_spec
from torch import Tensor

from reference_impl.kernel_cache import KernelCache, current_device
from reference_impl.kernels import cuda_launch, registry
from reference_impl.kernels.spec import KernelSpec
from reference_impl.kernels.target import hopper

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
    ),
]

CUDA = torch.device("cuda")


def random(rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns, device=CUDA)


def launched(spec: KernelSpec, x: Tensor) -> tuple[Tensor, Tensor]:
    """What the kernel writes into NaN, and the blocks of a cluster that it saw."""
    out = torch.full_like(x, torch.nan)
    blocks = torch.zeros(1, dtype=torch.int32, device=CUDA)
    registry.launch(spec, x, out, blocks)
    return out, blocks


@pytest.fixture
def cache() -> Iterator[KernelCache]:
    """A cache through which launches go, and whose ledger listens."""
    found = KernelCache(current_device())
    found.ledger.watch()
    try:
        with registry.launching_by(found.launch):
            yield found
    finally:
        found.ledger.unwatch()


def test_the_gpu_of_this_machine_is_recognized_as_hopper() -> None:
    assert hopper()


@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("swizzle", [0, 128])
@pytest.mark.parametrize("sizes", [(8, 32), (100, 36), (1, 4), (257, 1000)], ids=str)
def test_a_cuda_kernel_copies_a_tensor_that_a_tensor_map_describes(
    sizes: tuple[int, int], swizzle: int, cluster: int
) -> None:
    x = random(*sizes)
    out, blocks = launched(scaled_copy_spec(*sizes, swizzle=swizzle, cluster=cluster), x)
    assert torch.equal(out, scaled(x))
    assert blocks.item() == cluster


def test_a_cuda_kernel_is_launched_on_the_current_stream() -> None:
    spec, x, stream = scaled_copy_spec(64, 64), random(64, 64), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    launched(spec, x)
    torch.cuda.synchronize()
    source, late = random(64, 64), torch.empty_like(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)  # type: ignore[no-untyped-call]
        late.copy_(source)
        out, _ = launched(spec, late)
    stream.synchronize()
    assert torch.equal(out, scaled(source))


def test_tensor_maps_evicted_from_the_cache_are_created_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_launch, "_KEPT", 2)
    spec, tensors = scaled_copy_spec(64, 64), [random(64, 64) for _ in range(4)]
    for x in [*tensors, *tensors]:
        assert torch.equal(launched(spec, x)[0], scaled(x))


def test_a_captured_launch_replays_with_the_current_tensor_values() -> None:
    spec, x = scaled_copy_spec(100, 36, cluster=2), random(100, 36)
    launched(spec, x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, blocks = launched(spec, x)
    for _ in range(2):
        x.copy_(random(100, 36))
        graph.replay()
        assert torch.equal(out, scaled(x))
        assert blocks.item() == 2


def test_a_prewarmed_kernel_is_captured_without_a_launch_and_without_further_loads(cache: KernelCache) -> None:
    spec, x = scaled_copy_spec(104, 36, 0.7), random(104, 36)
    cache.ledger.phase("prewarm")
    cache.load(spec)
    cache.ledger.phase("train")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, _ = launched(spec, x)
    graph.replay()
    assert torch.equal(out, scaled(x, 0.7))
    assert {(event.key, event.phase) for event in cache.ledger.as_evidence().events} == {
        ("scaled_copy/104x36/fp32/factor=0.7/w4s1@sm_90", "prewarm")
    }


def test_a_kernel_load_outside_the_cache_is_recorded(cache: KernelCache) -> None:
    spec, x = scaled_copy_spec(112, 36, 0.3), random(112, 36)
    registry.jit_launch(spec, (x, torch.empty_like(x), torch.zeros(1, dtype=torch.int32, device=CUDA)))
    events = [(event.key, event.event) for event in cache.ledger.as_evidence().events]
    assert ("unplanned/scaled_copy", "load") in events


def test_device_compilation_and_cross_compilation_give_the_same_kernel() -> None:
    spec = scaled_copy_spec(100, 36)
    here, offline = registry.compile_for_device(spec), registry.offline_compile(spec, 90)
    assert (here.asm, here.metadata) == (offline.asm, offline.metadata)
