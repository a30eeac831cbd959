"""A real Slurm on this machine: a controller and a daemon for each node, with their own names and ports.

A node is lost together with its daemon and all of the daemon's processes.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from harness.processes.kept import KeptProcess

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel", "sinfo")
CORES = 2  # of each node: what a job of the tests asks for, so that it has its node to itself
CONFIGURATION = """\
ClusterName=harness
SlurmctldHost={host}
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
AuthInfo=cred_expire=5
CredType=cred/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
SlurmdTimeout=6
KillWait=30
MinJobAge=10
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
{nodes}
PartitionName=shared Nodes=ALL Default=YES PriorityTier=1 MaxTime=INFINITE State=UP
PartitionName=urgent Nodes=ALL PriorityTier=9 PreemptMode=OFF MaxTime=INFINITE State=UP
"""


def missing_programs() -> list[str]:
    """Return the programs of Slurm that this machine lacks."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


class Cluster:
    """`variables`: the additional environment variables of a process that is a client of this cluster."""

    def __init__(self, folder: Path, nodes: Sequence[str]) -> None:
        self.variables = {"SLURM_CONF": str(folder / "slurm.conf")}
        self._folder, self._names = folder, nodes
        self._daemons: dict[str, KeptProcess] = {}
        folder.mkdir()
        (folder / "state").mkdir()
        port, *ports = _free_ports(1 + len(nodes))
        host = socket.gethostname().partition(".")[0]
        lines = [
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={number} CPUs={CORES} RealMemory=4000"
            for name, number in zip(nodes, ports, strict=True)
        ]
        text = CONFIGURATION.format(
            folder=folder, host=f"{host}(127.0.0.1)", port=port, nodes="\n".join(lines), user=_user()
        )
        (folder / "slurm.conf").write_text(text)

    def start(self) -> None:
        """Start the controller, then every node; return when all nodes are idle."""
        self._daemons["slurmctld"] = self._daemon("slurmctld", "-D")
        for name in self._names:
            self.start_node(name)
        self.until(lambda: self.states() == dict.fromkeys(self._names, "idle"), "every node is idle")

    def start_node(self, name: str) -> None:
        (self._folder / f"spool.{name}").mkdir(exist_ok=True)
        self._daemons[name] = self._daemon("slurmd", "-D", "-N", name)

    def lose(self, name: str) -> None:
        """Set the node down, and kill its daemon and its jobs' processes.

        The controller is told first. Otherwise the last of several dying processes might report the end of a job.
        """
        self.ask("scontrol", "update", f"nodename={name}", "state=down", "reason=lost")
        self._daemons.pop(name).kill()

    def stop(self) -> None:
        for daemon in self._daemons.values():
            daemon.kill()

    def preempt(self, node: str) -> None:
        """Start a job that preempts the node's current job and ends at once."""
        alone = [f"--nodelist={node}", f"--cpus-per-task={CORES}"]
        self.ask("sbatch", "--partition=urgent", *alone, "--output=/dev/null", "--wrap=true")

    def begin(self, jobs: Sequence[str]) -> None:
        """Let requeued jobs start in their order, as soon as a node is free.

        Slurm would let each wait until its last credential has expired everywhere, and refuses one of the same second.
        """
        second = int(time.time())
        self.until(lambda: int(time.time()) > second + 1, "a later second has begun")
        for job in jobs:
            self.ask("scontrol", "update", f"jobid={job}", "starttime=now")

    def states(self) -> dict[str, str]:
        lines = self.ask("sinfo", "--noheader", "--Node", "--partition=shared", "--format=%N %T").splitlines()
        return dict(line.split() for line in lines)

    def jobs(self) -> dict[str, tuple[str, str]]:
        """Return state and node of each job that waits or runs, by its number."""
        lines = self.ask("squeue", "--noheader", "--format=%i|%T|%N").splitlines()
        return {number: (state, node) for number, state, node in (line.split("|") for line in lines)}

    def ask(self, *command: str) -> str:
        """Return the standard output of a Slurm command."""
        variables = {**os.environ, **self.variables}
        return subprocess.run(command, env=variables, capture_output=True, text=True, check=False).stdout

    def until(self, holds: Callable[[], bool], what: str, seconds: float = 180.0) -> None:
        """Wait until the cluster reaches a state; raise AssertionError with the controller's log if it does not."""
        end = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > end:
                log = (self._folder / "slurmctld.log").read_text() if self._folder.exists() else ""
                raise AssertionError(f"not within {seconds:g} s: {what}; {self.states()} {self.jobs()}\n{log[-4000:]}")
            time.sleep(0.4)  # each look is a process of Slurm's

    def _daemon(self, *command: str) -> KeptProcess:
        variables = {**os.environ, **self.variables}
        return KeptProcess(
            command, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def running(folder: Path, nodes: Sequence[str] = ("node1", "node2")) -> Iterator[Cluster]:
    cluster = Cluster(folder, nodes)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
