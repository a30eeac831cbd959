"""The kernels probe: what it reads from PTX, and which device or target the inventory is of."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from kernel_systems import PTX

from harness.contract.schema import Arm, Workload
from harness.devices.cuda_driver import Devices, Gpu
from harness.evidence.plan_records import PlannedArm, Run
from harness.execution.probes import kernels
from harness.execution.recorder import Recorder
from harness.system.protocol import NotAvailable

HOPPER = Devices((Gpu("H200", "GPU-1", "sm_90", 139.8),), cuda_version="13.0", driver_version="580")


def make_run(system: str, target: str, **changes: Any) -> Run:
    return Run(
        **{
            "id": "k1",
            "contract": "c",
            "probe": "kernels",
            "workload_name": "w",
            "workload": Workload(model="any", batch_size=2, seq_len=8, steps=12),
            "arms": {"nf4": PlannedArm(arm=Arm(), system=f"kernel_systems:{system}")},
            "settings": {"target": target},
            **changes,
        }
    )


def records_of(run: Run, directory: Path) -> list[dict[str, Any]]:
    directory.mkdir()
    with Recorder(directory) as recorder:
        kernels.execute(run, recorder)
    return [json.loads(line) for line in (directory / "records.jsonl").read_text().splitlines()]


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "devices", lambda: HOPPER)


def test_a_kernel_record_contains_what_its_ptx_declares(tmp_path: Path) -> None:
    found = records_of(make_run("Healthy", "sm_90"), tmp_path / "run")[-1]
    assert found["planned"] == [
        {
            "key": "sm_90, None",
            "name": "scale",
            "ptx_digest": hashlib.sha256(PTX.encode()).hexdigest(),
            "targets": ["sm_90a"],
            "versions": ["8.7"],
            "entries": ["scale"],
            "load_route": "a route",
            "shared_memory_bytes": 2048,
            "threads": 256,
        }
    ]
    assert found["used"] == []


def test_the_kernels_of_a_step_are_recorded_if_coverage_is_claimed(tmp_path: Path) -> None:
    run = make_run("Healthy", "sm_90", settings={"target": "sm_90", "scope": "coverage"})
    bare = records_of(run, tmp_path / "run")[-1]["used"][0]
    assert (bare["targets"], bare["versions"], bare["entries"]) == ([], [], [])


def test_a_cross_compiled_inventory_names_its_target_and_no_device(tmp_path: Path) -> None:
    found = records_of(make_run("Healthy", "sm_120"), tmp_path / "run")[-1]
    assert (found["compiled_for"], found["device"], found["driver_ptx_version"]) == ("sm_120", None, None)
    assert found["device_readable"] is True


@pytest.mark.parametrize(
    ("fault", "arms", "planted"),
    [("odd_key", ["nf4"], "odd_key"), ("odd_key", [], "None"), ("nan_tail", ["nf4"], "None")],
)
def test_a_fault_of_kernels_is_planted_only_in_the_arms_that_it_names(
    fault: str, arms: list[str], planted: str, tmp_path: Path
) -> None:
    run = make_run("Healthy", "sm_90", fault=fault, fault_arms=arms)
    assert records_of(run, tmp_path / "run")[-1]["planned"][0]["key"] == f"sm_90, {planted}"


@pytest.mark.usefixtures("hopper")
def test_the_kernel_inventory_on_a_device_covers_two_steps(tmp_path: Path) -> None:
    found = records_of(make_run("Healthy", "device"), tmp_path / "run")[-1]
    assert (found["device"], found["compiled_for"], found["driver_ptx_version"]) == ("sm_90", None, "9.0")
    assert [one["key"] for one in found["used"]] == ["step 0", "step 1"]


@pytest.mark.usefixtures("hopper")
def test_every_shape_of_a_workload_is_trained_twice_for_the_kernel_inventory(tmp_path: Path) -> None:
    workload = Workload(model="any", batch_size=2, seq_len=[8, 16, 24], steps=12)
    found = records_of(make_run("Healthy", "device", workload=workload), tmp_path / "run")[-1]
    assert len(found["used"]) == 6


@pytest.mark.usefixtures("hopper")
def test_a_kernel_refused_by_the_device_ends_the_steps_but_not_the_inventory(tmp_path: Path) -> None:
    *phases, found = records_of(make_run("Refusing", "device"), tmp_path / "run")
    assert phases[-1]["name"] == "nf4: inventory after the PTX of one has no .target line"
    assert ([one["key"] for one in found["planned"]], [one["key"] for one in found["used"]]) == (
        ["planned"],
        ["step 0"],
    )


@pytest.mark.usefixtures("hopper")
def test_an_unrelated_error_in_a_step_is_raised_by_the_worker(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="CUBLAS_STATUS_ALLOC_FAILED"):
        records_of(make_run("Failing", "device"), tmp_path / "run")


def test_a_device_whose_driver_fails_is_recorded_as_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "devices", lambda: Devices(problem="cuInit gave error 999", unreadable=True))
    found = records_of(make_run("Healthy", "device"), tmp_path / "run")[-1]
    assert (found["device"], found["device_readable"], found["planned"], found["used"]) == (None, False, [], [])


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(("target", "missing"), [("device", "`kernels`"), ("sm_90", "`cross_compiled`")])
def test_a_system_without_the_capability_is_not_available(target: str, missing: str, tmp_path: Path) -> None:
    with pytest.raises(NotAvailable, match=missing):
        records_of(make_run("WithoutKernels", target), tmp_path / "run")
