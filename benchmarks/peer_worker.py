"""A process of the peer benchmark. It prepares the checkpoint, or opens one arm at one shape and times it on request.

Requests and answers are JSON lines on the pipe that the harness gives a child process. Output of libraries goes to
`output.txt` in the worker's folder. If a request fails, the answer is ``{"error": …}``, and the process ends.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.arms.job import Job, OpenedArm
from benchmarks.measure import (
    peak_memory_gib,
    reset_peak_memory,
    steps_of_a_round,
    synchronize,
    time_steps,
)
from benchmarks.peer_plan import OURS
from harness.processes.child import take_standard_input
from reference_impl.config import MODEL_PRESETS, TrainConfig

# Number of untimed steps after the first step. The compiled arm captures its CUDA graphs in its second and third step.
WARMUP_STEPS = 5
# Before each round, run untimed steps so that the GPU's clocks rise: two steps, or one step if a step takes
# WARM_AGAIN_S or longer.
WARM_AGAIN_STEPS = 2
WARM_AGAIN_S = 0.1


def open_arm(job: Job) -> OpenedArm:
    """Open the job's arm. The arm's libraries are imported here, so that a missing library makes only this arm fail."""
    if job.arm in OURS:
        from benchmarks.arms.ours import open_ours

        return open_ours(job)
    if job.arm == "gemm_floor":
        from benchmarks.floor import GemmFloor

        floor = GemmFloor(job.config, job.batch_size * job.seq_len, torch.device(job.device))
        return OpenedArm(floor.step, {"mechanism": "cuda_graph" if floor.captured else None})
    match job.arm:
        case "hf_liger_compiled":
            from benchmarks.arms.fused_peers import open_liger

            return open_liger(job)
        case "axolotl_compiled":
            from benchmarks.arms.fused_peers import open_axolotl

            return open_axolotl(job)
        case "torchtune_compiled":
            from benchmarks.arms.torchtune_peer import open_torchtune

            return open_torchtune(job)
    from benchmarks.arms import huggingface

    unsloth = job.arm.startswith("unsloth")
    return huggingface.open_unsloth(job) if unsloth else huggingface.open_huggingface(job)


class ArmProcess:
    """An arm after its first steps, ready to be timed in rounds."""

    def __init__(self, job: Job) -> None:
        began = time.perf_counter()
        self._device = torch.device(job.device)
        self._arm = open_arm(job)
        # Reset the peak here. The step's peak memory should include capture and compilation, but not the loading of the
        # model.
        synchronize(self._device)
        reset_peak_memory(self._device)
        loss = self._arm.step(0)
        synchronize(self._device)
        self._next = 1
        # number of steps in a round; None until one step has been timed while the other processes are paused
        self._steps: int | None = None
        self.ready: dict[str, Any] = {
            "loss_step_0": None if loss is None else float(loss),
            "batch_digest": _batch_digest(job),
            "facts": {**self._arm.facts, **self._arm.after_first_step()},
        }
        self._advance(WARMUP_STEPS)
        self.ready["startup_s"] = time.perf_counter() - began

    def _advance(self, steps: int) -> None:
        for index in range(self._next, self._next + steps):
            self._arm.step(index)
        synchronize(self._device)
        self._next += steps

    def measure(self) -> dict[str, Any]:
        """Time one round: single steps, and a block with the same number of steps.

        First, untimed steps let the GPU's clocks rise. In the first round, their time sets the number of timed steps.
        """
        taken: list[float] = []
        while len(taken) < WARM_AGAIN_STEPS and sum(taken) < WARM_AGAIN_S:
            began = time.perf_counter()
            self._advance(1)
            taken.append(time.perf_counter() - began)
        if self._steps is None:
            self._steps = steps_of_a_round(min(taken) * 1e3)
        times = time_steps(self._arm.step, self._next, self._steps, self._device)
        self._next += 2 * self._steps
        return {**asdict(times), "block_steps": self._steps}

    def finish(self) -> dict[str, Any]:
        allocated, reserved = peak_memory_gib(self._device)
        return {"peak_gib": allocated, "peak_reserved_gib": reserved, "steps": self._next}


def _batch_digest(job: Job) -> str:
    """Return the SHA-256 of the tokens of batches 0 and 1, with which the parent compares the arms' batches."""
    batches = job.batches()
    tokens = torch.stack([batches.batch(index, job.batch_size, job.seq_len)[0] for index in (0, 1)])
    return hashlib.sha256(tokens.numpy().tobytes()).hexdigest()


def answers(requests: Iterable[str | None]) -> Iterator[dict[str, Any]]:
    """Yield one answer for each request line."""
    arm: ArmProcess | None = None
    for line in requests:
        request = json.loads(line or "")
        match request["do"]:
            case "environment":
                from benchmarks.measure import environment

                yield {"environment": environment()}
            case "checkpoint":
                from benchmarks.peer_checkpoint import write_checkpoint

                model = MODEL_PRESETS[request["model"]]
                directory = Path(request["directory"])
                tokenized = write_checkpoint(model, directory, torch.device(request["device"]))
                yield {"tokenized": str(tokenized)}
            case "reference":
                from benchmarks.peer_checkpoint import reference_losses

                yield {"losses": reference_losses([Job(**job) for job in request["jobs"]])}
            case "floors":
                from benchmarks.floor import step_and_floors

                job = Job(**request["job"])
                config = TrainConfig.preset(
                    job.model, batch_size=job.batch_size, seq_len=job.seq_len, device=job.device
                )
                yield step_and_floors(config).described()
            case "open":
                arm = ArmProcess(Job(**request["job"]))
                yield arm.ready
            case "measure" if arm is not None:
                yield arm.measure()
            case "finish" if arm is not None:
                yield arm.finish()
            case unknown:
                raise ValueError(f"request {unknown!r} is unknown, or was sent before 'open'; send 'open' first")


def main() -> None:
    line, folder = take_standard_input(), Path(sys.argv[1])
    os.chdir(folder)
    with Path("output.txt").open("wb") as printed:
        for stream in (1, 2):
            os.dup2(printed.fileno(), stream)
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    try:
        for answer in answers(iter(lambda: line.receive(None), "")):
            line.send(json.dumps(answer))
    except Exception as error:
        traceback.print_exc()
        line.send(json.dumps({"error": f"{type(error).__name__}: {error}"}))
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
