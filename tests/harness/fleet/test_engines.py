"""What `--on` names, and what is said where it names nothing that is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import HarnessError, UsageError
from harness.extras.fleet import gate
from harness.extras.fleet.gate import COMMANDS, Slurm, engine
from harness.extras.fleet.job import Shard, ShardJob


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH, with a stand-in for each of Slurm's commands, which answers nothing."""
    for name in COMMANDS:
        write(tmp_path / name, "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def write(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("on", "message"),
    [
        ("kubernetes", r"--on must be local, slurm or slurm:KEY=VALUE,…; found 'kubernetes'"),
        ("local:2", "found 'local:2'; choose GPUs of this machine with --gpus"),
        ("slurm:gpu", r"KEY=VALUE, separated by commas; found 'gpu'; write them as in `slurm:partition=gpu,time=30`"),
        ("slurm:time=30,par tition=x", "found 'par tition=x'"),
    ],
)
def test_an_unknown_engine_is_refused(on: str, message: str, commands: Path) -> None:
    with pytest.raises(UsageError, match=message):
        engine(on)


def test_gpus_of_this_machine_are_refused_together_with_a_cluster() -> None:
    with pytest.raises(
        UsageError,
        match="so it cannot be combined with Slurm; found --on slurm; leave out --gpus or --on slurm",
    ):
        engine("slurm", "all")


def test_without_submitit_the_error_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"found no such package; pip install 'submitit>="):
        engine("local")


def test_missing_slurm_commands_are_named_in_the_error(commands: Path) -> None:
    (commands / "sbatch").unlink()
    with pytest.raises(UsageError, match="needs Slurm's commands; found no sbatch on PATH"):
        engine("slurm")


def test_a_cluster_that_does_not_answer_is_an_error(commands: Path) -> None:
    write(commands / "sinfo", "echo 'slurm_load_partitions: Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(
        HarnessError, match="sinfo: a command of Slurm failed; found slurm_load_partitions: Unable to contact slurm"
    ):
        engine("slurm")


@pytest.mark.parametrize(
    ("gpus", "needed", "options", "asked"),
    [
        ("gpu:h200:8", 1, {}, "#SBATCH --gpus-per-node=1"),
        ("gpu:h200:8", 1, {"gpus-per-node": "2"}, "#SBATCH --gpus-per-node=2"),
        ("gpu:h200:8(S:0-1)", 4, {}, "#SBATCH --gpus-per-node=4"),
        ("gpu:1\ngpu:a100:1,gpu:v100:2", 4, {}, "#SBATCH --gpus-per-node=3"),
        ("gpu:h200:8", 0, {}, None),
        ("(null)", 1, {}, None),
    ],
)
def test_a_slurm_shard_requests_the_gpus_that_it_needs(
    commands: Path, tmp_path: Path, gpus: str, options: dict[str, str], asked: str | None, needed: int
) -> None:
    write(commands / "sinfo", f"echo '{gpus}'")
    write(commands / "sbatch", "echo Submitted batch job 5")
    shard = Shard("one", Path("a.yaml"), ("A-001",), on_gpu=needed > 0, gpus=max(1, needed))
    job = Slurm(options).submit(ShardJob(shard, ("harness",), tmp_path, (), {}), tmp_path / ".jobs")
    script = job.paths.submission_file.read_text().splitlines()
    assert [line for line in script if "--gpus-per-node" in line] == ([asked] if asked else [])
    assert {"#SBATCH --requeue", "#SBATCH --job-name=harness-one"} <= set(script)


def test_options_for_sbatch_are_passed_to_sbatch(commands: Path, tmp_path: Path) -> None:
    write(commands / "sbatch", "echo Submitted batch job 5")
    write(commands / "sinfo", 'test "$3" = --partition=gpu || exit 1')
    slurm = engine("slurm:partition=gpu,cpus-per-task=8,time=30")
    job = slurm.submit(ShardJob(Shard("one", Path("a.yaml"), ()), ("harness",), tmp_path, (), {}), tmp_path / ".jobs")
    script = job.paths.submission_file.read_text()
    for line in ("--partition=gpu", "--cpus-per-task=8", "--time=30"):
        assert script.count(f"#SBATCH {line}\n") == 1


def test_a_slurm_job_is_running_until_it_has_a_result_or_leaves_the_queue(commands: Path, tmp_path: Path) -> None:
    write(commands / "sbatch", "echo Submitted batch job $$")
    slurm = Slurm({})
    shard_job = ShardJob(Shard("one", Path("a.yaml"), ()), ("harness",), tmp_path, (), {})
    jobs = [slurm.submit(shard_job, tmp_path / ".jobs") for _ in range(3)]
    queued, ended, gone = jobs
    ended.paths.result_pickle.touch()
    write(commands / "squeue", f"echo {queued.job_id}; echo {ended.job_id}")
    seen = slurm.under_way(jobs)
    write(commands / "squeue", "exit 1")
    assert (seen, slurm.under_way(jobs)) == ({queued.job_id}, {queued.job_id, gone.job_id})
