"""Name the files in a run directory and the columns of a series, for code that writes and reads them."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

# Names of files and folders in the run directory.
HEADER = "run.json"
INCOMPLETE = "INCOMPLETE"
MANIFEST = "manifest.json"  # lists every other file with its digest; it is written last
# The journal exists while the directory is being written, and lists the complete runs. The writing process locks LOCK.
JOURNAL = "journal.json"
LOCK = "journal.lock"
CONTRACTS = "contracts"
# a folder in `contracts` with the files that contracts share; each file is named after its digest
SHARED_FILES = "shared"
WAIVERS = "waivers"  # a folder with copies of the waiver files, if there were any
EVIDENCE = "evidence"
WHERE = "where"  # a folder with observed steps, one folder for each unit whose first difference was searched
VERDICTS = "verdicts.json"
DRILL = "drill.json"  # exists in the directory of a drill, and lists every fault with its verdict
ARCHIVE = "run.tar.xz"  # exists in a published folder; contains header, contracts and evidence
PAGE = "report.html"
SUMMARY = "summary.md"
JUNIT = "junit.xml"
PROBLEMS = "problems"  # a folder with a Markdown file for each unit that did not hold

SEEN = (HEADER, CONTRACTS, WAIVERS, EVIDENCE, WHERE)  # files and folders that exist before anything is judged

# Names of files and folders in evidence/<run id>/.
RUN = "run.json"
RECORDS = "records.jsonl"
TELEMETRY = "telemetry.jsonl"
DEATH = "death.json"
PROCESS = "process.json"  # when the worker's process started and ended, recorded by its supervisor
ATTEMPT = "attempt."  # this prefix and a number name a file of an earlier worker of the run
OUTPUT = "stderr.txt"  # what the worker printed to standard output and standard error, up to a size limit
# Exists instead of records if another run's process executed the arms of this run; names that run
SHARED = "shared.json"
CHECKPOINT = "checkpoint"  # a folder with the checkpoint that the run's system saved; it is removed when the run ends
# This prefix and a number name the folder of a process that executed a part of the run. The folder has the files above.
LANE = "lane."
# This prefix and a number from 1 name the folder of each rank after the first, with that rank's records and series.
RANK = "rank."
# The first columns. The columns of the metrics follow, in the order of their names.
SERIES_COLUMNS = ("step", "loss", "batch_digest", "clip_active_groups", "tokens")
METRIC_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}")


def lane_name(number: int) -> str:
    """Return the name of the folder of one lane (a process that executes part of a run)."""
    return f"{LANE}{number}"


def rank_name(number: int) -> str:
    """Return the name of the folder of one rank of a run. The folder is next to the files of the first rank."""
    return f"{RANK}{number}"


def series_name(arm: str, replica: int) -> str:
    """Return the name of the file of one arm's series."""
    return f"{arm}.{replica}.csv"


def unfit(name: str) -> str | None:
    """Return why a run directory must not contain such a file; None if it may. name: the path in the directory."""
    if not name.isprintable() or "\\" in name or ":" in name:
        return "a name with a control character, a backslash or a colon"
    path = PurePosixPath(name)
    if path.is_absolute():
        return "an absolute path"
    if ".." in path.parts:
        return "a path through `..`"
    if not path.parts and not name.startswith("."):
        return "no name"
    return None


def shown(name: str) -> str:
    """Return an untrusted name in a form for messages: printable, with at most 240 characters."""
    return ascii(name)[1:-1][:240]
