"""Name the files in a run directory, and the columns of a series, for the code that writes and that reads them."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

# the run directory
HEADER = "run.json"
INCOMPLETE = "INCOMPLETE"
MANIFEST = "manifest.json"  # every other file with its digest; written last
JOURNAL = "journal.json"  # while the directory is written: which runs have ended; with the writing process's lock
LOCK = "journal.lock"
CONTRACTS = "contracts"
SHARED_FILES = "shared"  # a folder in `contracts`: the files that contracts share, each named after its digest
WAIVERS = "waivers"  # copies of the waiver files, if there were any
EVIDENCE = "evidence"
WHERE = "where"  # a folder: for each unit whose first difference was located, a folder with the observed steps
VERDICTS = "verdicts.json"
DRILL = "drill.json"  # in the directory of a fire drill: every fault with its verdict
ARCHIVE = "run.tar.xz"  # in a published folder: header, contracts and evidence
PAGE = "report.html"
SUMMARY = "summary.md"
JUNIT = "junit.xml"
PROBLEMS = "problems"  # a folder: a Markdown file for each unit that did not hold

SEEN = (HEADER, CONTRACTS, WAIVERS, EVIDENCE, WHERE)  # what exists before anything is judged

# evidence/<run id>/
RUN = "run.json"
RECORDS = "records.jsonl"
TELEMETRY = "telemetry.jsonl"
DEATH = "death.json"
PROCESS = "process.json"  # when the worker's process started and ended, as its supervisor saw it
ATTEMPT = "attempt."  # and a number: the files of an earlier worker of the run
OUTPUT = "stderr.txt"  # what the worker printed, on both streams, up to a cap
SHARED = "shared.json"  # instead of records: the run whose process executed this one's arms too
CHECKPOINT = "checkpoint"  # a folder with what a run's system saved; removed at every end of the run
LANE = "lane."  # and a number: the folder of a process that executed a part of the run, with files as above
RANK = "rank."  # and a number from 1: the folder of each rank after the first, with its records and series
SERIES_COLUMNS = ("step", "loss", "batch_digest", "clip_active_groups", "tokens")  # then the metrics, by their names
METRIC_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}")


def lane_name(number: int) -> str:
    """Return the name of the folder of one lane (a process that executes part of a run)."""
    return f"{LANE}{number}"


def rank_name(number: int) -> str:
    """Return the name of the folder of one rank of a run, next to the files of the first rank."""
    return f"{RANK}{number}"


def series_name(arm: str, replica: int) -> str:
    """Return the name of the file of one arm's series."""
    return f"{arm}.{replica}.csv"


def unfit(name: str) -> str | None:
    """Return why a run directory may not contain a file with this name; None if it may. name: path in the directory."""
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
    """Return an untrusted name in a form for messages: printable, and at most 240 characters long."""
    return ascii(name)[1:-1][:240]
