"""Move a shard whose job begins anew on another machine: what had ended stays as the first machine decided it.

The interrupted directory is set aside unchanged. Claims of which all runs had ended get their own sealed directory; the
others begin anew where the shard is now, so that no claim is decided by two machines.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from harness.api import session
from harness.evidence import layout
from harness.evidence.files import read_model
from harness.evidence.sharing import Shared
from harness.finished_runs.rejudge import copies
from harness.run_directory.bundle import Bundle, Header
from harness.run_directory.interrupted_run import as_left
from harness.run_directory.journal import alone_in
from harness.run_directory.writer import BundleWriter

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
