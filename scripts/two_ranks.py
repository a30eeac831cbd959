"""Two ranks on two GPUs: ranks that end or diverge, the contract `ranks-v1` in parts, its drill, figures by hand.

    python scripts/two_ranks.py OUT_DIRECTORY [PART or CALL ...] [--minutes 9]

Each part is a process of its own with a limit; one that fails, or finds less time left than it needs, costs no other.
After each part OUT_DIRECTORY holds all run directories so far as one archive, every part's output in one log, and a
line a part in `parts.jsonl`. The parts of a gate are judged together by `harness judge --gate`. A drill that is cut off
cannot be sealed: each is a part that ends. A call is what fits into nine minutes: `first`, `second`, `third`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).parents[1]
CONTRACT = "contracts/ranks-v1.yaml"
# Sums within the switch have no order that software knows, and need a feature that not every host allows.
ENVIRONMENT = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "PYTHONUNBUFFERED": "1",
}
STEPS, WARM, RANKS = 40, 10, 2
RUNS, LOG, SUMMARY, ARCHIVE = "runs", "log.txt", "parts.jsonl", "runs.tar.xz"


TRAINS = ("RANKS-001", "RANKS-002", "RANKS-003")


class Part(NamedTuple):
    """Arguments of Python; the seconds without which it is not begun, and those after which it is ended."""

    arguments: list[str]
    needs_s: float
    limit_s: float


def _harness(command: str, name: str, claims: Sequence[str], workload: str | None = None) -> list[str]:
    """The command on some claims of the contract. A drill takes the smallest workload, and has no option for it."""
    narrowed = [word for claim in claims for word in ("--claim", claim)]
    narrowed += [] if workload is None else ["--workload", workload]
    return ["-m", "harness", command, CONTRACT, *narrowed, "--name", name]


LAUNCH = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
SIGNALS = ["scripts/verify_ranks.py", CONTRACT, "--workload", "tiny", "--claim", "RANKS-002", "--only-signals"]
# Seconds on two H200s: measured for trains-tiny (47), trains-128 without RANKS-003's third arm (184), memory (76) and
# speed-128 (70); the others are reckoned from those.
PARTS: dict[str, Part] = {
    "signals": Part(SIGNALS, 90, 150),
    "drill-replicas": Part(_harness("drill", "drill-replicas", TRAINS[1:]), 150, 300),
    "speed-128": Part(_harness("verify", "speed-128", ["RANKS-004"], "qwen2-1.5b-128"), 70, 140),
    "drill-bits": Part(_harness("drill", "drill-bits", TRAINS[:1]), 150, 300),
    "trains-tiny": Part(_harness("verify", "trains-tiny", TRAINS, "tiny"), 60, 120),
    "speed-tiny": Part(_harness("verify", "speed-tiny", ["RANKS-004"], "tiny"), 50, 120),
    "trains-128": Part(_harness("verify", "trains-128", TRAINS, "qwen2-1.5b-128"), 230, 340),
    "trains-512": Part(_harness("verify", "trains-512", TRAINS[:2], "qwen2-1.5b-512"), 110, 240),
    "speed-512": Part(_harness("verify", "speed-512", ["RANKS-004"], "qwen2-1.5b-512"), 80, 160),
    "direct": Part([*LAUNCH, "scripts/two_ranks.py", "--as-rank"], 40, 150),
    "memory": Part(_harness("verify", "memory", ["RANKS-005-128", "RANKS-005-512"]), 75, 150),
    "drill-memory-128": Part(_harness("drill", "drill-memory-128", ["RANKS-005-128"]), 100, 200),
    "drill-memory-512": Part(_harness("drill", "drill-memory-512", ["RANKS-005-512"]), 120, 240),
    "drill-speed": Part(_harness("drill", "drill-speed", ["RANKS-004"]), 200, 400),
}
CALLS = {
    "first": ["signals", "drill-replicas", "speed-128", "drill-bits", "trains-tiny"],
    "second": ["trains-128", "trains-512", "speed-512", "speed-tiny", "direct"],
    "third": ["drill-speed", "memory", "drill-memory-128", "drill-memory-512"],
}


def as_rank() -> None:
    """One rank: the plain and the captured step of the adapter, compared in bits, timed; prints a line a shape."""
    import torch
    import torch.distributed as dist

    cuda, rank = torch.cuda.is_available(), int(os.environ["LOCAL_RANK"])
    if cuda:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    else:
        dist.init_process_group("gloo")
    for model, seq_len in (("tiny", 64), ("qwen2-1.5b", 128), ("qwen2-1.5b", 512)) if cuda else (("tiny", 8),):
        plain, captured = (_trained(model, seq_len, capture) for capture in ("none", "step"))
        found = {
            "rank": rank,
            "model": model,
            "seq_len": seq_len,
            "losses_equal": plain["losses"] == captured["losses"],
            "parameters_equal": plain["parameters"] == captured["parameters"],
            "first_and_last_loss": [captured["losses"][0], captured["losses"][-1]],
            "parameters": captured["parameters"],
            "captured": captured["record"],
            "plain_ms": plain["ms"],
            "captured_ms": captured["ms"],
            "plain_peak_gib": plain["peak"],
            "captured_peak_gib": captured["peak"],
            "sums_in_a_step": captured["sums"],
        }
        print(json.dumps(found), flush=True)
    dist.destroy_process_group()


def _trained(model: str, seq_len: int, capture: str) -> dict[str, Any]:
    """Some steps of one arm in this rank: losses, a digest of the parameters, ms a step, peak, kernels of the sum."""
    import hashlib

    import torch

    from harness.contract.schema import Arm, Workload
    from reference_impl.system import QLoRASystem

    cuda = torch.cuda.is_available()
    shape = {"model": model, "batch_size": 4 * RANKS, "seq_len": seq_len, "steps": STEPS}
    workload = Workload.model_validate({**shape, "needs": {"device": "cuda" if cuda else "cpu"}})
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with QLoRASystem().open(workload, Arm.model_validate({"capture": capture, "ranks": RANKS})) as run:
        losses, started = [], 0.0
        for index in range(STEPS):
            if index == WARM:
                _wait()
                started = time.perf_counter()
            losses.append(run.step(index))
        _wait()
        seconds = time.perf_counter() - started
        flat = run.trainer.trainable.flat.cpu().numpy().tobytes()
        record = run.capture_record()
        return {
            "losses": [loss.item() for loss in losses],
            "parameters": hashlib.sha256(flat).hexdigest()[:16],
            "ms": round(1e3 * seconds / (STEPS - WARM), 3),
            "peak": round(torch.cuda.max_memory_allocated() / 2**30, 3) if cuda else None,
            "record": {"captured": record.captured, "failure": record.failure, "replays": record.replays},
            "sums": _sums(lambda: run.step(STEPS)),
        }


def _wait() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _sums(step: Callable[[], object]) -> list[str]:
    """The kernels of NCCL that one step launches, by the profiler; of gloo the calls."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if _on_cuda() else [])]) as profiled:
        step()
        _wait()
    names = [str(event.name) for event in profiled.events()]
    return [name for name in names if "ncclDevKernel" in name or name.startswith("gloo:")]


def _on_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def execute(name: str, folder: Path, limit_s: float) -> int | None:
    """The exit status of a part, None where it was ended by its limit; its processes end with it."""
    arguments = PARTS[name].arguments
    reports = [] if "--as-rank" in arguments else ["--reports", str(folder / RUNS)]
    command = [sys.executable, *arguments, *reports]
    with (folder / LOG).open("a", encoding="utf-8") as log:
        log.write(f"\n== {name}: {' '.join(command[1:])}\n")
        log.flush()
        process = subprocess.Popen(
            command, cwd=ROOT, env=_environment(), stdout=log, stderr=log, start_new_session=True
        )
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.terminate()  # the harness ends its own processes, and leaves what is whole
            try:
                process.wait(15.0)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            return None


def _environment() -> dict[str, str]:
    """This process's, with the sources first among the places of modules."""
    places = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(places)}


def pack(folder: Path) -> None:
    """All run directories so far as one archive, in the place of the last one."""
    if not (folder / RUNS).is_dir():
        return
    with tarfile.open(folder / "partial", "w:xz", preset=1) as archive:
        archive.add(folder / RUNS, arcname=RUNS)
    (folder / "partial").rename(folder / ARCHIVE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?")
    known = f"{', '.join(CALLS)}, or {', '.join(PARTS)}; by default all"
    parser.add_argument("parts", nargs="*", default=[], metavar="PART", help=known)
    parser.add_argument("--minutes", type=float, default=9.0, help="for all parts together")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.as_rank:
        as_rank()
        return
    if given.out is None:
        parser.error("name the directory for what is found")
    parts = [part for name in given.parts for part in CALLS.get(name, [name])] or list(PARTS)
    unknown = [name for name in parts if name not in PARTS]
    if unknown:
        parser.error(f"no part is named {unknown[0]!r}: choose of {known}")
    given.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * given.minutes
    for name in parts:
        started = time.monotonic()
        left = end - started
        enough = left >= PARTS[name].needs_s
        status = execute(name, given.out.resolve(), min(left, PARTS[name].limit_s)) if enough else "no time left"
        line = json.dumps({"part": name, "status": status, "seconds": round(time.monotonic() - started, 1)})
        print(line, flush=True)
        with (given.out / SUMMARY).open("a", encoding="utf-8") as summary:
            summary.write(line + "\n")
        pack(given.out.resolve())
    print((given.out / LOG).read_text(encoding="utf-8", errors="replace")[-8000:])


if __name__ == "__main__":
    main()
