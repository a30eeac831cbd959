"""Execute the runs of contracts for small systems, in forks of a process that has already imported torch.

A worker of `harness verify` needs seconds for imports, but a small system's run takes a fraction of a second. Each run
has its own fork, which does the work of a worker. A time limit replaces the supervisor. A fork cannot use a GPU if its
parent has called the CUDA driver. With PYTORCH_NVML_BASED_CUDA_CHECK=1, torch checks for a GPU without this call.
Another process reads the facts about the GPU that the harness needs.
"""

from __future__ import annotations

import gc
import importlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace

import torch
from pydantic import BaseModel

from harness.contract.load import LoadedContract
from harness.devices import environment
from harness.devices.environment import Machine
from harness.evidence import layout
from harness.evidence.base import Record
from harness.evidence.plan_records import Run, Unit
from harness.evidence.read_run import read_run
from harness.evidence.run_evidence import Death, RunEvidence
from harness.evidence.run_records import Raised, Unavailable
from harness.execution.probes import training_part
from harness.execution.recorder import Recorder
from harness.execution.supervisor import write_death
from harness.judging.registry import judge_unit
from harness.judging.verdict import Verdict
from harness.kinds import imported, probe_named
from harness.numbers import dump_json
from harness.planning.plan import Plan, plan
from harness.processes import child
from harness.processes.child import Ending, child_path
from harness.system.protocol import NotAvailable
from harness.system.replay.traced import TracedStep
from harness.system.resolve import resolve
from harness.system.users_code import message_of, obstacle_of, stack_of
from harness.system.wrappers import HARNESS_FAULTS

JOBS = 10  # number of forks that use a GPU at the same time
# Modules that probes import when they first need them. `prepare` imports them before forking, to save time.
AHEAD = (
    "torch._dynamo",
    "harness.execution.probes.paired",
    "harness.execution.probes.between_steps",
    "harness.execution.probes.long_replay",
    "harness.system.replay.generators",
)


def prepare() -> None:
    """Import the modules that runs need. Limit torch to one thread, because forks have one too, and the
    number of threads changes the order of additions."""
    if not torch.cuda.is_available():
        # Set this variable now, because Triton reads it when it is imported below.
        os.environ.setdefault("TRITON_INTERPRET", "1")
    torch.set_num_threads(1)
    for module in AHEAD:
        importlib.import_module(module)
    if not torch.cuda.is_available():
        _record_a_step()
    _build_models(Record)
    settle()


def _record_a_step() -> None:
    """Record one step. The first recording in a process makes preparations, which forks then need not repeat."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.LayerNorm(4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, fused=True)
    tokens = torch.zeros(2, dtype=torch.int64)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(torch.ones(2, 4)), tokens)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    TracedStep(step, lambda: dict(model.named_parameters()), roots=[step]).record()


def _build_models(base: type[BaseModel]) -> None:
    """Build pydantic's validators of all models now. Otherwise each fork would build them at their first use."""
    for model in base.__subclasses__():
        model.model_rebuild()
        _build_models(model)


def settle() -> None:
    """Exempt all existing objects from garbage collection, so that the collectors of forks do not examine them."""
    gc.collect()
    gc.freeze()


@cache
def machine() -> Machine:
    """Return the description of the machine for plans. With a GPU, another process makes the description."""
    if not torch.cuda.is_available():
        return environment.machine()
    with ProcessPoolExecutor(1, get_context("spawn")) as other:
        return other.submit(environment.machine).result()


def planned(contracts: Sequence[LoadedContract], claims: Sequence[str] = ()) -> Plan:
    """Return the plan that `harness verify` would make on this machine."""
    return plan(
        contracts,
        claims=list(claims),
        machine=machine(),
        describe=lambda name: resolve(name).describe(),
        harness_faults=HARNESS_FAULTS,
    )


def judged(
    contracts: Sequence[LoadedContract], work: Plan, folder: Path, limit_s: float
) -> list[tuple[Verdict, float]]:
    """Execute the runs of the plan. Return the verdict on each unit, and the seconds of the runs that decided it."""
    by_run: dict[str, tuple[RunEvidence, float]] = {}
    for run in work.runs:
        began = time.monotonic()
        by_run[run.id] = execute(run, folder / run.id, limit_s), time.monotonic() - began
    found = []
    for unit in work.units:
        deciding = [by_run[name] for name in unit.runs if name in by_run]
        verdict = verdict_on(unit, contracts, [evidence for evidence, _ in deciding])
        found.append((verdict, sum(seconds for _, seconds in deciding)))
    return found


def verdict_on(unit: Unit, contracts: Sequence[LoadedContract], evidence: Sequence[RunEvidence]) -> Verdict:
    """Return the judge's verdict on a unit of one of these contracts."""
    [contract] = [loaded.contract for loaded in contracts if loaded.contract.id == unit.contract]
    [claim] = [claim for claim in contract.claims if claim.id == unit.claim]
    return judge_unit(contract, claim, unit.workload, evidence, unit.obstacle)


def execute(run: Run, directory: Path, limit_s: float) -> RunEvidence:
    """Execute one run in a fork, which writes its evidence into `directory`. Return the evidence. If a signal or the
    time limit ends the fork, the evidence contains a record of this death."""
    directory.mkdir(parents=True)
    (directory / layout.RUN).write_text(dump_json(run.model_dump(), sort_keys=False), encoding="utf-8")
    process = Fork(lambda: _work(run, directory))
    ended = process.wait(limit_s)
    if ended is None:
        process.kill()
        process.wait()
        detail = f"still running after {limit_s:g} s"
        write_death(Death(cause="wall_limit", detail=detail, phase=None, stack=""), directory)
    elif ended < 0:
        detail = Ending(ended).name
        write_death(Death(cause="signal", detail=detail, phase=None, stack=""), directory)
    return read_run(directory)[1]


def _work(run: Run, directory: Path) -> None:
    # Start new processes instead of forks. This process has used the device, so its forks could not use the device.
    if torch.cuda.is_available():
        os.environ["PYTHONPATH"] = child_path()
    else:
        vars(child)["subprocess"] = SimpleNamespace(**{**vars(subprocess), "Popen": _OtherPart})
    with Recorder(directory) as recorder:
        try:
            imported(probe_named(run.probe).execute)(run, recorder)
        except NotAvailable as error:
            recorder.write(Unavailable(obstacle=obstacle_of(error)))
        except BaseException as error:  # user code may raise anything, also SystemExit
            recorder.write(Raised(error=message_of(error), stack=stack_of(error)))
            return
        recorder.complete()


class Fork:
    """A forked process that does some work and ends."""

    def __init__(self, work: Callable[[], object]) -> None:
        sys.stdout.flush()
        self.pid = os.fork()
        self._ended: int | None = None
        if self.pid == 0:
            code = 1
            try:
                work()
                code = 0
            finally:
                os._exit(code)

    def wait(self, limit_s: float | None = None) -> int | None:
        """Wait up to `limit_s` seconds. Return the exit code (negative for a signal), or None at the time limit."""
        until = None if limit_s is None else time.monotonic() + limit_s
        while self._ended is None:
            pid, status = os.waitpid(self.pid, 0 if until is None else os.WNOHANG)
            if pid:
                self._ended = os.waitstatus_to_exitcode(status)
            elif until is not None and time.monotonic() > until:
                return None
            else:
                time.sleep(0.01)
        return self._ended

    def kill(self) -> None:
        if self._ended is None:
            os.kill(self.pid, signal.SIGKILL)


def at_once(
    works: Mapping[str, Callable[[], object]], jobs: int = JOBS, limit_s: float = math.inf
) -> Iterator[tuple[str, int | None]]:
    """Run each function of `works` in a fork, up to `jobs` at a time. When a fork ends, yield the function's name and
    the fork's exit code. The exit code is None for a fork that was killed after `limit_s` seconds."""
    waiting, running = [*works], dict[str, tuple[Fork, float]]()
    while running or waiting:
        while waiting and len(running) < jobs:
            name = waiting.pop(0)
            running[name] = Fork(works[name]), time.monotonic()
        for name, (process, began) in [*running.items()]:
            ended = process.wait(0.02)
            if ended is not None or time.monotonic() - began > limit_s:
                process.kill()
                process.wait()
                del running[name]
                yield name, ended


class _OtherPart(Fork):
    """A substitute for `subprocess.Popen`: a fork that trains a part of a run. Its stdin is the given file."""

    def __init__(self, command: Sequence[str], stdin: int, env: object) -> None:  # noqa: ARG002
        def train() -> None:
            os.dup2(stdin, 0)
            training_part.main()

        super().__init__(train)

    def poll(self) -> int | None:
        """Return the exit code, or None while the fork runs, as `Popen.poll` does."""
        return self.wait(0.0)
