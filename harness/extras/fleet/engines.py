"""Turn shards into jobs on a Slurm cluster or on the GPUs of this machine. submitit starts and queues the jobs."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from harness.devices.cuda_driver import devices
from harness.errors import HarnessError, UsageError
from harness.extras.fleet.job import Outcome, ShardJob
from harness.platform.paths import command_for
from harness.processes.child import path_at_start

if TYPE_CHECKING:
    from submitit import Job

SLURM, LOCAL = "slurm", "local"
JOBS = ".jobs"  # submitit's files, in the folder of the shards
LONGEST_MIN = 60 * 24 * 28  # a local job ends when its shard does; submitit wants a limit
SLURM_MIN = 60  # of a job in a queue; what has not ended by then goes on in the same job's next turn
TURNS = 20  # as often
COMMANDS = ("sbatch", "srun", "squeue", "scancel", "sinfo", "scontrol")
_OPTION = re.compile(r"[a-z][a-z-]*=[^,\s]+")
_GPUS = re.compile(r"\bgpu(?::[^:,(]+)?:(\d+)")  # of a node, as sinfo writes them: gpu:4, or gpu:h200:8(S:0-1)


class Engine(Protocol):
    """`places`: GPUs of one job at a time each; None where the engine has a queue. owned: jobs end with this process.

    poll_s: seconds between two looks at the jobs.
    """

    places: Sequence[str] | None
    owned: bool
    poll_s: float

    def variables(self, places: Sequence[str]) -> Mapping[str, str]:
        """Return the variables to add to the environment of a shard in those places."""

    def submit(self, job: ShardJob, folder: Path) -> Job[Outcome]: ...

    def under_way(self, jobs: Collection[Job[Outcome]]) -> set[str]:
        """Return the ids of the jobs that wait or run, or may do so."""

    def end(self, job: Job[Outcome]) -> None:
        """Send SIGTERM to the job, so that it keeps what it recorded."""


def engine(on: str | None, gpus: str | None = None) -> Engine:
    """Return the engine that `--on` (`local`, `slurm` or `slurm:OPTIONS`) and `--gpus` name. Raises UsageError."""
    name, _, options = (on or LOCAL).partition(":")
    if name not in {SLURM, LOCAL} or (name == LOCAL and options):
        rule, remedy = "--on takes local, slurm or slurm:KEY=VALUE,…", "--gpus names GPUs of this machine"
        raise UsageError(rule, got=repr(on), remedy=remedy)
    if name == SLURM and gpus is not None:
        raise UsageError("--gpus names GPUs of this machine", got="--on slurm", remedy="leave out one of them")
    if find_spec("submitit") is None:
        raise UsageError("--on and --gpus need submitit", got="no such package", remedy=command_for("fleet"))
    if name == SLURM:
        return Slurm(_options(options))
    return Local(gpu_names(gpus) if gpus is not None else [gpu.uuid for gpu in devices().gpus] or [""])


def gpu_names(wanted: str) -> list[str]:
    """Return the GPUs that `--gpus` names: `all`, or indices or UUIDs separated by commas. Raises UsageError."""
    named = list(dict.fromkeys(name.strip() for name in wanted.split(",") if name.strip()))
    names = [gpu.uuid for gpu in devices().gpus] if wanted.strip() == "all" else named
    if not names:
        raise UsageError(
            "--gpus needs a CUDA device",
            got=devices().problem or repr(wanted),
            remedy="leave it out: then what this machine can decide is decided",
        )
    return names


@dataclass
class Local:
    """Processes of this machine, one for each place: a GPU by index or UUID; "" where there is none."""

    places: Sequence[str] | None
    owned: bool = True
    poll_s: float = 0.1

    def variables(self, places: Sequence[str]) -> Mapping[str, str]:
        return {"CUDA_VISIBLE_DEVICES": ",".join(places)}

    def submit(self, job: ShardJob, folder: Path) -> Job[Outcome]:
        from submitit import LocalExecutor

        executor = LocalExecutor(folder)
        executor.update_parameters(timeout_min=LONGEST_MIN)
        with _as_jobs_begin():
            return executor.submit(job)

    def under_way(self, jobs: Collection[Job[Outcome]]) -> set[str]:
        return {job.job_id for job in jobs if not job.done()}

    def end(self, job: Job[Outcome]) -> None:
        if not job.done():
            os.kill(int(job.job_id), signal.SIGTERM)  # submitit's `cancel` leaves a job one second


@dataclass
class Slurm:
    """A cluster of which this machine is a client. `options` go to sbatch as they are. Raises UsageError."""

    options: Mapping[str, str]
    places: Sequence[str] | None = None
    owned: bool = False
    poll_s: float = 2.0
    _gpus: int = field(init=False)  # of the node that has most

    def __post_init__(self) -> None:
        missing = [name for name in COMMANDS if shutil.which(name) is None]
        if missing:
            got, remedy = f"no {', '.join(missing)} on PATH", "start it on a machine from which jobs are submitted"
            raise UsageError("--on slurm needs Slurm's commands", got=got, remedy=remedy)
        chosen = [f"--partition={self.options['partition']}"] if "partition" in self.options else []
        nodes = _slurm("sinfo", "--noheader", "--format=%G", *chosen).splitlines()
        self._gpus = max((sum(map(int, _GPUS.findall(node))) for node in nodes), default=0)

    def variables(self, places: Sequence[str]) -> Mapping[str, str]:  # noqa: ARG002 - Slurm says which GPUs
        return {}

    def submit(self, job: ShardJob, folder: Path) -> Job[Outcome]:
        from submitit import SlurmExecutor
        from submitit.core.utils import FailedJobError

        gpus = min(job.shard.gpus, self._gpus) if job.shard.on_gpu else 0
        asked = {**({"gpus-per-node": str(gpus)} if gpus else {}), **self.options}
        executor = SlurmExecutor(folder, max_num_timeout=TURNS)
        executor.update_parameters(
            job_name=f"harness-{job.shard.name}",
            time=SLURM_MIN,
            use_srun=True,
            additional_parameters={"requeue": True, **asked},
        )
        try:
            with _as_jobs_begin():
                return executor.submit(job)
        except FailedJobError as error:
            got = str(error).strip().partition("\n")[0].removeprefix("sbatch: error: ")
            remedy = "fix what follows `--on slurm:`, or see `sinfo`"
            raise UsageError("Slurm takes the job", where=job.shard.name, got=got, remedy=remedy) from error

    def under_way(self, jobs: Collection[Job[Outcome]]) -> set[str]:
        waiting = {job.job_id for job in jobs if not job.paths.result_pickle.exists()}
        try:
            return waiting & set(_slurm("squeue", "--me", "--noheader", "--format=%i").split())
        except HarnessError:
            return waiting  # its controller may be on its way back

    def end(self, job: Job[Outcome]) -> None:
        subprocess.run(["scancel", job.job_id], check=False, capture_output=True)


def _options(text: str) -> dict[str, str]:
    """Return options such as `partition=gpu,time=30` by name. Raises UsageError."""
    words = [word for word in text.split(",") if word]
    if wrong := [word for word in words if not _OPTION.fullmatch(word)]:
        rule, remedy = "options of sbatch are KEY=VALUE, with commas between them", "slurm:partition=gpu,time=30"
        raise UsageError(rule, got=repr(wrong[0]), remedy=f"such as `{remedy}`")
    return {key: value for key, _, value in (word.partition("=") for word in words)}


def _slurm(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        got = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise HarnessError(
            "Slurm answers its commands",
            where=command[0],
            got=got,
            remedy="is this machine a client of a Slurm that is up?",
        )
    return done.stdout


@contextmanager
def _as_jobs_begin() -> Iterator[None]:
    """Start processes in the block with the command's own path, and keep the terminal's signals from them.

    Signals that arrive meanwhile wait for the end of the block. A job is interrupted once, by its submitter.
    """
    from submitit.helpers import environment_variables

    spared = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        with environment_variables(PYTHONPATH=path_at_start(), PYTHONSAFEPATH="1"):
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, spared)
