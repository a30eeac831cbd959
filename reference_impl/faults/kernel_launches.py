"""Planted faults of the launches of tiled products: their constants are not those of the contract and the plan.

The results of the products stay correct. No planned kernel has these constants, so the launched kernels also differ
from the planned kernels. Importable without torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.system.protocol import Expectation
from reference_impl.faults.registry import KERNELS, fault

if TYPE_CHECKING:
    from torch import Tensor

    from reference_impl.kernel_table import KernelTable, Product
    from reference_impl.kernels.registry import KernelSpec

WIDER = 2  # factor by which the size of the tile is multiplied
FEWER_WARPS = 4  # number of warps of a launch (128 threads); planned kernels have twice as many
MORE_STAGES = 3  # number of pipeline stages; each stage holds the tiles for one pass of the loop in shared memory
SHORTER_UNROLL = 2


def _unmet(demand: str) -> dict[str, Expectation]:
    return {"kernel_match": Expectation("FAIL", "demand_unmet", {"unmet_demand": demand})}


def _launch_changed(table: KernelTable, change: Callable[[KernelSpec], KernelSpec]) -> None:
    table.backward_a = _changed(table.backward_a, change)
    table.backward_b = _changed(table.backward_b, change)


def _changed(product: Product, change: Callable[[KernelSpec], KernelSpec]) -> Product:
    def multiply(left: Tensor, right: Tensor, out: Tensor, accumulate: bool) -> Tensor:
        from reference_impl.kernels import registry

        launcher = registry.current_launcher()
        with registry.launching_by(lambda spec, arguments: launcher(change(spec), arguments)):
            return product(left, right, out, accumulate)

    return multiply


@fault(KERNELS, "the products are launched with tiles twice as wide as planned", _unmet("tile"))
def wide_tile(table: KernelTable) -> None:
    def wider(spec: KernelSpec) -> KernelSpec:
        size = WIDER * int(spec.constexprs["SIZE"])
        constants = tuple((name, size if name == "tile" else value) for name, value in spec.constants)
        grid = tuple(-(-blocks // WIDER) for blocks in spec.grid)
        return replace(spec, constants=constants, constexprs={**spec.constexprs, "SIZE": size}, grid=grid)

    _launch_changed(table, wider)


@fault(KERNELS, "the products are launched with half of the threads that are planned", _unmet("threads"))
def fewer_threads(table: KernelTable) -> None:
    _launch_changed(table, lambda spec: replace(spec, num_warps=FEWER_WARPS))


@fault(
    KERNELS, "the products are launched with a pipeline of three stages in shared memory", _unmet("shared_memory_bytes")
)
def more_stages(table: KernelTable) -> None:
    _launch_changed(table, lambda spec: replace(spec, num_stages=MORE_STAGES))


@fault(
    KERNELS, "the products are launched with their inner loop unrolled twice instead of four times", _unmet("unroll")
)
def shorter_unroll(table: KernelTable) -> None:
    _launch_changed(table, lambda spec: replace(spec, constexprs={**spec.constexprs, "UNROLLED": SHORTER_UNROLL}))
