"""The kernel cache on a device: a run launches its plan, loaded before the weights, and nothing else gets in."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from harness.contract.schema import Arm, Workload
from harness.devices.ptx import is_exact, parse_target, read_module
from reference_impl.kernel_cache import PtxTargetError
from reference_impl.kernels import registry
from reference_impl.system import QLoRARun, QLoRASystem

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

WORKLOAD = Workload(model="tiny", batch_size=4, seq_len=[64, 32], steps=10)
MODES: dict[str, dict[str, Any]] = {
    "nf4": {},
    "full": {"weights": "full"},
    "tiled": {"gemm": "tiled"},
    "global": {"clip_scope": "global"},
    "graphed": {"capture": "step"},
    "split": {"capture": "backward"},
}


def opened(fault: str | None = None, **settings: Any) -> QLoRARun:
    return QLoRASystem().open(WORKLOAD, Arm(**({"prewarm": True} | settings)), fault=fault)


def device_target() -> str:
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


@pytest.mark.parametrize("mode", MODES)
def test_a_prewarmed_run_launches_exactly_its_planned_kernels_and_loads_none_later(mode: str) -> None:
    with opened(**MODES[mode]) as run:
        for index in range(4):
            run.step(index)
        torch.cuda.synchronize()
        ledger, inventory = run.kernel_ledger(), run.kernel_inventory()
    assert list(ledger.phases) == ["prewarm", "upload", "train"]
    assert [event for event in ledger.events if event.phase != "prewarm"] == []
    planned, used = ({kernel.key: kernel.ptx for kernel in kernels} for kernels in (inventory.planned, inventory.used))
    assert planned == used
    assert {event.key for event in ledger.events} >= set(used)
    assert 0 < ledger.handles["cublas"] < ledger.phases["upload"]


def test_without_a_prewarm_every_kernel_is_loaded_in_training() -> None:
    with opened(prewarm=False) as run:
        run.step(0)
        events = run.kernel_ledger().events
        keys = {kernel.key for kernel in run.kernel_inventory().used}
    assert {event.key for event in events if event.phase == "train"} == keys


def test_used_kernels_target_this_device_and_equal_the_cross_compiled_kernels() -> None:
    target = device_target()
    with opened() as run:
        run.step(0)
        used = run.kernel_inventory().used
    assert used
    for kernel in used:
        assert all(is_exact(parse_target(text), parse_target(target)) for text in read_module(kernel.ptx).targets)
        assert kernel.load_route == "cubin, cuModuleLoadData"
    cross = QLoRASystem().cross_compiled(WORKLOAD, Arm(), target)
    assert {kernel.key: kernel.ptx for kernel in cross.planned} == {kernel.key: kernel.ptx for kernel in cross.used}
    assert {kernel.key: kernel.ptx for kernel in used}.items() <= {
        kernel.key: kernel.ptx for kernel in cross.used
    }.items()


@pytest.mark.parametrize(
    ("fault", "message"),
    [("ptx_other_architecture", "the device is"), ("ptx_without_target", "has no .target line")],
)
def test_a_kernel_compiled_for_a_different_gpu_is_never_loaded(fault: str, message: str) -> None:
    with opened(fault, prewarm=False) as run:
        with pytest.raises(PtxTargetError, match=f"F-PTX-001: the PTX of clip.scale_apply.*{message}"):
            run.step(0)
        torch.cuda.synchronize()
        refused = [kernel.key for kernel in run.kernel_inventory().used if "scale_apply" in kernel.key]
        assert len(refused) == 1
        assert refused[0] not in {event.key for event in run.kernel_ledger().events if event.event == "load"}
    with pytest.raises(PtxTargetError):
        opened(fault)
    assert registry._launchers == [registry.jit_launch]


def test_two_open_runs_restore_the_default_launcher_in_any_closing_order() -> None:
    first, second = opened(prewarm=False), opened(prewarm=False)
    losses = [run.step(0).item() for run in (first, second)]
    first.__exit__(None, None, None)
    losses.append(second.step(1).item())
    second.__exit__(None, None, None)
    assert losses[0] == losses[1] != losses[2]
    assert registry._launchers == [registry.jit_launch]
