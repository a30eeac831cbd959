"""The whole gate, or the whole fire drill, on all GPUs of one machine: each GPU takes shard after shard.

    python scripts/gate_on_gpus.py OUT_DIRECTORY [CONTRACT ...] [--drill] [--gpus 0 1 2 3]

A shard of the gate is one timing claim, or the other claims of a contract; of the drill, one fault of a timing claim,
or some claims' other faults. Timings first: they take longest.

Exit code: that of `harness judge --gate` over all shards, 12 when a shard left no run directory; of a drill, the first
of 12, 1 and 10 that a shard ended with, else 0. SIGINT and SIGTERM end the shards under way, which keep their evidence
so far, and start no others: 130, 143.
"""

from __future__ import annotations

import argparse
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from harness.contract.claims import parts_of
from harness.contract.load import load_contracts
from harness.evidence.cuda_driver import devices

ROOT = Path(__file__).parents[1]
MOST_FAULTS = 16  # of a drill's shard: an untimed fault took about twelve seconds on an H200
WORST_FIRST = (12, 1, 10)  # exit codes of `harness drill`


@dataclass(frozen=True)
class Shard:
    """One call of `harness verify`, or, with `drill`, of `harness drill`; `faults` empty: all."""

    name: str
    contract: Path
    claims: tuple[str, ...]
    faults: tuple[str, ...] = ()
    drill: bool = False

    def command(self, out: Path) -> list[str]:
        narrowed = [word for claim in self.claims for word in ("--claim", claim)]
        narrowed += [word for fault in self.faults for word in ("--fault", fault)]
        contract = self.contract.relative_to(ROOT) if self.contract.is_relative_to(ROOT) else self.contract
        call = ["drill" if self.drill else "verify", str(contract), *narrowed]  # a run directory tells its command
        return [sys.executable, "-m", "harness", *call, "--reports", str(out), "--name", self.name]


def shards(contracts: Sequence[Path]) -> list[Shard]:
    """Every claim of every contract once, timings first."""
    timed, others = [], []
    for loaded in load_contracts(contracts):
        rest = []
        for claim in loaded.contract.claims:
            if any(part.kind == "throughput_ratio" for part in parts_of(claim)):
                timed.append(Shard(claim.id, loaded.path, (claim.id,)))
            else:
                rest.append(claim.id)
        if rest:
            others.append(Shard(loaded.contract.id, loaded.path, tuple(rest)))
    return timed + sorted(others, key=lambda shard: -len(shard.claims))


def drill_shards(contracts: Sequence[Path]) -> list[Shard]:
    """Every fault of every claim once, those of timings first, each in a shard of its own beside its control."""
    timed, others = [], []
    for loaded in load_contracts(contracts):
        rest: list[list[str]] = []
        planted = MOST_FAULTS
        for claim in loaded.contract.claims:
            faults = claim.falsified_by
            if any(part.kind == "throughput_ratio" for part in parts_of(claim)):
                timed += [
                    Shard(f"{claim.id}-{fault}", loaded.path, (claim.id,), (fault,), drill=True) for fault in faults
                ]
                continue
            if planted + len(faults) > MOST_FAULTS:
                rest.append([])
                planted = 0
            rest[-1].append(claim.id)
            planted += len(faults)
        name = loaded.contract.id
        others += [Shard(f"{name}-{number}", loaded.path, tuple(ids), drill=True) for number, ids in enumerate(rest)]
    return timed + others


def worst(codes: Iterable[int]) -> int:
    """The exit code of several drills; one that nobody knows counts as an error."""
    seen = set(codes) - {0}
    return next((code for code in WORST_FIRST if code in seen), 12 if seen else 0)


class Calls:
    """The commands under way, so that a signal ends them all."""

    def __init__(self) -> None:
        self.ended_by: int | None = None
        self._lock = threading.RLock()  # a second signal interrupts `end` in the same thread
        self._running: set[subprocess.Popen[bytes]] = set()

    def call(self, command: Sequence[str], **options: Any) -> int:
        """The exit code of a command; negative when a signal ended it. -SIGTERM, and nothing run, after `end`."""
        with self._lock:
            if self.ended_by is not None:
                return -signal.SIGTERM
            # in a session of its own, so that Ctrl-C reaches it once, through `end`
            process = subprocess.Popen(command, start_new_session=True, **options)
            self._running.add(process)
        code = process.wait()
        with self._lock:
            self._running.discard(process)
        return code

    def end(self, number: int, _frame: FrameType | None = None) -> None:
        """Signal handler: end what runs, and let nothing else begin."""
        with self._lock:  # a command that is about to begin is then among those under way, or does not begin
            self.ended_by = number
            for process in self._running:
                process.terminate()


def run_all(work: Sequence[Shard], gpus: Sequence[str], run: Callable[[Shard, str], None]) -> None:
    """Each GPU takes the next shard when it is free. An error of `run` is raised when all are done."""
    waiting: queue.SimpleQueue[Shard] = queue.SimpleQueue()
    for shard in work:
        waiting.put(shard)
    errors: list[BaseException] = []

    def take(gpu: str) -> None:
        while True:
            try:
                shard = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                run(shard, gpu)
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=take, args=(gpu,)) for gpu in gpus]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="a new folder: a run directory a shard, and its output beside it")
    parser.add_argument("contracts", type=Path, nargs="*", default=[ROOT / "contracts"])
    parser.add_argument("--drill", action="store_true", help="plant every fault instead of verifying")
    parser.add_argument("--gpus", nargs="+", help="indices or UUIDs; all by default")
    arguments = parser.parse_args()
    gpus = arguments.gpus or [gpu.uuid for gpu in devices().gpus]
    if not gpus:
        parser.error("no CUDA device was found; `harness verify` decides what a machine without one can")
    out = arguments.out.resolve()
    out.mkdir(parents=True)

    codes: dict[str, int] = {}
    calls = Calls()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, calls.end)

    def run(shard: Shard, gpu: str) -> None:
        if calls.ended_by is not None:
            return
        with (out / f"{shard.name}.txt").open("wb") as log:
            environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu}
            codes[shard.name] = calls.call(shard.command(out), env=environment, stdout=log, stderr=log, cwd=ROOT)
        print(f"{shard.name} on {gpu}: exit code {codes[shard.name]}", flush=True)

    contracts = [path.resolve() for path in arguments.contracts]
    planned = drill_shards(contracts) if arguments.drill else shards(contracts)
    run_all(planned, gpus, run)
    if calls.ended_by is not None:
        print(f"interrupted: what the shards had seen is kept in {out}", file=sys.stderr)
        return 128 + calls.ended_by
    if arguments.drill:
        return worst(codes.values())
    missing = [shard.name for shard in planned if not (out / shard.name / "run.json").is_file()]
    if missing:
        print(f"these shards left no run directory, see their output: {', '.join(missing)}", file=sys.stderr)
        return 12
    directories = [str(out / shard.name) for shard in planned]
    return subprocess.call([sys.executable, "-m", "harness", "judge", "--gate", *directories], cwd=ROOT)


if __name__ == "__main__":
    sys.exit(main())
