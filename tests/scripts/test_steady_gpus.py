"""`scripts/steady_gpus.py`: GPUs in the order of how steady their clocks were, and no step timed."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import steady_gpus

from harness.evidence.cuda_driver import Devices, Gpu

SPREADS = {"GPU-a": 0.0606, "GPU-b": 0.0455, "GPU-c": 0.0682}


def seen(uuid: str) -> dict[str, Any]:
    spread = SPREADS[uuid]
    return {"uuid": uuid, "spread": spread, "lowest_mhz": 1890.0, "highest_mhz": 1980.0, "power_w": 400.4}


def test_the_steadiest_gpu_stands_first(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["steady_gpus.py"])
    present = tuple(Gpu("NVIDIA H200", uuid, "sm_90", 139.8) for uuid in SPREADS)
    monkeypatch.setattr(steady_gpus, "devices", lambda: Devices(present))
    monkeypatch.setattr(steady_gpus, "watch_elsewhere", lambda uuid, _: seen(uuid))
    assert steady_gpus.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "GPU-b  spread 0.0455  1890 to 1980 MHz  400 W"
    assert [line.split()[0] for line in lines] == ["GPU-b", "GPU-a", "GPU-c"]


def test_each_gpu_is_watched_by_a_process_that_sees_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[list[str], str]] = []

    def run(command: list[str], *, env: dict[str, str], **_: object) -> subprocess.CompletedProcess[str]:
        calls.append((command[2:], env["CUDA_VISIBLE_DEVICES"]))
        return subprocess.CompletedProcess(command, 0, stdout="noise\n" + json.dumps(seen("GPU-a")) + "\n")

    monkeypatch.setattr(subprocess, "run", run)
    assert steady_gpus.watch_elsewhere("GPU-a", 32) == seen("GPU-a")
    assert calls == [(["--alone", "GPU-a", "--seq-len", "32"], "GPU-a")]


def test_both_arms_run_and_the_host_has_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU: nothing to see, but the steps run."""
    monkeypatch.setattr(steady_gpus, "BLOCK_STEPS", 2)
    found = steady_gpus.watch(None, "tiny", 16, 0.1)
    assert found == {"uuid": None, "spread": 0.0, "lowest_mhz": 0.0, "highest_mhz": 0.0, "power_w": 0.0}


def test_a_machine_without_gpus_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["steady_gpus.py"])
    monkeypatch.setattr(steady_gpus, "devices", lambda: Devices(problem="no NVIDIA driver"))
    with pytest.raises(SystemExit, match="2"):
        steady_gpus.main()
    assert "no CUDA device was found" in capsys.readouterr().err
