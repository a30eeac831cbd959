"""Name the files in a run directory and the columns of a series, for code that writes and reads them."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

# Names of files and folders in the run directory.
HEADER = "run.json"
INCOMPLETE = "INCOMPLETE"
MANIFEST = "manifest.json"  # lists every other file with its digest; it is written last
# The journal exists while the directory is being written, and lists the complete runs. The process that writes it locks
# the file LOCK.
JOURNAL = "journal.json"
LOCK = "journal.lock"
CONTRACTS = "contracts"
# a folder in `contracts` with the files that contracts share; each file is named after its digest
SHARED_FILES = "shared"
WAIVERS = "waivers"  # a folder with copies of the waiver files, if there were any
EVIDENCE = "evidence"
WHERE = "where"  # a folder with recorded steps, in one folder for each unit whose first difference was searched for
VERDICTS = "verdicts.json"
DRILL = "drill.json"  # exists in the directory of a drill, and lists every fault with its verdict
ARCHIVE = "run.tar.xz"  # exists in a published folder; contains header, contracts and evidence
PAGE = "report.html"
SUMMARY = "summary.md"
JUNIT = "junit.xml"
PROBLEMS = "problems"  # a folder with a Markdown file for each unit that did not hold

SEEN = (HEADER, CONTRACTS, WAIVERS, EVIDENCE, WHERE)  # the recorded part of a run; other files are computed from it

# Names of files and folders in evidence/<run id>/.
RUN = "run.json"
RECORDS = "records.jsonl"
TELEMETRY = "telemetry.jsonl"
DEATH = "death.json"
PROCESS = "process.json"  # start and end times of the worker's process, recorded by the process that started it
ATTEMPT = "attempt."  # prefix of the name of a folder with the files of an earlier worker of the run; a number follows
OUTPUT = "stderr.txt"  # the text that the worker printed to standard output and standard error, up to a size limit
# This file replaces the records if the process of another run executed the arms of this run. It names that other run.
SHARED = "shared.json"
CHECKPOINT = "checkpoint"  # a folder with the checkpoint that the run's system saved; it is removed when the run ends
# Prefix of a folder's name; a number follows. The folder is that of a process that executed a part of the run, and has
# the files above.
LANE = "lane."
# Prefix of a folder's name; a number from 1 follows. Each rank after the first has such a folder with its records and
# series.
RANK = "rank."
# The first columns of a series, the table with one row for each step. Columns of metrics follow, sorted by name.
SERIES_COLUMNS = ("step", "loss", "batch_digest", "clip_active_groups", "tokens")
METRIC_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}")


def lane_name(number: int) -> str:
    """Return the name of the folder of one lane. A lane is a process that executes a part of a run."""
    return f"{LANE}{number}"


def rank_name(number: int) -> str:
    """Return the name of the folder of one rank (after the first) of a run. The folder is next to the first rank's
    files."""
    return f"{RANK}{number}"


def series_name(arm: str, replica: int) -> str:
    """Return the name of the file with one arm's series, the table with one row for each step."""
    return f"{arm}.{replica}.csv"


def unfit(name: str) -> str | None:
    """Return the reason why a run directory must not contain a file of this name, or None if the name is allowed. name:
    the path in the directory."""
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
    """Return a name from an untrusted file in a form for messages: printable, and at most 240 characters long."""
    return ascii(name)[1:-1][:240]
