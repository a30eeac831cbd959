"""Write the tables of reports/README.md: published runs, claims that did not hold in them, and measured ratios.

    python tools/docs/index_reports.py

Everything is read from each run's `run.json`, `verdicts.json` and, for a drill, `drill.json`; nothing is judged again.
Runs in subfolders of reports/ get no row, but their sources are listed and their drills are counted.
"""

from __future__ import annotations

import lzma
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from page_tables import filled, table
from pydantic import ValidationError

from harness.api import drill as matrix
from harness.contract.load import load_contracts
from harness.errors import EvidenceError
from harness.evidence import layout
from harness.evidence.environment_records import quoted
from harness.evidence.files import write_text
from harness.judging.verdict import Status, UnitFacts
from harness.report.wording import reason_text
from harness.run_directory.archive import TOP
from harness.run_directory.bundle import Header, read_bundle
from harness.run_directory.places import runs_in
from harness.run_directory.verdict_file import DrillRecord, VerdictFile, read_record, read_verdicts

ROOT = Path(__file__).parents[2]
REPORTS = ROOT / "reports"
PAGE = REPORTS / "README.md"
MOST_NAMED = 12
RUNS = ("run", "machine", "software", "sources", "verdicts")
OPEN = ("run", "claim", "workload", "verdict", "what was seen")
RATIOS = (
    "run",
    "claim",
    "workload",
    "verdict",
    "demanded",
    "ratio",
    "processes from",
    "to",
    "uncaptured, ms",
    "captured, ms",
)


@dataclass(frozen=True)
class Published:
    """One published run: a directory below reports/."""

    name: str
    header: Header
    verdicts: VerdictFile
    drill: DrillRecord | None
    shown: str  # name of the file to link: the run's page, or its summary if the run has no page


def published(reports: Path) -> list[Published]:
    """Return every published run, sorted by name and therefore by date. Raises EvidenceError for a damaged run."""
    directories = []
    for path in runs_in(reports):
        header = header_of(path)
        drill = read_record(path / layout.DRILL) if header.purpose == "drill" else None
        shown = "report.html" if (path / "report.html").is_file() else "summary.md"
        directories.append(Published(path.name, header, read_verdicts(path), drill, shown))
    return directories


def header_of(path: Path) -> Header:
    """Return the header of a run directory or archive. Raises EvidenceError if it is missing or cannot be read. An
    archive is read only up to the header, because unpacking all archives would take five times as long."""
    archive = path / layout.ARCHIVE
    if not archive.is_file():
        return read_bundle(path).header
    got = "none"
    try:
        with tarfile.open(archive, "r|xz") as members:
            for member in members:
                if member.name == f"{TOP}/{layout.HEADER}" and (file := members.extractfile(member)) is not None:
                    return Header.model_validate_json(file.read())
    except (OSError, EOFError, lzma.LZMAError, tarfile.TarError, ValidationError) as error:
        got = f"{type(error).__name__}: {str(error)[:200]}"
    raise EvidenceError(f"a published run must have a readable {layout.HEADER}", where=str(archive), got=got)


def drills(reports: Path) -> list[DrillRecord]:
    """Return every published drill, also from subfolders of reports/. Raises EvidenceError for a damaged record."""
    return [read_record(path) for path in sorted(reports.rglob(layout.DRILL))]


def sources(reports: Path) -> dict[str, list[str]]:
    """Return the names of the runs in subfolders of reports/, by the commit of the sources that they recorded."""
    found: dict[str, list[str]] = {}
    below = {path.parent for name in (layout.HEADER, layout.ARCHIVE) for path in reports.rglob(name)}
    for path in sorted(below - set(runs_in(reports))):
        found.setdefault(_sources(header_of(path)), []).append(str(path.relative_to(reports)))
    return found


def text(reports: Path) -> str:
    """Return the text to write between the marks of the page."""
    rows = [[commit, ", ".join(f"`{name}`" for name in names)] for commit, names in sources(reports).items()]
    below = ["The sources of the runs in subfolders, as each run recorded them:", table(("sources", "runs"), rows)]
    return "\n\n".join([tables(published(reports), drills(reports)), *(below if rows else [])])


def tables(runs: Sequence[Published], drilled: Sequence[DrillRecord]) -> str:
    """Return the text between the marks of the page: tables of the runs, and the results of faults in all drills."""
    if not runs:
        return "No run is published yet."
    verdicts = [(run, verdict) for run in runs for verdict in run.verdicts.claims]
    parts = [table(RUNS, (_run(run) for run in runs))]
    left = _open((run, verdict) for run, verdict in verdicts if verdict.status is not Status.PASS)
    if left:
        parts += ["What did not hold, or was not decided, in these runs:", table(OPEN, left)]
    ratios = [_ratio(run, verdict) for run, verdict in verdicts if "mean_ratio" in verdict.figures]
    if ratios:
        parts += ["Every ratio that was measured, decided or not:", table(RATIOS, ratios)]
    if drilled:
        parts.append(coverage(drilled, demanded([ROOT / "contracts"])))
    return "\n\n".join(parts)


def demanded(contracts: Sequence[Path]) -> set[tuple[str, str]]:
    """Return all pairs of a claim and a fault, for the faults that each claim names."""
    claims = [claim for loaded in load_contracts(contracts) for claim in loaded.contract.claims]
    return {(claim.id, fault) for claim in claims for fault in claim.falsified_by}


def coverage(drills: Sequence[DrillRecord], demanded: set[tuple[str, str]]) -> str:
    """Return how many pairs of a claim and a fault were killed, survived or were not planted, in drills on a GPU and in
    all drills. demanded: the pairs to count. A pair that survived in one drill counts as survived."""
    lines = []
    for where, records in (("a GPU machine", [one for one in drills if one.machine.cuda]), ("any machine", drills)):
        rows = [row for record in records for row in record.rows]
        survived = {(row.claim, row.fault) for row in rows if not row.killed} & demanded
        killed = {(row.claim, row.fault) for row in rows} & demanded - survived
        left = demanded - killed - survived
        counts = (
            f"{len(killed)} killed, {len(survived)} survived{_names(survived)}, {len(left)} not planted{_names(left)}"
        )
        lines.append(f"- in drills on {where}: {counts}")
    return "\n".join([f"Of the {len(demanded)} pairs of a claim and a fault that it names:", "", *lines])


def _names(faults: set[tuple[str, str]]) -> str:
    """Return the names of these claims and faults as text if there are only a few pairs, otherwise an empty text."""
    few = 0 < len(faults) <= MOST_NAMED
    return f" ({', '.join(f'{claim} `{fault}`' for claim, fault in sorted(faults))})" if few else ""


def _run(run: Published) -> list[str]:
    collected = run.header.environment
    machine = collected.gpu.name or collected.cpu.model or "CPU"
    versions = {name: collected.versions.get(name) for name in ("torch", "cuda", "triton")}
    software = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    counts = run.verdicts.counts.line()
    if run.drill is not None:
        counts = f"fire drill: {matrix.count_line(run.drill)}"
    elif run.header.purpose == "fault":
        counts = f"planted fault `{run.header.fault}`: {counts}"
    return [f"[{run.name}]({run.name}/{run.shown})", machine, software, _sources(run.header), counts]


def _sources(header: Header) -> str:
    """Return the commit of the sources as the run's page names it."""
    commit, _, changes = quoted(header.environment.git.commit or "").partition(" ")
    return f"`{commit}` {changes}".rstrip() if commit else "–"


def _open(verdicts: Iterable[tuple[Published, UnitFacts]]) -> list[list[str]]:
    """Return the rows of the table of results other than PASS. Claims of one run with the same result share a row."""
    claims: dict[tuple[str, str, str, str], list[str]] = {}
    for run, verdict in verdicts:
        meaning = reason_text(verdict.reason).meaning or ""
        seen = (run.name, verdict.workload, f"{verdict.status} {verdict.reason}", meaning)
        claims.setdefault(seen, []).append(verdict.claim)
    return [[name, ", ".join(named), *rest] for (name, *rest), named in claims.items()]


def _ratio(run: Published, verdict: UnitFacts) -> list[str]:
    figures = {name: figure.value for name, figure in verdict.figures.items()}
    ratios = [
        value for name, value in figures.items() if name.startswith("ratio.process_") and isinstance(value, float)
    ]
    names = ("baseline_step_ms", "candidate_step_ms")
    return [
        *(run.name, verdict.claim, verdict.workload, str(verdict.status)),
        *(_number(figures.get(name)) for name in ("demanded_ratio", "mean_ratio")),
        *(_number(bound(ratios) if ratios else None) for bound in (min, max)),
        *(_number(figures.get(name)) for name in names),
    ]


def _number(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, int | float) else "–"


if __name__ == "__main__":
    write_text(PAGE, filled(PAGE.read_text(encoding="utf-8"), text(REPORTS)))
