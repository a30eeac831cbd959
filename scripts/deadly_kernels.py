"""The ways to die that need a GPU. Each is enqueued and returns: where it is seen is the harness's to name."""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

WILD = 16  # the first page is no device's
ENDLESS = 2**62  # clock cycles: many years


@triton.jit  # type: ignore[untyped-decorator]
def _store_at(addresses: tl.tensor) -> None:
    """Write a one to the address that the first element holds."""
    address = tl.load(addresses)
    tl.store(address.to(tl.pointer_type(tl.int32)), 1)


def prepare() -> None:
    """Compile and load what cannot be compiled while a stream is captured."""
    target = torch.zeros(4, dtype=torch.int32, device="cuda")
    _store_at[(1,)](torch.tensor([target.data_ptr()], dtype=torch.int64, device="cuda"))
    _indices(0)
    torch.cuda.synchronize()
    if int(target[0]) != 1:
        raise RuntimeError("the kernel that is to write to a wild address wrote nothing to a good one")


def _indices(index: int) -> None:
    table = torch.zeros(4, device="cuda")
    table.index_select(0, torch.full((1,), index, dtype=torch.int64, device="cuda"))


def _wild_store() -> None:
    _store_at[(1,)](torch.full((1,), WILD, dtype=torch.int64, device="cuda"))


def _ask_for_too_much() -> None:
    """More than the device has: neighbours that share it keep what is theirs."""
    torch.empty(2 * torch.cuda.get_device_properties(0).total_memory, dtype=torch.uint8, device="cuda")


CAUSES_ON_GPU: dict[str, Callable[[], None]] = {
    "device_assert": lambda: _indices(10**6),
    "illegal_address": _wild_store,
    "endless_kernel": lambda: torch.cuda._sleep(ENDLESS),  # type: ignore[no-untyped-call]
    "out_of_memory": _ask_for_too_much,
}
