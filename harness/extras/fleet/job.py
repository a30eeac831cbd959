"""Run a shard where its engine put it: start it, or resume it after a preemption, a time limit or a node's loss."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from harness.api import session
from harness.api.rejudge import copies
from harness.devices import environment
from harness.errors import ExitCode
from harness.evidence import layout
from harness.evidence.files import read_model
from harness.evidence.serving import Shared
from harness.extras.fleet.shards import Shard
from harness.processes.kept import KeptProcess
from harness.run_directory.bundle import Bundle, Header
from harness.run_directory.interrupted_run import alone_in, as_left, is_free, is_made_elsewhere, left_unfinished
from harness.run_directory.writer import BundleWriter

if TYPE_CHECKING:
    from submitit.helpers import DelayedSubmission

# Move a shard whose job begins anew on another machine: what had ended stays as the first machine
# decided it.
#
# The interrupted directory is set aside unchanged. Claims of which all runs had ended get their own
# sealed directory; the others begin anew where the shard is now, so that no claim is decided by two
# machines.

ENDED, LEFT = ".ended-", ".left-"  # and a number, behind the shard's name


def run_directories(final: Path) -> list[Path]:
    """Return the run directories of one shard that count: each has claims of its own."""
    own = [final] if (final / layout.HEADER).is_file() else []
    return [*sorted(final.parent.glob(f"{final.name}{ENDED}*")), *own]


def settled_claims(final: Path) -> set[str]:
    """Return the claims of the shard that an earlier machine decided."""
    earlier = final.parent.glob(f"{final.name}{ENDED}*/{layout.HEADER}")
    return {claim for path in earlier for claim in read_model(path, Header).narrowed.claims}


def set_aside(left: Path, final: Path, *, settled: bool) -> None:
    """Move the interrupted directory `left` away from `final`, and settle the claims that had ended, if asked to.

    Raises UsageError where another process is at work in it, EvidenceError where it is not as it was left.
    """
    number = 1 + len(list(final.parent.glob(f"{final.name}{LEFT}*")))
    decided = final.with_name(f"{final.name}{ENDED}{number}")
    with alone_in(left):
        if settled and not decided.exists():
            _settle(left, decided)
        left.rename(final.with_name(f"{final.name}{LEFT}{number}"))


def _settle(left: Path, decided: Path) -> None:
    bundle, journal = as_left(left)
    header = bundle.header
    kept = [claim for claim in header.narrowed.claims if _all_ended(bundle, claim, set(journal.ended))]
    if not kept:
        return
    units = [unit for unit in header.units if unit.claim in kept]
    read = {run for unit in units for run in unit.runs}
    changes = {
        "units": units,
        "runs": {run: probe for run, probe in header.runs.items() if run in read},
        "narrowed": header.narrowed.model_copy(update={"claims": kept}),
    }
    contracts = copies([bundle])
    waivers = [path.read_text(encoding="utf-8") for path in sorted((left / layout.WAIVERS).glob("*.yaml"))]
    writer = BundleWriter(decided, header.model_copy(update=changes), contracts, waivers)
    for run in sorted(read):
        shutil.copytree(left / layout.EVIDENCE / run, writer.evidence_directory(run), symlinks=True)
    writer.settle()
    session.write_judgement(writer.path, session.judge_bundles([writer.bundle()], contracts))
    writer.finish()


def _all_ended(bundle: Bundle, claim: str, ended: set[str]) -> bool:
    """Return True if the claim was tried and every run had ended that its units read, shared evidence included."""
    own = {run for unit in bundle.header.units if unit.claim == claim for run in unit.runs}
    shared = [bundle.root / layout.EVIDENCE / run / layout.SHARED for run in own & ended]
    hosts = {read_model(path, Shared).run for path in shared if path.exists()}
    return bool(own) and own | hosts <= own & ended


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
