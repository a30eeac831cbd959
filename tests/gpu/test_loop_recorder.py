"""On a GPU: a recorded step waits for nothing, and numbers arrive with their bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import harness
from harness.recorded_loops.recordings import read_recording

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]


# torch says so once in a process, whichever test asks for the mode first
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_recording_a_step_never_waits_for_the_device(device: str, tmp_path: Path) -> None:
    """The device is kept busy for a second before the steps. A call that waited for the device would take as long."""
    total = torch.zeros((), device="cuda")
    batch = [torch.arange(1000, device=each) for each in {device, "cuda"}]
    recorders = [harness.record(tmp_path / name) for name in ("warm", "run")]
    for recorder in recorders:  # the first one loads kernels, which may wait
        recorder.step(total, batch=batch)
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)  # type: ignore[no-untyped-call]
    busy = torch.cuda.Event()  # type: ignore[no-untyped-call]
    busy.record()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(20):
            total += 0.1  # in place: each step has its own number
            recorders[1].step(total, batch=batch)
        assert not busy.query()  # type: ignore[no-untyped-call]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for recorder in recorders:
        recorder.close()
    found = read_recording(tmp_path / "run").ranks[0]
    expected = [0.0]
    value = torch.zeros(())
    for _ in range(20):
        value += 0.1
        expected.append(float(value))
    assert found.quantities["loss"].tolist() == expected
    warm = read_recording(tmp_path / "warm").ranks[0]
    assert {*found.series.batch_digest} == {*warm.series.batch_digest}


def test_a_batch_has_the_same_digest_on_cpu_and_on_gpu(tmp_path: Path) -> None:
    batch = torch.arange(1000)
    with harness.record(tmp_path / "run") as recorder:
        recorder.step(1.0, batch=batch)
        recorder.step(1.0, batch=batch.cuda())
    digests = read_recording(tmp_path / "run").ranks[0].series.batch_digest
    assert digests[0] == digests[1]


def test_the_default_device_does_not_change_what_is_recorded(tmp_path: Path) -> None:
    torch.set_default_device("cuda")
    try:
        with harness.record(tmp_path / "run", model=torch.nn.Linear(2, 1)) as recorder:
            recorder.step(torch.ones(()), grad_norm=1.0, batch={"x": torch.ones(3), "y": torch.ones(3, device="cpu")})
            recorder.step(2.0, grad_norm=torch.ones((), device="cpu"), batch="text")
    finally:
        torch.set_default_device(None)
    assert read_recording(tmp_path / "run").ranks[0].quantities["loss"].tolist() == [1.0, 2.0]
