"""Each GPU takes shard after shard, a process each; what ends this early ends them, and they keep their evidence."""

from __future__ import annotations

import os
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from harness import session
from harness.errors import EvidenceError, ExitCode, UsageError
from harness.evidence import layout
from harness.evidence.cuda_driver import devices
from harness.gpu_pool.shards import Shard
from harness.processes.kept import KeptProcess
from harness.python_path import child_path
from harness.run_directory.bundle import unused

POLL_S = 0.1
WORST_FIRST = (ExitCode.ERROR, ExitCode.VIOLATED, ExitCode.UNDECIDED)  # of `harness drill`
_OF_THE_WHOLE = ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY")  # annotations and summary are the whole's, not a shard's
Ended = Callable[[Shard, str, int], None]  # a shard, its GPU, its exit code


def gpu_names(wanted: str) -> list[str]:
    """The GPUs that `--gpus` names: all, or indices or UUIDs with commas between them. Raises UsageError."""
    named = [name.strip() for name in wanted.split(",") if name.strip()]
    names = [gpu.uuid for gpu in devices().gpus] if wanted.strip() == "all" else named
    if not names:
        raise UsageError(
            "--gpus needs a CUDA device",
            got=devices().problem or repr(wanted),
            remedy="leave it out: then what this machine can decide is decided",
        )
    return names


def new_directory(reports: Path, name: str | None) -> Path:
    """Where the shards' run directories go; by default a folder with the date and the machine in its name."""
    if name is not None:
        return reports / name
    return unused(reports / f"{session.directory_name(datetime.now(tz=UTC), session.VerifyOptions())}-gpus")


def run_shards(
    shards: Sequence[Shard], gpus: Sequence[str], directory: Path, ended: Ended, passed_on: Sequence[str] = ()
) -> dict[str, int]:
    """Run every shard once; its run directory, and its output as `NAME.txt`, below `directory`, which must be new.

    The exit code of each shard. KeyboardInterrupt, and SystemExit on SIGTERM, end the shards under way with SIGTERM, so
    that they keep what they saw, and carry a note that says where; no other shard begins.
    """
    try:
        directory.mkdir(parents=True)
    except FileExistsError:
        raise UsageError("shards need a folder of their own", where=str(directory), got="one that exists") from None
    waiting, codes = deque(shards), dict[str, int]()
    running: dict[str, tuple[Shard, KeptProcess]] = {}
    try:
        while waiting or running:
            for gpu in gpus:
                if waiting and gpu not in running:
                    shard = waiting.popleft()
                    running[gpu] = shard, _start(shard, gpu, directory, passed_on)
            for gpu, (shard, process) in list(running.items()):
                code = process.poll()
                if code is not None:
                    process.kill()
                    del running[gpu]
                    codes[shard.name] = code
                    ended(shard, gpu, code)
            time.sleep(POLL_S)
    except BaseException as error:
        _end([process for _, process in running.values()])
        error.add_note(f"what the shards saw is kept in {directory}")
        raise
    return codes


def _start(shard: Shard, gpu: str, directory: Path, passed_on: Sequence[str]) -> KeptProcess:
    """The shard's process: Ctrl-C reaches it once, through `_end`, since it has a session of its own."""
    variables: Mapping[str, str] = {name: value for name, value in os.environ.items() if name not in _OF_THE_WHOLE}
    with (directory / f"{shard.name}.txt").open("wb") as log:
        return KeptProcess(
            shard.command(directory, passed_on),
            env={**variables, "CUDA_VISIBLE_DEVICES": gpu, "PYTHONPATH": child_path()},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def _end(processes: Sequence[KeptProcess]) -> None:
    """SIGTERM to each, and wait until they have written down what they have."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait()
        process.kill()


def run_directories(shards: Sequence[Shard], directory: Path) -> list[Path]:
    """The run directory of every shard. Raises EvidenceError when one left none."""
    missing = [shard.name for shard in shards if not (directory / shard.name / layout.HEADER).is_file()]
    if missing:
        raise EvidenceError(
            "every shard leaves a run directory",
            where=str(directory),
            got=f"none of {', '.join(missing)}",
            remedy="see the output of each in NAME.txt",
        )
    return [directory / shard.name for shard in shards]


def worst(codes: Iterable[int]) -> int:
    """The exit code of several drills; one that nobody knows counts as an error."""
    seen = set(codes) - {ExitCode.HELD}
    return next((code for code in WORST_FIRST if code in seen), ExitCode.ERROR if seen else ExitCode.HELD)
