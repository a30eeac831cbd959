"""The whole gate on all GPUs of one machine: a process a GPU takes shard after shard, then all are judged together.

    python scripts/gate_on_gpus.py OUT_DIRECTORY [CONTRACT ...] [--gpus 0 1 2 3]

A shard is one timing claim, or the other claims of a contract. Timings first: they take longest. On eight H200s the
contracts of this repository but capture-cost-v1 took seven and a half minutes, 24 minutes of one GPU. Exit code: that
of `harness judge --gate` over all shards; 12 when a shard left no run directory.
"""

from __future__ import annotations

import argparse
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.contract.claims import parts_of
from harness.contract.load import load_contracts
from harness.evidence.cuda_driver import devices

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Shard:
    """One call of `harness verify`, and the name of its run directory."""

    name: str
    contract: Path
    claims: tuple[str, ...]

    def command(self, out: Path) -> list[str]:
        claims = [word for claim in self.claims for word in ("--claim", claim)]
        call = ["verify", str(self.contract), *claims, "--reports", str(out), "--name", self.name]
        return [sys.executable, "-m", "harness", *call]


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
    parser.add_argument("--gpus", nargs="+", help="indices or UUIDs; all by default")
    arguments = parser.parse_args()
    gpus = arguments.gpus or [gpu.uuid for gpu in devices().gpus]
    if not gpus:
        parser.error("no CUDA device was found; `harness verify` decides what a machine without one can")
    out = arguments.out.resolve()
    out.mkdir(parents=True)

    def run(shard: Shard, gpu: str) -> None:
        with (out / f"{shard.name}.txt").open("wb") as log:
            environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu}
            code = subprocess.call(shard.command(out), env=environment, stdout=log, stderr=log, cwd=ROOT)
        print(f"{shard.name} on {gpu}: exit code {code}", flush=True)

    planned = shards([path.resolve() for path in arguments.contracts])
    run_all(planned, gpus, run)
    missing = [shard.name for shard in planned if not (out / shard.name / "run.json").is_file()]
    if missing:
        print(f"these shards left no run directory, see their output: {', '.join(missing)}", file=sys.stderr)
        return 12
    directories = [str(out / shard.name) for shard in planned]
    return subprocess.call([sys.executable, "-m", "harness", "judge", "--gate", *directories], cwd=ROOT)


if __name__ == "__main__":
    sys.exit(main())
