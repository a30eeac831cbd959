"""Two ranks on two GPUs: figures without the harness, then the contract `ranks-v1` in parts, and its drill.

    python scripts/two_ranks.py OUT_DIRECTORY [PART ...] [--minutes 9.5]

Each part is a process of its own with a limit; one that fails, or finds too little time left, costs no other. After
each part OUT_DIRECTORY holds all run directories so far as one archive, every part's output in one log, and a line a
part in `parts.jsonl`. The parts of a gate are judged together by `harness judge --gate`.
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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

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
LEAST_S = 30.0  # less is not worth a start
RUNS, LOG, SUMMARY, ARCHIVE = "runs", "log.txt", "parts.jsonl", "runs.tar.xz"


def _verify(name: str, *claims: str, workload: str | None = None) -> list[str]:
    chosen = [word for claim in claims for word in ("--claim", claim)]
    return [
        "-m",
        "harness",
        "verify",
        CONTRACT,
        *chosen,
        *([] if workload is None else ["--workload", workload]),
        "--name",
        name,
    ]


LAUNCH = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
# Name -> arguments of Python, and the seconds that it may take.
PARTS: dict[str, tuple[list[str], float]] = {
    "direct": ([*LAUNCH, "scripts/two_ranks.py", "--as-rank"], 150.0),
    "trains-tiny": (_verify("trains-tiny", "RANKS-001", "RANKS-002", "RANKS-003", workload="tiny"), 120.0),
    "trains-128": (_verify("trains-128", "RANKS-001", "RANKS-002", "RANKS-003", workload="qwen2-1.5b-128"), 300.0),
    "trains-512": (_verify("trains-512", "RANKS-001", "RANKS-002", workload="qwen2-1.5b-512"), 240.0),
    "memory": (_verify("memory", "RANKS-005-128", "RANKS-005-512"), 300.0),
    "speed-128": (_verify("speed-128", "RANKS-004", workload="qwen2-1.5b-128"), 480.0),
    "speed-512": (_verify("speed-512", "RANKS-004", workload="qwen2-1.5b-512"), 480.0),
    "speed-tiny": (_verify("speed-tiny", "RANKS-004", workload="tiny"), 300.0),
    "drill": (["-m", "harness", "drill", CONTRACT, "--name", "drill"], 580.0),
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
    arguments = PARTS[name][0]
    command = [sys.executable, *arguments, *(["--reports", str(folder / RUNS)] if "harness" in arguments else [])]
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
    parser.add_argument("parts", nargs="*", default=[], metavar="PART", help=f"of {', '.join(PARTS)}; by default all")
    parser.add_argument("--minutes", type=float, default=9.5, help="for all parts together")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.as_rank:
        as_rank()
        return
    if given.out is None:
        parser.error("name the directory for what is found")
    unknown = [name for name in given.parts if name not in PARTS]
    if unknown:
        parser.error(f"no part is named {unknown[0]!r}: choose of {', '.join(PARTS)}")
    given.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * given.minutes
    for name in given.parts or PARTS:
        left = end - time.monotonic()
        started = time.monotonic()
        status = execute(name, given.out.resolve(), min(left, PARTS[name][1])) if left > LEAST_S else "no time left"
        line = json.dumps({"part": name, "status": status, "seconds": round(time.monotonic() - started, 1)})
        print(line, flush=True)
        with (given.out / SUMMARY).open("a", encoding="utf-8") as summary:
            summary.write(line + "\n")
        pack(given.out.resolve())
    print((given.out / LOG).read_text(encoding="utf-8", errors="replace")[-8000:])


if __name__ == "__main__":
    main()
