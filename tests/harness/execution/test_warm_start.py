"""Workers and commands that tests fork in place of starting them: the same processes, exit codes and evidence."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
import warm_start
from planning import NO_GPU
from published_pages import shared_folder
from run_builders import make_contract
from waiting import LIMIT_S, eventually
from warm_server import LEASE
from warm_servers import server_of
from warm_start import Forked

from harness.contract.schema import Contract
from harness.evidence.plan_records import Run
from harness.execution import supervisor
from harness.execution.supervisor import execute
from harness.planning.plan import plan
from harness.processes.child import Child
from harness.processes.kept import KeptProcess
from harness.system.resolve import resolve

pytestmark = pytest.mark.usefixtures("warm")
WORKLOAD = {"model": "m", "batch_size": 4, "seq_len": 4, "steps": 5, "needs": {"device": "cpu"}}


@dataclass(frozen=True)
class Loaded:
    contract: Contract


def planned() -> Run:
    claim = {"id": "A", "kind": "ranks_agree", "candidate": "two", "steps": 5}
    arms = {"two": {"ranks": 2}}
    contract = make_contract(claim, system="ranked_systems:Ranked", arms=arms, workloads={"w": WORKLOAD})
    [run] = plan([Loaded(contract)], machine=NO_GPU, describe=lambda name: resolve(name).describe()).runs
    return run


def series_below(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.csv")}


@pytest.fixture
def waiting() -> Child:
    """A worker that waits for a run."""
    return supervisor.start()


def parent_group_and_session(process: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1:4]]


def test_a_warm_worker_leads_its_own_session_below_its_keeper(waiting: Child) -> None:
    """A warm process is forked from a prepared process, and its keeper is the process that ends it and its children."""
    process = cast("KeptProcess", waiting.process)
    keeper = process._keeper
    assert isinstance(keeper, Forked)
    assert parent_group_and_session(process.pid) == [keeper.pid, process.pid, process.pid]
    assert parent_group_and_session(keeper.pid)[1:] == [keeper.pid, keeper.pid]
    waiting.close()


def test_a_warm_process_reports_its_exit_code_or_signal(waiting: Child) -> None:
    """A warm process is forked from a process that has already imported the libraries."""
    waiting.line.close()  # nobody has a run for it
    assert waiting.process.wait() == 0
    waiting.close()
    killed = supervisor.start()
    killed.close()
    assert killed.process.returncode == -9


def test_a_warm_process_ends_by_a_signal_despite_its_keepers_handlers(waiting: Child) -> None:
    """A warm process is forked from a prepared process, and its keeper is the process that ends it and its children."""
    waiting.process.terminate()
    assert waiting.process.wait(LIMIT_S) == -15
    waiting.close()


@pytest.mark.slow
def test_a_forked_warm_worker_leaves_the_evidence_of_a_freshly_started_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warm worker is forked from a process that has already imported the libraries."""
    run = planned()
    assert execute(run, tmp_path / "forked") is None
    monkeypatch.setattr("harness.processes.kept.subprocess", subprocess)
    monkeypatch.delenv("WARM_SERVER")
    assert execute(run, tmp_path / "started") is None
    forked, started = (series_below(tmp_path / how) for how in ("forked", "started"))
    assert forked == started
    assert set(forked) == {"two.0.csv", "rank.1/two.0.csv"}


ROOT = Path(__file__).parents[3]


@pytest.fixture
def commands(command_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands are forked."""
    monkeypatch.setenv(warm_start.COMMANDS, command_server)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.mark.parametrize("words", [("check", "contracts"), ("check", "nowhere"), ("judge", "--no-such-option")])
def test_a_forked_command_prints_and_exits_like_a_started_command(commands: None, words: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "harness", *words]
    forked, started = (how(command, capture_output=True, text=True) for how in (warm_start.run, subprocess.run))
    assert (forked.returncode, forked.stdout, forked.stderr) == (started.returncode, started.stdout, started.stderr)


def test_a_forked_command_has_its_own_arguments_and_ends_by_its_signal(commands: None, tmp_path: Path) -> None:
    """The command is a waiting pytest.

    It loads the first `sitecustomize` on its path and has the default signal handlers of a new interpreter.
    """
    (tmp_path / "test_waits.py").write_text("def test_it():\n    print(flush=True)\n    import time; time.sleep(600)\n")
    (tmp_path / "sitecustomize.py").write_text("open('seen', 'w').write('here')\n")
    command = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", "test_waits.py"]
    variables = {**os.environ, "PYTHONPATH": str(tmp_path), "A_MARK": "17"}
    with warm_start.popen(command, cwd=tmp_path, env=variables, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline()
        shown = {name: Path(f"/proc/{process.pid}/{name}").read_bytes().split(b"\0") for name in ("cmdline", "environ")}
        [ignored] = [line for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if "SigIgn" in line]
        process.send_signal(signal.SIGKILL)
        assert process.wait(LIMIT_S) == -signal.SIGKILL
    assert [word.decode() for word in shown["cmdline"] if word] == command
    assert b"A_MARK=17" in shown["environ"]
    assert (tmp_path / "seen").read_text() == "here"
    own = "print([line for line in open('/proc/self/status') if 'SigIgn' in line][0])"
    started = subprocess.run([sys.executable, "-c", own], capture_output=True, text=True, check=True).stdout
    # a shell that starts the tests in the background ignores these two, and tests change what this process does
    of_shells = sum(1 << (number - 1) for number in (signal.SIGINT, signal.SIGQUIT))
    here, fresh = (int(line.split()[1], 16) | of_shells for line in (ignored, started))
    assert here == fresh  # beside SIGPIPE and SIGXFSZ those that whoever started the tests ignores
    assert int(ignored.split()[1], 16) & 1 << (signal.SIGPIPE - 1)


def test_all_worker_processes_of_a_session_share_one_warm_start_server(
    command_server: str, tmp_path_factory: pytest.TempPathFactory, worker_id: str, commands: None
) -> None:
    with server_of("commands", shared_folder(tmp_path_factory, worker_id), sys.path) as address:
        assert address == command_server
    # one that needs it no longer does not end it for the others
    assert warm_start.run([sys.executable, "-m", "harness", "--version"], capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One that nothing else asks."""
    with server_of("commands", tmp_path_factory.mktemp("own"), [str(ROOT), *sys.path]) as address:
        yield address


def left_behind(connection: socket.socket, asked: str, descriptor: int) -> None:
    """Send as much of a request as whoever asks got to before it was killed."""
    request = {"command": [sys.executable, "-m", "harness", "--version"], "kept": False, "session": False}
    text = json.dumps({**request, "env": {}, "cwd": "/", "numbers": [0, 1, 2]}).encode()
    length = len(text).to_bytes(8, "big")
    if asked == "lease":
        connection.sendall(LEASE)
    elif asked == "half a length":
        connection.sendall(length[:4])
    elif asked != "nothing":
        socket.send_fds(connection, [length], [descriptor] * 3)
        connection.sendall({"a length": b"", "half an object": text[:20], "all of it": text}[asked])


def descriptors_of(process: int) -> int:
    return len([*Path(f"/proc/{process}/fd").iterdir()])


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["nothing", "half a length", "a length", "half an object", "all of it", "lease"])
def test_a_warm_server_survives_a_client_killed_during_its_request(
    own_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """The server reads the requests of the killed clients only after the clients have ended."""
    with socket.socket(socket.AF_UNIX) as lease:
        lease.connect(own_server)
        lease.sendall(LEASE)
        assert lease.recv(1) == b"+"
        server = int.from_bytes(lease.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4), sys.byteorder)
        before = descriptors_of(server)
        os.kill(server, signal.SIGSTOP)
        with socket.socket(socket.AF_UNIX) as connection, (tmp_path / "printed").open("w") as printed:
            connection.connect(own_server)
            left_behind(connection, asked, printed.fileno())
        os.kill(server, signal.SIGCONT)
        monkeypatch.setenv(warm_start.COMMANDS, own_server)
        told = warm_start.run([sys.executable, "-m", "harness", "--version"], capture_output=True, timeout=LIMIT_S)
        assert told.returncode == 0
        # what was asked in full may run longer than `told`, and a server answers before it closes
        eventually(lambda: descriptors_of(server) == before, f"{before} descriptors are open, as before")
