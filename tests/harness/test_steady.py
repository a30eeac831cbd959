"""The look for a steady GPU: GPUs in the order of how steady their clocks were, and no step timed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from planning import CAPTURE, H200, THROUGHPUT, TRAJECTORY
from run_builders import make_contract
from step_function_systems import Regression

from harness.api import steady
from harness.cli import doctor
from harness.contract.load import LoadedContract
from harness.contract.schema import Arm, Workload
from harness.devices import environment
from harness.devices.cuda_driver import Devices, Gpu
from harness.errors import HarnessError, UsageError
from harness.evidence import layout
from harness.evidence.plan_records import PlannedArm, Run
from harness.evidence.run_evidence import Death
from harness.evidence.run_records import TIMED_PHASE, Telemetry, TelemetrySample
from harness.execution import opening, supervisor
from harness.execution.probes import steady as probe
from harness.execution.recorder import Recorder
from harness.system.resolve import resolve

CLOCKS = {"GPU-a": (1860.0, 1980.0), "GPU-b": (1890.0, 1980.0), "GPU-c": (1845.0, 1980.0)}
SYSTEM = "step_function_systems:Descending"


def contracts(*claims: dict[str, Any]) -> list[LoadedContract]:
    contract = make_contract(*claims, system=SYSTEM)
    return [cast("LoadedContract", SimpleNamespace(contract=contract, path=Path("c.yaml")))]


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Run]]:
    """Three GPUs whose workers are played; what each was asked to do."""
    asked: list[tuple[str, Run]] = []

    def execute(
        run: Run, directory: Path, *, gpu_uuid: str, stop: object, variables: Mapping[str, str]
    ) -> Death | None:
        asked.append((variables["CUDA_VISIBLE_DEVICES"], run))
        if gpu_uuid not in CLOCKS:
            return Death(cause="signal", detail="SIGKILL", phase="start", stack="")
        samples = [
            TelemetrySample(
                seconds=0.0,
                host_load_per_core=0.0,
                sm_clock_mhz=clock,
                power_w=400.4,
                temperature_c=50.0,
                throttle_reasons=[],
                foreign_processes=0,
            )
            for clock in CLOCKS[gpu_uuid]
        ]
        directory.mkdir()
        (directory / layout.TELEMETRY).write_text(Telemetry(samples=samples, began=0.0).model_dump_json())
        return None

    monkeypatch.setattr(supervisor, "execute", execute)
    monkeypatch.setattr(environment, "machine", lambda: H200)
    monkeypatch.setattr("harness.system.described._ask", lambda *_: {SYSTEM: resolve(SYSTEM).describe()})
    show_gpus(monkeypatch, *CLOCKS)
    return asked


def show_gpus(monkeypatch: pytest.MonkeyPatch, *uuids: str) -> None:
    present = tuple(Gpu("NVIDIA H200", uuid, "sm_90", 139.8) for uuid in uuids)
    monkeypatch.setattr(steady, "devices", lambda: Devices(present, "" if uuids else "no NVIDIA driver"))


def test_the_steadiest_gpu_is_listed_first(gpus: list[tuple[str, Run]]) -> None:
    lines = doctor.steadiness_lines(steady.look(contracts(TRAJECTORY, THROUGHPUT), 8))
    assert lines[0] == "GPU-b  spread 0.0465  1890 to 1980 MHz  400 W"
    assert [line.split()[0] for line in lines] == ["GPU-b", "GPU-a", "GPU-c"]


def test_the_command_steady_watches_each_gpu_with_a_worker_that_sees_only_that_gpu(gpus: list[tuple[str, Run]]) -> None:
    steady.look(contracts(TRAJECTORY, THROUGHPUT), 8)
    assert sorted(gpu for gpu, _ in gpus) == sorted(CLOCKS)
    [run] = {run.model_dump_json(): run for _, run in gpus}.values()
    assert (run.probe, run.settings["seconds"], run.settings["candidate"]) == ("steady", 8, "graphed")
    assert run.workload.steps == steady.STEPS


def test_a_worker_of_the_command_steady_that_dies_is_an_error(
    gpus: list[tuple[str, Run]], monkeypatch: pytest.MonkeyPatch
) -> None:
    show_gpus(monkeypatch, "GPU-a", "GPU-z")
    with pytest.raises(
        HarnessError,
        match="GPU-z: the worker process that keeps a GPU busy must run until the GPU is measured; "
        "found signal: SIGKILL",
    ):
        steady.look(contracts(TRAJECTORY, THROUGHPUT), 8)


def test_steady_without_a_throughput_claim_is_a_usage_error(gpus: list[tuple[str, Run]]) -> None:
    with pytest.raises(UsageError, match="needs a claim about speed, whose steps keep the GPUs busy"):
        steady.look(contracts(CAPTURE), 8)


def test_steady_without_a_gpu_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    show_gpus(monkeypatch)
    with pytest.raises(UsageError, match="needs a CUDA device; found no NVIDIA driver"):
        steady.look(contracts(TRAJECTORY, THROUGHPUT), 8)


def test_the_steady_probe_alternates_both_arms_untimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both arms take the same steps, in the order candidate, baseline, baseline, candidate.

    Only the phases are recorded.
    """
    seen: list[int] = []
    monkeypatch.setattr(Regression, "before_update", lambda _system, _loss, model: seen.append(id(model)))
    quarters = count(step=0.25)  # a round takes one
    monkeypatch.setattr(probe, "time", SimpleNamespace(monotonic=lambda: next(quarters)))
    run = Run(
        id="s",
        contract="c",
        probe="steady",
        workload_name="w",
        workload=Workload(model="any", batch_size=2, seq_len=4, steps=steady.STEPS),
        arms={name: PlannedArm(arm=Arm(), system=SYSTEM) for name in ("plain", "other")},
        settings={"candidate": "other", "baseline": "plain", "block_steps": 3, "seconds": 1},
    )
    tmp_path.joinpath("run").mkdir()
    with Recorder(tmp_path / "run") as recorder:
        probe.execute(run, recorder)
    records = [json.loads(line) for line in (tmp_path / "run" / "records.jsonl").read_text().splitlines()]
    assert {record["record"] for record in records} == {"phase"}
    assert [record["name"] for record in records] == ["plain: open", "other: open", TIMED_PHASE]
    warmup = opening.WARMUP_STEPS
    plain, other = seen[0], seen[warmup]
    a_round = [arm for arm in (other, plain, plain, other) for _ in range(3)]
    assert seen == [plain] * warmup + [other] * warmup + a_round * 3
