"""The shards of a gate, and that every one runs once, also when one of them fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import gate_on_gpus
import pytest

from harness.contract.load import load_contracts

CONTRACTS = Path(__file__).parents[2] / "contracts"
SCRIPT = Path(gate_on_gpus.__file__)


def test_every_claim_is_in_one_shard_and_timings_come_first() -> None:
    planned = gate_on_gpus.shards([CONTRACTS])
    demanded = [claim.id for loaded in load_contracts([CONTRACTS]) for claim in loaded.contract.claims]
    assert sorted(claim for shard in planned for claim in shard.claims) == sorted(demanded)
    assert {shard.name for shard in planned[:3]} == {"F-GRAPH-BWD-003", "F-GRAPH-BWD-003-512", "F-CGT-001"}
    assert len({shard.name for shard in planned}) == len(planned)


def test_a_shard_names_its_contract_claims_and_directory() -> None:
    shard = gate_on_gpus.Shard("one", Path("contracts/a.yaml"), ("A-001", "A-002"))
    words = shard.command(Path("out"))[3:]
    assert " ".join(words) == ("verify contracts/a.yaml --claim A-001 --claim A-002 --reports out --name one")


def test_a_run_directory_does_not_tell_where_the_checkout_lies() -> None:
    """Every command stands in its run directory; shards run in the checkout's root."""
    shard = gate_on_gpus.Shard("one", CONTRACTS.resolve() / "a.yaml", ("A-001",))
    assert shard.command(Path("out"))[4] == str(Path("contracts", "a.yaml"))


def test_a_drill_plants_every_fault_of_every_claim_once() -> None:
    planned = gate_on_gpus.drill_shards([CONTRACTS])
    demanded = [
        (claim.id, fault)
        for loaded in load_contracts([CONTRACTS])
        for claim in loaded.contract.claims
        for fault in claim.falsified_by
    ]
    named = {claim.id: claim.falsified_by for loaded in load_contracts([CONTRACTS]) for claim in loaded.contract.claims}
    planted = [(claim, fault) for shard in planned for claim in shard.claims for fault in shard.faults or named[claim]]
    assert sorted(planted) == sorted(demanded)
    assert len({shard.name for shard in planned}) == len(planned)
    assert all(shard.claims and shard.drill for shard in planned)
    untimed = [sum(len(named[claim]) for claim in shard.claims) for shard in planned if not shard.faults]
    assert max(untimed) <= gate_on_gpus.MOST_FAULTS


def test_a_shard_of_a_drill_names_its_fault_and_directory() -> None:
    words = gate_on_gpus.Shard("one", Path("a.yaml"), ("A-001",), ("stale_batch",), drill=True).command(Path("out"))[3:]
    assert " ".join(words) == "drill a.yaml --claim A-001 --fault stale_batch --reports out --name one"


@pytest.mark.parametrize(
    ("codes", "code"), [([0, 0], 0), ([0, 10], 10), ([10, 1, 0], 1), ([1, 12], 12), ([0, -9], 12), ([], 0)]
)
def test_the_worst_shard_decides_a_drill(codes: list[int], code: int) -> None:
    assert gate_on_gpus.worst(codes) == code


@pytest.mark.parametrize("gpus", [["0"], ["0", "1", "2"]])
def test_each_shard_runs_once_whatever_becomes_of_another(gpus: list[str]) -> None:
    work = [gate_on_gpus.Shard(str(number), Path("a.yaml"), ()) for number in range(7)]
    seen: list[tuple[str, str]] = []

    def run(shard: gate_on_gpus.Shard, gpu: str) -> None:
        seen.append((shard.name, gpu))
        if shard.name == "3":
            raise OSError("no such program")

    with pytest.raises(OSError, match="no such program"):
        gate_on_gpus.run_all(work, gpus, run)
    assert sorted(name for name, _ in seen) == [shard.name for shard in work]
    assert {gpu for _, gpu in seen} <= set(gpus)


def test_a_signal_ends_what_runs_and_nothing_else_begins() -> None:
    calls = gate_on_gpus.Calls()
    codes: list[int] = []
    waiting = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
    reading, writing = os.pipe()
    thread = threading.Thread(target=lambda: codes.append(calls.call(waiting, stdout=writing)))
    thread.start()
    assert os.read(reading, 2) == b"up"
    calls.end(signal.SIGINT)
    thread.join(timeout=20)
    os.close(reading)
    os.close(writing)
    assert codes == [-signal.SIGTERM]
    assert calls.ended_by == signal.SIGINT
    assert calls.call(["no such program"]) == -signal.SIGTERM


def test_a_second_signal_while_the_first_ends_things(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = gate_on_gpus.Calls()
    ended: list[int] = []

    def terminate(process: subprocess.Popen[bytes]) -> None:
        ended.append(process.pid)
        if len(ended) == 1:
            calls.end(signal.SIGTERM)
        process.kill()

    monkeypatch.setattr(subprocess.Popen, "terminate", terminate)
    reading, writing = os.pipe()
    waiting = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
    thread = threading.Thread(target=lambda: calls.call(waiting, stdout=writing), daemon=True)
    thread.start()
    assert os.read(reading, 2) == b"up"
    signals = threading.Thread(target=lambda: calls.end(signal.SIGINT), daemon=True)
    signals.start()
    signals.join(timeout=20)
    thread.join(timeout=20)
    os.close(reading)
    os.close(writing)
    assert (len(ended), signals.is_alive(), thread.is_alive()) == (2, False, False)


def test_a_terminated_gate_keeps_what_its_shards_saw(tmp_path: Path) -> None:
    """The whole script, on this machine's CPU: a shard under way leaves its evidence, the others never begin."""
    out = tmp_path / "out"
    command = [sys.executable, str(SCRIPT), str(out), str(CONTRACTS / "traced-step-v1.yaml")]
    command += [str(CONTRACTS / "repeatability-v1.yaml"), "--gpus", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 60
        while not list(out.glob("*/evidence/*")) and time.monotonic() < until:
            time.sleep(0.05)
        process.terminate()
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 143
    assert errors == f"interrupted: what the shards had seen is kept in {out}\n"
    assert [path.name for path in out.glob("*.txt")] == ["traced-step-v1.txt"]
    assert len(list(out.glob("traced-step-v1*/run.json"))) == 1
