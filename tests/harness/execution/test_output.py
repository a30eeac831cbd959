"""A worker's output: kept up to a cap while there is room, and counted to its end whatever becomes of the file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.execution.watched_worker import OutputPump

PRINTED = 3 * OutputPump.KEPT


def pumped(path: Path, size: int) -> OutputPump:
    reads, writes = os.pipe()
    pump = OutputPump(os.fdopen(reads, "rb"), path)
    with os.fdopen(writes, "wb") as worker:
        worker.write(b"x" * size)
    pump.join()
    return pump


def test_only_the_first_part_of_long_worker_output_is_stored(tmp_path: Path) -> None:
    pumped(tmp_path / "stderr.txt", PRINTED)
    assert (tmp_path / "stderr.txt").stat().st_size == OutputPump.KEPT


@pytest.mark.parametrize("there", ["no folder", "a file", "no room"])
def test_worker_output_that_cannot_be_stored_is_read_on_and_marked_as_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str
) -> None:
    """If nobody read the output, the worker would hang at a full pipe or die of a closed pipe."""
    path = tmp_path / "run" / "stderr.txt"
    if there == "a file":
        path.parent.mkdir()
        path.write_text("theirs")
    elif there == "no room":
        opened = Path.open
        monkeypatch.setattr(Path, "open", lambda _path, _mode: opened(Path("/dev/full"), "wb"))
    monkeypatch.setattr(OutputPump, "LIMIT", PRINTED - 1)
    assert pumped(path, PRINTED).exceeded
    assert there != "a file" or path.read_text() == "theirs"
