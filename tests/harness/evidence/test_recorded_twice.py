"""What a worker recorded twice is damage, for every record type: the second would hide the first, or count twice."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from harness.evidence.read_run import read_run
from harness.evidence.run_evidence import BUILT_IN, tag

REPORTS = Path(__file__).parents[3] / "reports"
# between them they hold all record types but these
RUNS = (
    "drills/2026-11-30-cpu-traced-step",
    *(
        f"gates/2026-12-01-h200-gate-{part}"
        for part in ("accumulation", "accuracy", "backward", "fp8", "kernels", "memory", "not-worse", "training-step")
    ),
)
RARE = {"arm_failed", "observed_step", "part_failed", "rank_steps", "telemetry"}
JOURNAL = {"phase", "unavailable", "raised", "complete"}
TAGS = sorted({tag(kind) for kind in BUILT_IN} - RARE - JOURNAL)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Returns, by record type, the evidence of a published run that has a record of it."""
    folder = tmp_path_factory.mktemp("recorded")
    for run in RUNS:
        with tarfile.open(REPORTS / run / "run.tar.xz") as archive:
            members = [each for each in archive if Path(each.name).name in ("run.json", "records.jsonl")]
            archive.extractall(folder / run, members, filter="data")
    found: dict[str, Path] = {}
    for path in sorted(folder.rglob("records.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            found.setdefault(json.loads(line)["record"], path)
    return found


@pytest.mark.parametrize("record", TAGS)
def test_a_record_written_twice_is_damaged_evidence(recorded: dict[str, Path], tmp_path: Path, record: str) -> None:
    lines = recorded[record].read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "run.json").write_bytes(recorded[record].with_name("run.json").read_bytes())
    (tmp_path / "records.jsonl").write_text("".join(lines), encoding="utf-8")
    assert read_run(tmp_path)[1].death is None
    again = next(line for line in lines if json.loads(line)["record"] == record)
    (tmp_path / "records.jsonl").write_text("".join([*lines[:-1], again, lines[-1]]), encoding="utf-8")
    death = read_run(tmp_path)[1].death
    assert death is not None
    assert death.cause == "garbage"
    assert death.detail.startswith(f"records.jsonl: `{record}` of ")
    assert death.detail.endswith(" was recorded twice")
