"""A gate as jobs of a real Slurm with two nodes: what becomes of a job changes no verdict; each claim has one machine.

The controller and both daemons are this machine's own (`tests/support/slurm_cluster.py`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import slurm_cluster
from needed_programs import absent

from harness.run_directory.bundle import Header, read_bundle

pytestmark = pytest.mark.usefixtures("warm_commands")
GATE = Path("fleet/gate")
HARNESS = [sys.executable, "-m", "harness"]
ON = f"slurm:cpus-per-task={slurm_cluster.CORES}"
SECOND = """\
  - id: SCRIPT-002
    title: The losses agree in bits, once somebody has said go
    kind: trajectory_match
    candidate: fast
    baseline: plain
    equality: bitwise
    max_abs_difference: 0.1
    guards: {steps: 5}
    on: [waits]
    why: The script decides.
    if_fails: The script says so.
    falsified_by: [nan_tail]
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurm_cluster.Cluster]:
    if missing := slurm_cluster.missing_programs():
        absent(f"Slurm ({', '.join(missing)})")
    with slurm_cluster.running(tmp_path_factory.mktemp("slurm") / "cluster") as cluster:
        yield cluster


@pytest.fixture
def folder(scripted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two contracts: a claim that ends at once, and one that waits until the file `go` is there."""
    from scripted_system import contract_text

    monkeypatch.chdir(tmp_path)
    (tmp_path / "contracts").mkdir()
    for name, behaviour in (("one", "held"), ("two", "violated")):
        text = contract_text(behaviour, "waits", identity=name)
        text = text.replace(f"on: [{behaviour}, waits]", f"on: [{behaviour}]")
        (tmp_path / "contracts" / f"{name}.yaml").write_text(text + SECOND)
    return tmp_path


def claims_on_one_machine() -> list[dict[str, Any]]:
    done = subprocess.run(
        [*HARNESS, "verify", "contracts", "--gate", "--json", "--name", "whole"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return in_order(done.stdout)


def in_order(printed: str) -> list[dict[str, Any]]:
    return sorted(json.loads(printed)["claims"], key=lambda claim: (claim["contract"], claim["claim"]))


def header(name: str) -> Header:
    return read_bundle(GATE / name).header


def has_ended(shard: str) -> bool:
    """Whether a run of the shard has come to its end."""
    journals = GATE.glob(f"{shard}.incomplete-*/journal.json")
    return any(json.loads(path.read_text())["ended"] for path in journals)


@pytest.mark.slow
def test_preempted_slurm_jobs_and_lost_nodes_do_not_change_the_verdicts(
    folder: Path, cluster: slurm_cluster.Cluster
) -> None:
    options = ["--on", ON, "--gate", "--json", "--reports", str(GATE.parent), "--name", GATE.name]
    variables = {**os.environ, **cluster.variables}
    with subprocess.Popen(
        [*HARNESS, "verify", "contracts", *options], env=variables, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            cluster.until(lambda: has_ended("one") and has_ended("two"), "a claim of each shard has ended")
            nodes = {shard: header(next(GATE.glob(f"{shard}*/")).name).environment.job.node for shard in ("one", "two")}
            numbers = {node: number for number, (_, node) in cluster.jobs().items()}
            one, two = (numbers[str(nodes[shard])] for shard in ("one", "two"))
            cluster.preempt(str(nodes["one"]))
            cluster.until(lambda: cluster.jobs().get(one, ("",))[0] == "PENDING", "the preempted job is put back")
            cluster.lose(str(nodes["two"]))
            cluster.begin([one, two])  # on the only node that is left
            cluster.until(lambda: any(header(path.name).resumed for path in GATE.glob("one*/")), "one goes on")
            cluster.until(lambda: cluster.jobs().get(two, ("",))[0] == "PENDING", "the lost job waits")
            Path("go").touch()
            printed, _ = process.communicate(timeout=300)
        finally:
            process.terminate()
    assert process.returncode == 1
    assert in_order(printed) == claims_on_one_machine()
    made_on = {path.name: header(path.name).environment.job.node for path in GATE.glob("*/") if path.name[0] != "."}
    left, lost = nodes["one"], nodes["two"]
    assert (left, lost) in {("node1", "node2"), ("node2", "node1")}
    assert made_on == {"one": left, "two": left, "two.ended-1": lost, "two.left-1": lost}
    assert header("two.ended-1").narrowed.claims == ["SCRIPT-001"]
    assert header("two").narrowed.claims == ["SCRIPT-002"]
    assert [each.executed for each in header("one").resumed] == [["one+waits+paired"]]


def test_a_job_refused_by_slurm_is_a_usage_error(folder: Path, cluster: slurm_cluster.Cluster) -> None:
    done = subprocess.run(
        [*HARNESS, "verify", "contracts", "--on", "slurm:partition=nowhere", "--reports", "r", "--name", "all"],
        env={**os.environ, **cluster.variables}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "error: one: Slurm refused the job; found invalid partition specified: nowhere; "
        "fix the options after `--on slurm:`, or see `sinfo`"
    )
    assert not Path("r/all").exists()


@pytest.mark.slow
def test_an_interrupted_gate_cancels_its_slurm_jobs(folder: Path, cluster: slurm_cluster.Cluster) -> None:
    options = ["--on", ON, "--reports", str(GATE.parent), "--name", GATE.name]
    variables = {**os.environ, **cluster.variables}
    with subprocess.Popen(
        [*HARNESS, "verify", "contracts", *options], env=variables, stderr=subprocess.PIPE, text=True
    ) as process:
        cluster.until(lambda: has_ended("one") or has_ended("two"), "a shard is under way")
        process.terminate()
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 143
    assert errors.endswith(f"terminated\nthe results of the shards are kept in {GATE}\n")
    assert cluster.jobs() == {}
