"""Run every shard (part of a gate or a drill) once, as a job on a Slurm cluster or on the GPUs of this machine. The
library submitit starts the jobs. If the command is interrupted, running jobs are ended, and their evidence is kept."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from harness.api import session
from harness.devices.cuda_driver import devices
from harness.errors import EvidenceError, ExitCode, HarnessError, UsageError
from harness.extras.fleet import job as moved
from harness.extras.fleet.job import OWNER, Outcome, Shard, ShardJob
from harness.platform.paths import command_for
from harness.processes.child import child_command, path_at_start
from harness.run_directory.bundle import unused
from harness.run_directory.places import made_folder, takes_nothing

if TYPE_CHECKING:
    from submitit import Job

SLURM, LOCAL = "slurm", "local"
JOBS = ".jobs"  # name of a folder for the files of submitit, inside the folder with the shards' run directories
LONGEST_MIN = 60 * 24 * 28  # limit of a local job in minutes, as submitit requires one; a job ends with its harness
# limit of one Slurm job in minutes; at the limit, the job is queued again, and resumes its work when it starts again
SLURM_MIN = 60
TURNS = 20  # largest number of times that a job is queued again
COMMANDS = ("sbatch", "srun", "squeue", "scancel", "sinfo", "scontrol")
_OPTION = re.compile(r"[a-z][a-z-]*=[^,\s]+")
# matches the number of GPUs of a node in the output of sinfo, for example gpu:4 or gpu:h200:8(S:0-1)
_GPUS = re.compile(r"\bgpu(?::[^:,(]+)?:(\d+)")


class Engine(Protocol):
    """An engine for jobs: Slurm, or this machine. places: the GPUs, each of which runs one job at a time; None if the
    engine has a queue, as Slurm has. owned: True if the jobs end when this process ends. poll_s: seconds between two
    checks of the jobs."""

    places: Sequence[str] | None
    owned: bool
    poll_s: float

    def variables(self, places: Sequence[str]) -> Mapping[str, str]:
        """Return environment variables that make a job use the GPUs in `places`. The caller adds them to the job's
        environment."""

    def submit(self, job: ShardJob, folder: Path) -> Job[Outcome]: ...

    def under_way(self, jobs: Collection[Job[Outcome]]) -> set[str]:
        """Return the ids of those `jobs` that wait, are running, or have an unknown state."""

    def end(self, job: Job[Outcome]) -> None:
        """Send SIGTERM to the job. The job then keeps its evidence and ends."""


def engine(on: str | None, gpus: str | None = None) -> Engine:
    """Return the engine that `--on` (`local`, `slurm` or `slurm:OPTIONS`) and `--gpus` name. Raises UsageError for
    other texts, and if the engine cannot be used on this machine."""
    name, _, options = (on or LOCAL).partition(":")
    if name not in {SLURM, LOCAL} or (name == LOCAL and options):
        rule, remedy = "--on must be local, slurm or slurm:KEY=VALUE,…", "choose GPUs of this machine with --gpus"
        raise UsageError(rule, got=repr(on), remedy=remedy)
    if name == SLURM and gpus is not None:
        raise UsageError(
            "--gpus names GPUs of this machine, so it cannot be combined with Slurm",
            got="--on slurm",
            remedy="leave out --gpus or --on slurm",
        )
    if find_spec("submitit") is None:
        raise UsageError("--on and --gpus need submitit", got="no such package", remedy=command_for("fleet"))
    if name == SLURM:
        return Slurm(_options(options))
    return Local(gpu_names(gpus) if gpus is not None else [gpu.uuid for gpu in devices().gpus] or [""])


def gpu_names(wanted: str) -> list[str]:
    """Return the names of the GPUs in `--gpus`: `all`, or indices or UUIDs separated by commas. Raises UsageError."""
    named = list(dict.fromkeys(name.strip() for name in wanted.split(",") if name.strip()))
    names = [gpu.uuid for gpu in devices().gpus] if wanted.strip() == "all" else named
    if not names:
        raise UsageError(
            "--gpus needs a CUDA device",
            got=devices().problem or repr(wanted),
            remedy="leave out --gpus, to decide everything that this machine can decide",
        )
    return names


@dataclass
class Local:
    """Runs jobs as processes on this machine. Each place is a GPU (its index or UUID), or "" on a machine without a
    GPU."""

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
            # submitit's `cancel` would give a job only one second
            os.kill(int(job.job_id), signal.SIGTERM)


@dataclass
class Slurm:
    """Runs jobs on a Slurm cluster. options: options of sbatch. Raises UsageError if Slurm's commands are missing."""

    options: Mapping[str, str]
    places: Sequence[str] | None = None
    owned: bool = False
    poll_s: float = 2.0
    _gpus: int = field(init=False)  # the largest number of GPUs in one node

    def __post_init__(self) -> None:
        missing = [name for name in COMMANDS if shutil.which(name) is None]
        if missing:
            missing_commands, start_elsewhere = (
                f"no {', '.join(missing)} on PATH",
                "start the command on a machine from which jobs are submitted",
            )
            raise UsageError("--on slurm needs Slurm's commands", got=missing_commands, remedy=start_elsewhere)
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
            remedy = "fix the options after `--on slurm:`, or see `sinfo`"
            raise UsageError("Slurm refused the job", where=job.shard.name, got=got, remedy=remedy) from error

    def under_way(self, jobs: Collection[Job[Outcome]]) -> set[str]:
        waiting = {job.job_id for job in jobs if not job.paths.result_pickle.exists()}
        try:
            return waiting & set(_slurm("squeue", "--me", "--noheader", "--format=%i").split())
        except HarnessError:
            # Slurm's controller does not answer, perhaps because it is restarting. Assume that all jobs still exist.
            return waiting

    def end(self, job: Job[Outcome]) -> None:
        subprocess.run(["scancel", job.job_id], check=False, capture_output=True)


def _options(text: str) -> dict[str, str]:
    """Return Slurm options such as `partition=gpu,time=30`, by name. Raises UsageError for any other form."""
    words = [word for word in text.split(",") if word]
    if wrong_options := [word for word in words if not _OPTION.fullmatch(word)]:
        options_must_be_key_value, example = (
            "options of sbatch must be KEY=VALUE, separated by commas",
            "slurm:partition=gpu,time=30",
        )
        raise UsageError(options_must_be_key_value, got=repr(wrong_options[0]), remedy=f"write them as in `{example}`")
    return {key: value for key, _, value in (word.partition("=") for word in words)}


def _slurm(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        slurm_error = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise HarnessError(
            "a command of Slurm failed",
            where=command[0],
            got=slurm_error,
            remedy="check that this machine is a client of a running Slurm",
        )
    return done.stdout


@contextmanager
def _as_jobs_begin() -> Iterator[None]:
    """Within the `with` block, start processes with the PYTHONPATH that this command got, and block SIGINT and SIGHUP,
    the signals of the terminal.

    The new processes inherit the blocked signals, so that only this command can interrupt a job. Signals that arrive
    meanwhile reach this command after the `with` block.
    """
    from submitit.helpers import environment_variables

    spared = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        with environment_variables(PYTHONPATH=path_at_start(), PYTHONSAFEPATH="1"):
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, spared)


# exit codes of `harness drill`, the worst one first
WORST_FIRST = (ExitCode.ERROR, ExitCode.VIOLATED, ExitCode.UNDECIDED)
RESULT_S = 15.0  # a result on a shared file system may become visible this many seconds after the end of its job
# A function that is called when a shard has ended. Its arguments are the shard, the GPUs on which the shard ran (as
# text), and the shard's outcome, or None if its job has no result.
Ended = Callable[[Shard, str, Outcome | None], None]


def new_directory(reports: Path, name: str | None) -> Path:
    """Return the path of a new folder for the run directories of all jobs. Its default name has date and machine."""
    if name is not None:
        return reports / name
    return unused(reports / f"{session.directory_name(datetime.now(tz=UTC), session.VerifyOptions())}-fleet")


def run_shards(
    shards: Sequence[Shard], engine: Engine, directory: Path, ended: Ended, passed_on: Sequence[str] = ()
) -> dict[str, int]:
    """Run every shard (part of a gate or a drill) once. Return exit codes by name of the shard. A job without a result
    has code 12.

    Run directories and outputs (`NAME.txt`) are written below `directory`, which must not exist yet. If a signal raises
    KeyboardInterrupt or SystemExit, running shards get SIGTERM and keep their evidence, and no other shard is started.
    The exception then has a note that names the directory. passed_on: words for the command line of every shard.
    """
    made_folder(directory.parent)
    try:
        directory.mkdir()
    except FileExistsError:
        raise UsageError(
            "the folder for the jobs' run directories must not exist yet",
            where=str(directory),
            got="an existing folder",
        ) from None
    except OSError as error:
        raise takes_nothing(directory, error) from error
    shared = directory.resolve()
    waiting, codes = deque(shards), dict[str, int]()
    running: dict[tuple[str, ...], tuple[Shard, Job[Outcome]]] = {}
    with _submitter(shared, owned=engine.owned):
        try:
            while waiting or running:
                while waiting and (places := _places(waiting[0], engine.places, running)):
                    shard = waiting.popleft()
                    variables = engine.variables(places)
                    harness = tuple(child_command("harness"))
                    job = ShardJob(shard, harness, shared, tuple(passed_on), variables, owned=engine.owned)
                    running[places] = shard, engine.submit(job, shared / JOBS)
                time.sleep(engine.poll_s)
                under_way = engine.under_way([job for _, job in running.values()])
                for places, (shard, job) in list(running.items()):
                    if job.job_id not in under_way:
                        del running[places]
                        outcome = _outcome(job, 0.0 if engine.owned else RESULT_S)
                        codes[shard.name] = ExitCode.ERROR if outcome is None else outcome.code
                        ended(shard, ",".join(places) if engine.places else "", outcome)
        except BaseException as error:
            if not running and not codes:  # the first job was refused, so no shard has run
                shutil.rmtree(directory)
                raise
            _end(engine, [job for _, job in running.values()])
            error.add_note(f"the results of the shards are kept in {directory}")
            raise
    return codes


def _places(shard: Shard, places: Sequence[str] | None, taken: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Return free places for the shard (one job's command): one place for each GPU that the shard needs, but at most
    all places of the engine.

    Return () if too few places are free. The caller must then not start a later shard instead. Otherwise later shards
    would take each place that becomes free, and a shard that needs several GPUs would start last.
    """
    if places is None:
        return (shard.name,)  # an engine with a queue chooses the places itself
    free = [place for place in places if place not in set(chain.from_iterable(taken))]
    number = min(shard.gpus, len(places))
    return tuple(free[:number]) if len(free) >= number else ()


@contextmanager
def _submitter(directory: Path, *, owned: bool) -> Iterator[None]:
    """Create the file `OWNER` for the `with` block, and remove it afterwards. owned: True if the jobs must end when
    this command ends; this process then locks the file, and the jobs end when the lock is released."""
    import fcntl

    with (directory / OWNER).open("wb") as file:
        if owned:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
    (directory / OWNER).unlink(missing_ok=True)


def _outcome(job: Job[Outcome], seconds: float) -> Outcome | None:
    """Wait up to `seconds` for the result of a job that has ended. Return None if the job was killed, was cancelled, or
    raised an exception."""
    until = time.monotonic() + seconds
    while not job.paths.result_pickle.exists():
        if time.monotonic() >= until:
            return None
        time.sleep(0.5)
        os.listdir(job.paths.folder)  # noqa: PTH208 - so that a network's file system looks again
    return None if job.exception() is not None else job.result()


def _end(engine: Engine, jobs: Sequence[Job[Outcome]]) -> None:
    """Send SIGTERM to each job, and wait until all jobs have ended."""
    for job in jobs:
        engine.end(job)
    while engine.under_way(jobs):
        time.sleep(engine.poll_s)


def run_directories(shards: Sequence[Shard], directory: Path) -> list[Path]:
    """Return the run directories of all shards (parts of a gate). Raises EvidenceError if a shard has none."""
    found = {shard.name: moved.run_directories(directory / shard.name) for shard in shards}
    if missing := [name for name, paths in found.items() if not paths]:
        raise EvidenceError(
            "every job of the gate must have written a run directory",
            where=str(directory),
            got=f"no run directory of the jobs {', '.join(missing)}",
            remedy=f"read the output of each job: the harness's in the file NAME.txt, Slurm's in the folder {JOBS}",
        )
    return [path for paths in found.values() for path in paths]


def worst(codes: Iterable[int]) -> int:
    """Return the worst of the exit codes of several drills. A code that a drill cannot have counts as ERROR."""
    seen = {code if code in (*WORST_FIRST, ExitCode.HELD) else ExitCode.ERROR for code in codes}
    return next((code for code in WORST_FIRST if code in seen), ExitCode.HELD)
