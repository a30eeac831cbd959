"""Write the kill matrix as lines of text: survivors first, then what was killed, then what was not run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from harness.numbers import counted, dump_json
from harness.report.headline import Headline, of_drill
from harness.run_directory.drill_record import DrillRecord, Row, Triple


def count_line(record: DrillRecord) -> str:
    """Return `28 faults planted · 28 killed · 0 survived · 4 of 4 controls held · 71 not run`."""
    survived, failed = len(record.survivors), len(record.failed_controls)
    held = f"{len(record.controls) - failed} of {counted(len(record.controls), 'control')} held"
    return (
        f"{counted(len(record.rows), 'fault')} planted · {len(record.rows) - survived} killed · {survived} survived · "
        f"{held} · {len(record.not_run)} not run"
    )


def headline_of(record: DrillRecord) -> Headline:
    """Return the headline of a drill, as its page has it: word, sentence and exit code."""
    return of_drill(record, [control.status for control in record.controls])


def shown(record: DrillRecord, directory: Path | None) -> list[str]:
    """Return the lines for the terminal: the count line first, the headline below the rest, then the report's path."""
    page = [f"report: {directory / 'report.html'}"] if directory is not None else []
    return [*lines(record), str(headline_of(record)), *page]


def as_json(record: DrillRecord, directory: Path | None) -> str:
    """Return what `--json` prints: the content of `drill.json`, with the drill's directory."""
    return dump_json(
        {**record.model_dump(mode="json"), "run_directory": str(directory) if directory else None}, indent=2
    )


def lines(record: DrillRecord) -> list[str]:
    """Return everything that a person wants to know of a drill, as lines without colours."""
    shown = [count_line(record)]
    for control in record.failed_controls:
        unit = f"{control.claim} on {control.workload}"
        shown.append(f"  CONTROL  {unit}: {control.status} {control.reason}: {control.message}")
    for row in sorted(record.rows, key=lambda row: row.killed):
        shown += _row(row)
    for (reason, message), number in Counter((item.reason, item.message) for item in record.not_run).items():
        shown.append(f"  not run  {counted(number, 'fault')}: {reason}: {message}")
    shown += _upstream(record)
    return shown


def _row(row: Row) -> list[str]:
    word = "killed  " if row.killed else "SURVIVED"
    shown = [f"  {word} {row.claim} on {row.workload}: {row.fault}: {triple(row.seen)}"]
    if not row.killed:
        shown += [f"             expected: {triple(row.expected)}", f"             seen: {row.message}"]
    return shown


def _upstream(record: DrillRecord) -> list[str]:
    """Return a line for each claim whose upstream number alone would have let faults pass."""
    passed: dict[str, list[str]] = {}
    for row in record.rows:
        if row.upstream_alone_passes:
            passed.setdefault(row.claim, []).append(row.fault)
    return [f"  upstream's number alone would pass, in {claim}: {', '.join(names)}" for claim, names in passed.items()]


def triple(value: Triple) -> str:
    """Return status, reason and figures in one line: `FAIL differs first_differing_step=1`."""
    figures = [f"{name}={figure}" for name, figure in value.figures.items()]
    return " ".join([value.status, value.reason, *figures])
