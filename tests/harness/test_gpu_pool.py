"""The shards of a gate and of a drill, and that every one runs once, also when one of them fails."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.contract.load import load_contracts
from harness.errors import EvidenceError, UsageError
from harness.evidence.cuda_driver import Devices, Gpu
from harness.gpu_pool import pool
from harness.gpu_pool.shards import MOST_FAULTS, Shard, drill_shards, gate_shards
from harness.processes.kept import KeptProcess

CONTRACTS = Path(__file__).parents[2] / "contracts"
WAITS = "import time; print('up', flush=True); time.sleep(60)"


def shard(name: str) -> Shard:
    return Shard(name, Path("a.yaml"), ())


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What shards execute in the place of `harness`: their name -> a program; nothing for a name that is not there."""
    written: dict[str, str] = {}

    def command(shard: Shard, _reports: Path, _passed_on: Sequence[str] = ()) -> list[str]:
        return [sys.executable, "-c", written.get(shard.name, "pass")]

    monkeypatch.setattr(Shard, "command", command)
    return written


def test_every_claim_is_in_one_shard_and_timings_come_first() -> None:
    contracts = load_contracts([CONTRACTS])
    planned = gate_shards(contracts)
    demanded = [claim.id for loaded in contracts for claim in loaded.contract.claims]
    assert sorted(claim for shard in planned for claim in shard.claims) == sorted(demanded)
    timings = {"F-GRAPH-BWD-003", "F-GRAPH-BWD-003-canary", "F-GRAPH-BWD-003-512", "F-CGT-001"}
    assert {shard.name for shard in planned[:4]} == timings
    assert len({shard.name for shard in planned}) == len(planned)


def test_a_shard_names_its_contract_claims_options_and_directory() -> None:
    """The contract as it was given: a run directory does not tell where the checkout lies."""
    words = Shard("one", Path("contracts/a.yaml"), ("A-001", "A-002")).command(Path("out"), ["--data", "text"])[4:]
    assert " ".join(words) == (
        "verify contracts/a.yaml --claim A-001 --claim A-002 --data text --reports out --name one"
    )


def test_a_drill_plants_every_fault_of_every_claim_once() -> None:
    contracts = load_contracts([CONTRACTS])
    planned = drill_shards(contracts)
    named = {claim.id: claim.falsified_by for loaded in contracts for claim in loaded.contract.claims}
    demanded = [(claim, fault) for claim, faults in named.items() for fault in faults]
    planted = [(claim, fault) for shard in planned for claim in shard.claims for fault in shard.faults or named[claim]]
    assert sorted(planted) == sorted(demanded)
    assert len({shard.name for shard in planned}) == len(planned)
    assert all(shard.claims and shard.drill for shard in planned)
    untimed = [[len(named[claim]) for claim in shard.claims] for shard in planned if not shard.faults]
    # a claim is not divided, so one that names more faults than that has a shard of its own
    assert max(sum(numbers) for numbers in untimed if len(numbers) > 1) <= MOST_FAULTS


def test_a_shard_of_a_drill_names_its_fault_and_directory() -> None:
    words = Shard("one", Path("a.yaml"), ("A-001",), ("stale_batch",), drill=True).command(Path("out"))[4:]
    assert " ".join(words) == "drill a.yaml --claim A-001 --fault stale_batch --reports out --name one"


@pytest.mark.parametrize(
    ("codes", "code"), [([0, 0], 0), ([0, 10], 10), ([10, 1, 0], 1), ([1, 12], 12), ([0, -9], 12), ([], 0)]
)
def test_the_worst_shard_decides_a_drill(codes: list[int], code: int) -> None:
    assert pool.worst(codes) == code


def test_gpus_are_all_or_those_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "devices", lambda: Devices((Gpu("NVIDIA H200", "GPU-a", "sm_90", 139.8),)))
    assert (pool.gpu_names("all"), pool.gpu_names("0, GPU-b")) == (["GPU-a"], ["0", "GPU-b"])
    monkeypatch.setattr(pool, "devices", lambda: Devices(problem="no NVIDIA driver"))
    with pytest.raises(UsageError, match="--gpus needs a CUDA device; found no NVIDIA driver"):
        pool.gpu_names("all")


@pytest.mark.parametrize("gpus", [["0"], ["0", "1", "2"]])
def test_each_shard_runs_once_whatever_becomes_of_another(
    gpus: list[str], programs: dict[str, str], tmp_path: Path
) -> None:
    programs["3"] = "import sys; print('broken'); sys.exit(12)"
    programs["4"] = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    ended: list[tuple[str, str, int]] = []
    directory = tmp_path / "out"
    codes = pool.run_shards(
        [shard(str(number)) for number in range(7)],
        gpus,
        directory,
        lambda shard, gpu, code: ended.append((shard.name, gpu, code)),
    )
    assert codes == {str(number): 12 if number == 3 else 0 for number in range(7)}
    assert sorted(name for name, _, _ in ended) == sorted(codes)
    assert (directory / "3.txt").read_text() == "broken\n"
    assert (directory / "4.txt").read_text().strip() == next(gpu for name, gpu, _ in ended if name == "4")
    with pytest.raises(UsageError, match="a folder of their own"):
        pool.run_shards([], gpus, directory, lambda *_: None)


def test_a_shard_without_run_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "run.json").touch()
    assert pool.run_directories([shard("one")], tmp_path) == [tmp_path / "one"]
    with pytest.raises(EvidenceError, match=r"found none of two; see the output of each in NAME\.txt"):
        pool.run_directories([shard("one"), shard("two")], tmp_path)


def test_an_interruption_ends_what_runs_and_nothing_else_begins(
    programs: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "out"
    programs["waits"] = WAITS
    left, asked, processes = [1], list[int](), list[KeptProcess]()
    terminate, sleep = KeptProcess.terminate, time.sleep

    def interrupting(seconds: float) -> None:
        sleep(seconds)
        if left[0] and (directory / "waits.txt").read_text():
            left[0] -= 1
            raise KeyboardInterrupt

    def counted(process: KeptProcess) -> None:
        asked.append(process.pid)
        processes.append(process)
        terminate(process)

    monkeypatch.setattr(time, "sleep", interrupting)
    monkeypatch.setattr(KeptProcess, "terminate", counted)
    with pytest.raises(KeyboardInterrupt) as caught:
        pool.run_shards([shard("waits"), shard("later")], ["0"], directory, lambda *_: None)
    assert caught.value.__notes__ == [f"what the shards saw is kept in {directory}"]
    assert (len(asked), [process.returncode for process in processes], left) == (1, [-signal.SIGTERM], [0])
    assert not (directory / "later.txt").exists()


def harness(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "harness", *map(str, arguments)]


def test_a_terminated_gate_keeps_what_its_shards_saw(tmp_path: Path) -> None:
    """The whole command, on this machine's CPU: a shard under way leaves its evidence, the others never begin."""
    out = tmp_path / "out"
    contracts = [CONTRACTS / "traced-step-v1.yaml", CONTRACTS / "repeatability-v1.yaml"]
    command = harness("verify", *contracts, "--gpus", "0", "--reports", tmp_path, "--name", "out")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=CONTRACTS.parent) as process:
        until = time.monotonic() + 60
        while not list(out.glob("*/evidence/*")) and time.monotonic() < until:
            time.sleep(0.05)
        process.terminate()
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 143
    assert errors == f"terminated\nwhat the shards saw is kept in {out}\n"
    assert [path.name for path in out.glob("*.txt")] == ["traced-step-v1.txt"]
    assert len(list(out.glob("traced-step-v1*/run.json"))) == 1


def test_shards_are_judged_together(scripted: Path, tmp_path: Path) -> None:
    """Two contracts, a shard each: one count over both, and the gate's exit code."""
    from scripted_system import contract_text

    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(contract_text("not_run").replace("scripted-v1", name))
    command = harness("verify", tmp_path, "--gpus", "0,1", "--gate", "--json", "--reports", "r", "--name", "all")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 10, done.stderr
    claims = json.loads(done.stdout)["claims"]
    assert [(claim["contract"], claim["status"]) for claim in claims] == [("one", "NOT_RUN"), ("two", "NOT_RUN")]


@pytest.mark.parametrize("option", ["--claim", "--workload", "--fault"])
def test_gpus_share_out_whole_contracts(option: str) -> None:
    done = subprocess.run(
        harness("verify", CONTRACTS, "--gpus", "all", option, "x"), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (
        2,
        f"error: --gpus shares out whole contracts; found {option}; leave out --gpus or {option}\n",
    )
