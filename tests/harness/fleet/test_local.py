"""The shards of a gate and of a drill as jobs of this machine: every one runs once, also when one of them fails."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
import warm_start
from submitit import Job
from waiting import LIMIT_S, eventually

from harness.cli.drill import drill_on
from harness.contract.load import LoadedContract, load_contracts
from harness.devices.cuda_driver import Devices, Gpu
from harness.devices.environment import Machine
from harness.errors import EvidenceError, UsageError
from harness.extras.fleet import gate
from harness.extras.fleet import gate as engines
from harness.extras.fleet.gate import Local
from harness.extras.fleet.job import MOST_FAULTS, Outcome, Shard, ShardJob, drill_shards, gate_shards
from harness.planning.plan import plan
from harness.run_directory.bundle import read_bundle
from harness.run_directory.costs import Busy, busy_seconds, busy_times
from harness.run_directory.interrupted_run import is_free
from harness.system.resolve import resolve

pytestmark = pytest.mark.usefixtures("warm_commands")
ROOT = Path(__file__).parents[3]
CONTRACTS = ROOT / "contracts"
ASKED = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: (print('asked', flush=True), sys.exit(143)))\n"
WAITS = f"{ASKED}import time; print('up', flush=True); time.sleep(600)"
JOB = "int(open(f'/proc/{os.getppid()}/stat').read().split()[3])"  # the process above the shard's keeper
Write = Callable[..., object]


def shard(name: str, gpus: int = 1) -> Shard:
    return Shard(name, Path("a.yaml"), ("A-001",), gpus=gpus)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Says what shards execute in the place of `harness`, by their names; their jobs are forks."""
    monkeypatch.setattr("submitit.local.local.subprocess", warm_start.Subprocess())
    monkeypatch.chdir(tmp_path)
    stand_in = [sys.executable, str(ROOT / "tests" / "support" / "programs.py")]
    monkeypatch.setattr(gate, "child_command", lambda _: stand_in)
    return lambda **written: Path("programs.json").write_text(json.dumps(written))


def test_every_claim_is_in_one_shard_and_timing_shards_come_first() -> None:
    contracts = load_contracts([CONTRACTS])
    planned = gate_shards(contracts)
    demanded = [claim.id for loaded in contracts for claim in loaded.contract.claims]
    assert sorted(claim for shard in planned for claim in shard.claims) == sorted(demanded)
    timings = {"F-GRAPH-BWD-003", "F-GRAPH-BWD-003-canary", "F-GRAPH-BWD-003-512", "F-CGT-001"}
    on_one = [shard.name for shard in planned if shard.gpus == 1]
    assert [shard.gpus for shard in planned[: len(planned) - len(on_one)]] == [2, 2]
    assert timings <= set(on_one[:6])
    assert len({shard.name for shard in planned}) == len(planned)


CLAIM = """  - {id: %s, title: t, kind: trajectory_match, candidate: only, baseline: other, equality: bitwise,
     max_relative_difference: 1.0e-3, guards: {steps: 2, distinct_batches: 2}, judged_on: [w], why: w, if_fails: f}
"""
HEAD = """schema: contract/v2
id: %s
title: t
system: step_function_systems:Regression
workloads: {w: {model: any, batch_size: 1, seq_len: 1, steps: 2, needs: {device: cpu}}}
arms: {only: {capture: none}, other: {capture: none, learning_rate: 0}}
claims:
"""


def contracts_of(folder: Path, claims: Mapping[str, Sequence[str]]) -> list[LoadedContract]:
    """Contracts by id, with claims of these ids."""
    for name, ids in claims.items():
        (folder / f"{name}.yaml").write_text(HEAD % name + "".join(CLAIM % each for each in ids))
    return load_contracts([folder])


def busy(*seconds: float, since: float = 0.0) -> list[Busy]:
    """One after another."""
    ends = list(accumulate(seconds, initial=since))
    return [Busy("one-run", began, ended) for began, ended in pairwise(ends)]


def test_shards_start_longest_first_and_shards_of_unknown_duration_before_them(tmp_path: Path) -> None:
    contracts = contracts_of(tmp_path, {"a": ["A-1"], "b": ["B-1", "B-2"], "c": ["C-1"], "d": ["D-1"]})
    recorded = {
        ("a", "A-1", "w"): busy(3.0),
        ("b", "B-1", "w"): busy(10.0),
        ("b", "B-2", "w"): busy(10.0),  # of the same run: it takes no longer
        ("c", "C-1", "w"): busy(11.0),
    }
    planned = gate_shards(contracts, recorded)
    assert [(shard.name, shard.seconds) for shard in planned] == [
        ("d", math.inf), ("c", 11.0), ("b", 10.0), ("a", 3.0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("places", "claims"),
    [(1, [("A-1", "A-2", "A-3", "A-4"), ("B-1",)]), (2, [("A-1", "A-2"), ("A-3", "A-4"), ("B-1",)])],
)
def test_a_long_contract_is_split_into_shards_where_claims_share_no_run(
    places: int, claims: list[tuple[str, ...]], tmp_path: Path
) -> None:
    contracts = contracts_of(tmp_path, {"a": ["A-1", "A-2", "A-3", "A-4"], "b": ["B-1"]})
    shared = busy(40.0)
    recorded = {
        ("a", "A-1", "w"): shared,
        ("a", "A-2", "w"): [*shared, *busy(2.0, since=40.0)],
        ("a", "A-3", "w"): busy(15.0, since=50.0),
        ("a", "A-4", "w"): busy(15.0, since=70.0),
        ("b", "B-1", "w"): busy(5.0, since=90.0),
    }
    planned = gate_shards(contracts, recorded, places)
    assert [shard.claims for shard in planned] == claims
    assert len({shard.name for shard in planned}) == len(planned)


def test_overlapping_busy_times_of_a_gpu_count_once() -> None:
    times = [Busy("a", 0.0, 4.0), Busy("a", 1.0, 2.0), Busy("a", 3.0, 6.0), Busy("a", 8.0, 9.0), Busy("b", 0.0, 1.0)]
    assert busy_seconds(times) == 8.0
    assert busy_seconds([]) == 0.0


def test_the_duration_of_a_published_unit_comes_from_its_newest_run(tmp_path: Path) -> None:
    unit = ("capture-cost-v1", "F-GRAPH-BWD-003-512", "tiny")
    found = busy_times([unit, ("absent", "A-1", "w")], [tmp_path, ROOT / "reports"])
    assert list(found) == [unit]
    assert {one.directory for one in found[unit]} == {"2026-12-01-h200-gate-kernels"}
    assert busy_seconds(found[unit]) > 0


def test_a_shard_names_its_contract_and_claims() -> None:
    """The contract as it was given: a run directory does not tell where the checkout lies."""
    one = Shard("one", Path("contracts/a.yaml"), ("A-001", "A-002"))
    assert one.words() == ["verify", "contracts/a.yaml", "--claim", "A-001", "--claim", "A-002"]
    assert one.words(but={"A-001"}) == ["verify", "contracts/a.yaml", "--claim", "A-002"]


def test_shards_state_whether_they_need_a_gpu() -> None:
    needs = {shard.name: shard.on_gpu for shard in gate_shards(load_contracts([CONTRACTS]))}
    assert (needs["F-GRAPH-BWD-003"], needs["traced-step-v1"], needs["ptx-target-parity-v1"]) == (True, False, True)


def test_each_shard_sees_only_its_assigned_gpus_and_shards_start_in_order(programs: Write, tmp_path: Path) -> None:
    """There are four GPUs. A shard that needs more GPUs gets all of them, and its units report what is missing."""
    says = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    begins = f"{says}; open('two-has-begun', 'w')"
    waits = f"{says}; import os, time\nwhile not os.path.exists('two-has-begun'): time.sleep(0.01)"
    needs = {"one": 1, "two": 2, "four": 4, "other": 1, "eight": 8, "last": 2}
    programs(**{**dict.fromkeys(needs, says), "one": waits, "two": begins})
    begun: list[str] = []

    class Watched(Local):
        def submit(self, job: ShardJob, folder: Path) -> Job[Outcome]:
            begun.append(job.shard.name)
            return super().submit(job, folder)

    shards = [shard(name, gpus) for name, gpus in needs.items()]
    gate.run_shards(shards, Watched(["0", "1", "2", "3"]), tmp_path / "out", lambda *_: None)
    seen = {name: (tmp_path / "out" / f"{name}.txt").read_text().strip() for name in needs}
    assert seen == {"one": "0", "two": "1,2", "four": "0,1,2,3", "other": "0", "eight": "0,1,2,3", "last": "0,1"}
    assert begun == list(needs)


@pytest.mark.parametrize(
    ("gpus", "messages"),
    [("abc", []), ("a", ["needs 2 GPUs, one for each rank, but this machine has 1"])],
)
def test_every_shard_sees_the_gpus_that_its_units_need_or_reports_the_number(
    gpus: str, messages: list[str], programs: Write, tmp_path: Path
) -> None:
    """GPUs are simulated. A shard sees as many as its units need; on fewer the units say how many they need."""
    contracts = load_contracts([CONTRACTS / "ranks-v1.yaml"])
    planned = [{one.claims[0]: one for one in shards_of(contracts)} for shards_of in (gate_shards, drill_shards)]
    asked = [of_claim[claim] for of_claim in planned for claim in ("RANKS-004", "RANKS-001")]
    shards = [replace(one, name=f"{number}") for number, one in enumerate(asked)]
    programs(**{one.name: "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])" for one in shards})
    gate.run_shards(shards, Local(list(gpus)), tmp_path / "out", lambda *_: None)
    for one in shards:
        seen = (tmp_path / "out" / f"{one.name}.txt").read_text().strip().split(",")
        machine = Machine(True, "", tuple(Gpu("NVIDIA H100", uuid, "sm_90", 80.0) for uuid in seen), 64.0)
        units = plan(
            contracts, claims=one.claims, machine=machine, describe=lambda name: resolve(name).describe()
        ).units
        assert len(seen) == min(2, len(gpus))
        assert sorted({unit.obstacle.message for unit in units if unit.obstacle is not None}) == messages


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


TIMED = """\
  - id: SPEED-001
    title: It is faster
    kind: throughput_ratio
    candidate: fast
    baseline: plain
    at_least: 1.1
    trajectory: SCRIPT-001
    on: [held]
    why: The script decides.
    if_fails: The script says so.
    falsified_by: [slow_candidate]
"""


@pytest.fixture
def two_alike(tmp_path: Path, scripted: Path) -> list[LoadedContract]:
    """Two contracts that have a timing claim of one id; the first is called as that claim is."""
    from scripted_system import contract_text

    for identity in ("speed-001", "two-v1"):
        (tmp_path / f"{identity}.yaml").write_text(contract_text("held", identity=identity) + TIMED)
    return load_contracts([tmp_path])


@pytest.mark.parametrize("plan", [gate_shards, drill_shards])
def test_every_shard_has_a_unique_name(
    plan: Callable[[Sequence[LoadedContract]], list[Shard]], two_alike: list[LoadedContract]
) -> None:
    """Otherwise the results of one shard would be judged as those of another shard with the same name."""
    planned = plan(two_alike)
    assert len({shard.name.casefold() for shard in planned}) == len(planned) == 4
    timed = [(shard.name, shard.contract.stem) for shard in planned if shard.claims == ("SPEED-001",)]
    ending = "-slow_candidate" if plan is drill_shards else ""
    assert timed == [(f"SPEED-001{ending}", "speed-001"), (f"SPEED-001{ending}-2", "two-v1")]


@pytest.mark.parametrize("faults", ["", "    falsified_by: [nan_tail]\n"])
def test_a_claim_without_a_fault_is_in_no_shard_of_a_drill(faults: str, tmp_path: Path, scripted: Path) -> None:
    """Regression: if it was the first claim of its contract, the command ended with a traceback.

    If it was the only claim, its shard was empty.
    """
    from scripted_system import contract_text

    text = contract_text("held")
    claim = text.partition("claims:\n")[2]
    more = claim.replace("SCRIPT-001", "SCRIPT-002").replace("    falsified_by: [nan_tail]\n", faults)
    (tmp_path / "a.yaml").write_text(text.replace("    falsified_by: [nan_tail]\n", "") + more)
    assert [shard.claims for shard in drill_shards(load_contracts([tmp_path]))] == ([("SCRIPT-002",)] if faults else [])
    if not faults:
        assert drill_on("local", None, [tmp_path], tmp_path / "out", redact=None) == 10
        assert not (tmp_path / "out").exists()


def test_a_shard_of_a_drill_names_its_fault() -> None:
    words = Shard("one", Path("a.yaml"), ("A-001",), ("stale_batch",), drill=True).words()
    assert words == ["drill", "a.yaml", "--claim", "A-001", "--fault", "stale_batch"]


@pytest.mark.parametrize(
    ("codes", "code"),
    [([0, 0], 0), ([0, 10], 10), ([10, 1, 0], 1), ([1, 12], 12), ([0, -9], 12), ([], 0), ([1, 2], 12)],
)
def test_the_exit_code_of_a_sharded_drill_is_that_of_its_worst_shard(codes: list[int], code: int) -> None:
    assert gate.worst(codes) == code


def test_the_option_gpus_selects_all_gpus_or_the_named_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "devices", lambda: Devices((Gpu("NVIDIA H200", "GPU-a", "sm_90", 139.8),)))
    assert (engines.gpu_names("all"), engines.gpu_names("0, GPU-b")) == (["GPU-a"], ["0", "GPU-b"])
    monkeypatch.setattr(engines, "devices", lambda: Devices(problem="no NVIDIA driver"))
    with pytest.raises(UsageError, match="--gpus needs a CUDA device; found no NVIDIA driver"):
        engines.gpu_names("all")


@pytest.mark.parametrize(
    ("gpus", "places"), [([], [""]), ([Gpu("NVIDIA H200", name, "sm_90", 139.8) for name in "ab"], ["a", "b"])]
)
def test_the_local_engine_runs_one_shard_per_gpu_at_a_time_or_one_shard_without_gpus(
    gpus: list[Gpu], places: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "devices", lambda: Devices(tuple(gpus)))
    assert engines.engine("local").places == places


@pytest.mark.parametrize("gpus", [["0"], ["0", "1", "2"]])
def test_each_shard_runs_once_even_if_a_different_shard_fails(gpus: list[str], programs: Write, tmp_path: Path) -> None:
    programs(
        broken="import sys; print('broken'); sys.exit(12)",
        says="import os; print(os.environ['CUDA_VISIBLE_DEVICES'])",
        ends_its_job=f"import os, signal; os.kill({JOB}, signal.SIGKILL); print('not seen')",
        killed="import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        ended="raise SystemExit(143)",
    )
    ended: list[tuple[str, str, Outcome | None]] = []
    names = ["a", "broken", "says", "ends_its_job", "killed", "ended", "b"]
    codes = gate.run_shards(
        [shard(name) for name in names],
        Local(gpus),
        tmp_path / "out",
        lambda shard, place, outcome: ended.append((shard.name, place, outcome)),
    )
    assert codes == {"a": 0, "broken": 12, "says": 0, "ends_its_job": 12, "killed": 12, "ended": 12, "b": 0}
    assert sorted((name, outcome and outcome.code) for name, _, outcome in ended) == [
        ("a", 0), ("b", 0), ("broken", 12), ("ended", None), ("ends_its_job", None), ("killed", None), ("says", 0)
    ]  # fmt: skip
    assert (tmp_path / "out" / "broken.txt").read_text() == "broken\n"
    [place] = [place for name, place, _ in ended if name == "says"]
    assert (tmp_path / "out" / "says.txt").read_text().strip() == place
    assert not (tmp_path / "out" / ".submitter").exists()
    with pytest.raises(UsageError, match="must not exist yet"):
        gate.run_shards([], Local(gpus), tmp_path / "out", lambda *_: None)


def test_a_shard_that_left_no_run_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "run.json").touch()
    assert gate.run_directories([shard("one")], tmp_path) == [tmp_path / "one"]
    with pytest.raises(
        EvidenceError, match=r"found no run directory of the jobs two; read the output of each job: the harness"
    ):
        gate.run_directories([shard("one"), shard("two")], tmp_path)


def test_an_interrupted_gate_ends_its_running_shard_and_starts_no_further_shard(
    programs: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, log = tmp_path / "out", tmp_path / "out" / "waits.txt"
    programs(waits=WAITS)
    left, passes = [1], time.sleep

    def interrupting(seconds: float) -> None:
        passes(seconds)
        if left[0] and log.exists() and log.read_text():
            left[0] -= 1
            raise KeyboardInterrupt

    monkeypatch.setattr("harness.extras.fleet.gate.time.sleep", interrupting)
    with pytest.raises(KeyboardInterrupt) as caught:
        gate.run_shards([shard("waits"), shard("later")], Local(["0"]), directory, lambda *_: None)
    assert caught.value.__notes__ == [f"the results of the shards are kept in {directory}"]
    assert (log.read_text(), left) == ("up\nasked\n", [0])
    assert not (directory / "later.txt").exists()


def harness(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "harness", *map(str, arguments)]


def test_a_terminated_gate_keeps_the_evidence_of_its_running_shard(scripted: Path, tmp_path: Path) -> None:
    """The test starts the whole command. The running shard leaves its evidence, and later shards never begin."""
    from scripted_system import contract_text

    out = tmp_path / "out"
    contracts = [tmp_path / f"{name}.yaml" for name in ("one", "two")]
    for contract in contracts:
        contract.write_text(contract_text("sleeps", identity=contract.stem))
    command = harness("verify", *contracts, "--gpus", "0", "--reports", tmp_path, "--name", "out")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=CONTRACTS.parent) as process:
        eventually(lambda: list(out.glob("*/evidence/*")), "a shard is under way", process)
        process.terminate()
        _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 143
    assert errors == f"terminated\nthe results of the shards are kept in {out}\n"
    assert [path.name for path in out.glob("*.txt")] == ["one.txt"]
    assert len(list(out.glob("one*/run.json"))) == 1


def begun(out: Path) -> bool:
    """Return True once the first run of the shard has ended."""
    return any(json.loads(path.read_text())["ended"] for path in out.glob("one*/journal.json"))


def goes_on(out: Path) -> bool:
    """Return True once the shard was resumed."""
    return any(read_bundle(path.parent).header.resumed for path in out.glob("one*/run.json"))


@pytest.fixture
def waiting(scripted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A contract of which one unit is decided at once, and one when the file `go` is there; where its shard goes."""
    from scripted_system import contract_text

    monkeypatch.chdir(tmp_path)
    Path("one.yaml").write_text(contract_text("violated", "waits", identity="one"))
    return tmp_path / "r" / "all"


LOCAL = ["verify", "one.yaml", "--on", "local", "--gate", "--json", "--reports", "r", "--name", "all"]


def test_a_requeued_slurm_job_resumes_where_it_stopped(waiting: Path) -> None:
    """Before a job's time limit Slurm sends submitit a signal, and the job is started again."""
    with subprocess.Popen(harness(*LOCAL), stdout=subprocess.PIPE, text=True) as process:
        eventually(lambda: begun(waiting), "a run has ended", process)
        [submitted] = waiting.glob(".jobs/*_submitted.pkl")
        controller = submitted.name.partition("_")[0]
        [task] = Path(f"/proc/{controller}/task/{controller}/children").read_text().split()
        os.kill(int(task), signal.SIGUSR2)
        eventually(lambda: goes_on(waiting), "the job goes on", process)
        Path("go").touch()
        printed, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert [(claim["workload"], claim["status"]) for claim in json.loads(printed)["claims"]] == [
        ("violated", "FAIL"),
        ("waits", "PASS"),
    ]
    assert [path.name for path in waiting.glob("*") if path.is_dir() and path.name != ".jobs"] == ["one"]
    [resumption] = read_bundle(waiting / "one").header.resumed
    assert resumption.executed == ["one+waits+paired"]


def test_a_job_at_its_time_limit_is_requeued_unchanged(tmp_path: Path) -> None:
    """submitit asks the job for a replacement before its time limit. A job that gives none is not started again."""
    job = ShardJob(shard("one"), ("harness",), tmp_path, ("--redact",), {"A": "b"}, owned=True)
    assert job.checkpoint().function == job


def test_running_shards_end_when_their_gate_is_killed(waiting: Path) -> None:
    with subprocess.Popen(harness(*LOCAL), stdout=subprocess.DEVNULL) as process:
        eventually(lambda: begun(waiting), "a run has ended", process)
        process.kill()
    eventually(lambda: all(map(is_free, waiting.glob("one*/journal.lock"))), "no shard is at work")
    assert not (waiting / "one" / "manifest.json").exists()


def test_the_shards_of_a_local_gate_are_judged_together(scripted: Path, tmp_path: Path) -> None:
    """Two contracts have one shard each. The result is one count over both contracts and the exit code of the gate.

    Shards start without the project's folder on their import path, as the command does.
    """
    from scripted_system import contract_text

    (tmp_path / "sitecustomize.py").write_text("")  # behind which a shard refuses to begin
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(contract_text("not_run").replace("scripted-v1", name))
    command = harness("verify", tmp_path, "--gpus", "0,1", "--gate", "--json", "--reports", "r", "--name", "all")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 10, done.stderr
    claims = json.loads(done.stdout)["claims"]
    assert [(claim["contract"], claim["status"]) for claim in claims] == [("one", "NOT_RUN"), ("two", "NOT_RUN")]


@pytest.mark.parametrize("option", ["--claim", "--workload", "--fault"])
@pytest.mark.parametrize("asked", ["--gpus all", "--on local"])
def test_options_that_narrow_contracts_are_refused_with_shards(asked: str, option: str) -> None:
    done = subprocess.run(
        harness("verify", CONTRACTS, *asked.split(), option, "x"), capture_output=True, text=True, check=False
    )
    name = asked.partition(" ")[0]
    rule = f"{name} cannot be combined with {option}, because whole contracts are run as jobs"
    assert (done.returncode, done.stderr) == (2, f"error: {rule}; leave out {name} or {option}\n")
