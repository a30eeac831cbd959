"""Run a shard where its engine put it: start it, or resume it after a preemption, a time limit or a node's loss."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from harness.devices import environment
from harness.errors import ExitCode
from harness.evidence import layout
from harness.extras.fleet.moved import run_directories, set_aside, settled_claims
from harness.extras.fleet.shards import Shard
from harness.processes.kept import KeptProcess
from harness.run_directory.interrupted_run import is_made_elsewhere, left_unfinished
from harness.run_directory.journal import is_free

if TYPE_CHECKING:
    from submitit.helpers import DelayedSubmission

POLL_S = 0.5
OWNER = ".submitter"  # the file that who waits for the jobs holds a lock on, where they are to end with it
OF_THE_WHOLE = ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY")  # annotations and summary are the whole's, not a shard's
LOCK_WAIT_S = 120.0  # for a lost node's lock on a run directory: NFS gives it up after 90 s


@dataclass(frozen=True)
class Outcome:
    """How a shard ended: its exit code, the node that it ended on, and how often its job had begun anew.

    Of a harness that a signal ended there is none.
    """

    code: int
    node: str
    restarts: int = 0


@dataclass(frozen=True)
class ShardJob:
    """What submitit calls on a node, as often as the engine begins the job: what had ended is not executed again.

    harness: the command's first words. directory: an absolute path that every node sees; its run directory will be
    `directory/NAME`, its output is in `NAME.txt`. variables: of the shard's environment, besides the job's. owned: the
    job ends with who submitted it.
    """

    shard: Shard
    harness: tuple[str, ...]
    directory: Path
    passed_on: tuple[str, ...]
    variables: Mapping[str, str]
    owned: bool = False

    def __call__(self) -> Outcome:
        signal.signal(signal.SIGTERM, _leave)  # over submitit's, which lets it pass
        code = self._execute(self._words())
        if code < 0 or code in {ExitCode.INTERRUPTED, ExitCode.TERMINATED}:
            # What ended the harness may be ending this, too: the processes of a job, or of a lost node, die one after
            # the other, in any order. The job begins anew, and a result now would be taken for the shard's end.
            raise SystemExit(128 - code if code < 0 else code)
        facts = environment.job_facts()
        return Outcome(code, facts.node or "", facts.restarts or 0)

    def checkpoint(self) -> DelayedSubmission:
        """Return the same job again, in the same place. submitit calls this shortly before a job's time is over."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)

    def _words(self) -> list[str]:
        """Return the harness command line that starts or resumes the shard, or judges what it finished before."""
        final = self.directory / self.shard.name
        left = left_unfinished(final)
        until = time.monotonic() + LOCK_WAIT_S
        while left is not None and not is_free(left / layout.LOCK) and time.monotonic() < until:
            time.sleep(POLL_S)
            left = left_unfinished(final)  # who is at work in it may come to the end
        if left is None and (final / layout.MANIFEST).exists():
            return ["judge", str(final)]  # the job was begun anew behind its end
        if left is not None and is_made_elsewhere(left):
            set_aside(left, final, settled=not self.shard.drill)
            left = None
        ended = settled_claims(final)
        if ended and ended >= set(self.shard.claims):
            return ["judge", *map(str, run_directories(final))]
        where = ["--resume", str(left)] if left else ["--reports", str(self.directory), "--name", self.shard.name]
        return [*self.shard.words(ended), *self.passed_on, *where]

    def _execute(self, words: list[str]) -> int:
        """Run the harness, and return its exit code. An interruption sends it SIGTERM, and waits for what it keeps."""
        inherited = {name: value for name, value in os.environ.items() if name not in OF_THE_WHOLE}
        with (self.directory / f"{self.shard.name}.txt").open("ab") as log:
            process = KeptProcess(
                [*self.harness, *words],
                env={**inherited, **self.variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        with process:
            try:
                return self._watched(process)
            except BaseException:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                process.terminate()
                process.wait()
                raise

    def _watched(self, process: KeptProcess) -> int:
        while True:
            try:
                return process.wait(POLL_S)
            except subprocess.TimeoutExpired:
                if self.owned and is_free(self.directory / OWNER):  # who submitted it was killed
                    raise SystemExit(ExitCode.TERMINATED) from None


def _leave(_number: int, _frame: object) -> NoReturn:
    """Exit without a result, so that a job that begins anew is not taken for one that has ended."""
    raise SystemExit(ExitCode.TERMINATED)
