"""Record types of installed packages: read, renamed and refused as the harness's own are."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import pytest
from recorded import RUN, end, read, start
from toy_packages import harness_with

from harness.errors import KindError
from harness.evidence import run_evidence
from harness.evidence.base import RunRecord
from harness.evidence.run_evidence import BUILT_IN, of_packages
from harness.evidence.run_records import Complete, PartFailed
from harness.evidence.serving import seen_by
from harness.execution.recorder import Recorder, StepRows
from harness.judging.context import executed
from harness.judging.sheet import Settled
from harness.kinds import installed

Install = Callable[[str], Any]
SOURCE = """\
from typing import ClassVar, Literal
from harness.evidence.base import ArmRecord
class Drift(ArmRecord):
    record: Literal["drift"] = "drift"
    key: ClassVar = ("arm", "replica", "step")
    step: int
    size: float
"""
KIND_AND_PROBE = """\
from dataclasses import replace
from harness.kinds import Probe
from harness.kinds.probes import BUILT_IN
from toy_kind.kind import KIND as BELOW
PROBE = replace(BUILT_IN["seeds"], name="drifting", execute="odd_records:execute")
KIND = replace(BELOW, judge="odd_records:judge", probes={"drifting": ("candidate",)})

def execute(run, recorder):
    from harness.execution.probes import paired
    paired.execute(run, recorder)
    for step in range(run.workload.steps):
        recorder.write(Drift(arm="fast", replica=0, step=step, size=step / 4))

def judge(part, context, sheet):
    from harness.judging.context import executed
    drifts = executed(context.only_run("drifting"), part.candidate).records(Drift)
    sheet.count("steps", len(drifts))
    sheet.figure("last_loss", drifts[-1].size)
    return sheet.held("it drifts")
"""
UNSOUND = (
    "must name a subclass of `ArmRecord` or `RunRecord`, with one word as its `record` and some of its fields as its "
    "`key`; found a "
)


@pytest.fixture
def install(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a package `odd-records` with the given source as its module `odd_records`; returns its `Drift`."""

    def clear() -> None:
        sys.modules.pop("odd_records", None)
        of_packages.cache_clear()

    def installed_with(source: str) -> Any:
        folder = tmp_path_factory.mktemp("packages")
        (folder / "odd_records.py").write_text(source)
        entries = list(Distribution.at(metadata_in(folder, "records:Drift")).entry_points)
        monkeypatch.setattr(installed, "entry_points", lambda group: entries if group == run_evidence.GROUP else [])
        monkeypatch.syspath_prepend(folder)
        importlib.invalidate_caches()
        return importlib.import_module("odd_records").Drift

    clear()
    yield installed_with
    clear()


def metadata_in(folder: Path, *offered: str) -> Path:
    """Write what an installer leaves of a package that offers `group:attribute` of its module."""
    metadata = folder / "odd_records-3.2.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-records\nVersion: 3.2\n")
    names = {"kinds": "loss_below", "probes": "drifting", "records": "drift"}
    lines = [(group, attribute) for group, _, attribute in (each.partition(":") for each in offered)]
    groups = [f"[contract_harness.{group}]\n{names[group]} = odd_records:{attribute}\n" for group, attribute in lines]
    (metadata / "entry_points.txt").write_text("".join(groups))
    return metadata


def write(directory: Path, *lines: RunRecord) -> None:
    with Recorder(directory) as recorder:
        for record in (start(), *lines, end()):
            recorder.write(record)
        recorder.series("plain", 0).rows(StepRows([0], [1.0], ["a"], [0], [1]))
        recorder.write(Complete(seconds=1.0))


def test_records_of_a_package_are_read_with_the_execution_that_wrote_them(install: Install, directory: Path) -> None:
    drift = install(SOURCE)
    several = [drift(arm="plain", replica=0, step=step, size=0.5) for step in (0, 1)]
    write(directory, *several)
    evidence = read(directory)
    assert evidence.death is None
    assert evidence.arms["plain"][0].records(drift) == several


def test_a_record_of_a_package_that_was_written_twice_counts_as_damaged_evidence(
    install: Install, directory: Path
) -> None:
    drift = install(SOURCE)
    write(directory, *[drift(arm="plain", replica=0, step=1, size=size) for size in (0.5, 9.0)])
    death = read(directory).death
    assert death is not None
    assert death.detail == "records.jsonl: `drift` of arm plain, replica 0, step 1 was recorded twice"


def test_a_contract_reads_shared_package_records_under_its_own_arm_name(install: Install, directory: Path) -> None:
    drift = install(SOURCE)
    write(directory, drift(arm="plain", replica=0, step=0, size=0.5))
    guest = RUN.model_copy(update={"arms": {"mine": RUN.arms["plain"]}})
    (execution,) = seen_by(guest, read(directory), {"mine": "plain"}).arms["mine"]
    assert [one.arm for one in execution.records(drift)] == ["mine"]


def test_reading_records_of_a_failed_part_ends_the_judgement_with_an_error(install: Install, directory: Path) -> None:
    drift = install(SOURCE)
    failed = PartFailed(arm="plain", replica=0, part="drift", detail="ValueError: no", phase=None, stack="")
    write(directory, failed)
    execution = executed(read(directory), "plain")
    assert execution.syncs is None
    with pytest.raises(Settled) as settled:
        execution.records(drift)
    assert settled.value.reason == "worker_exception"


def test_records_of_a_package_that_is_not_installed_count_as_damaged_evidence(directory: Path) -> None:
    write(directory)
    lines = (directory / "records.jsonl").read_text().splitlines(keepends=True)
    drift = '{"record":"drift","arm":"plain","replica":0,"step":0,"size":0.5}\n'
    (directory / "records.jsonl").write_text("".join([*lines[:-1], drift, lines[-1]]))
    death = read(directory).death
    assert death is not None
    assert death.detail.startswith("records.jsonl:3: Input tag 'drift' found using 'record' does not match")


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("Drift = 1", UNSOUND),
        ("class Drift: pass", UNSOUND),
        (SOURCE.replace("ArmRecord", "Record"), UNSOUND),
        (SOURCE.replace('Literal["drift"]', "str"), UNSOUND),
        (SOURCE.replace('"step")', '"phase")'), UNSOUND),
        (SOURCE.replace('("arm", "replica", "step")', '("step",)'), UNSOUND),
        (SOURCE.replace('"drift"', '"capture"'), "must be unique; found 'capture' again"),
        (SOURCE.replace('"drift"', '"syncs"'), "must be unique; found 'syncs' again"),
    ],
)
def test_a_package_with_a_broken_type_is_named(install: Install, source: str, problem: str) -> None:
    install(source)
    with pytest.raises(KindError) as refused:
        of_packages()
    assert str(refused.value).startswith("entry point 'drift = odd_records:Drift' of odd-records 3.2: ")
    assert problem in str(refused.value)


def test_without_packages_there_are_no_package_records() -> None:
    assert of_packages() == ()
    assert len({run_evidence.tag(kind) for kind in BUILT_IN}) == len(BUILT_IN)


def test_a_probe_of_a_package_writes_records_that_its_judge_reads(tmp_path: Path) -> None:
    metadata_in(tmp_path / "packages", "kinds:KIND", "probes:PROBE", "records:Drift")
    (tmp_path / "packages" / "odd_records.py").write_text(SOURCE + KIND_AND_PROBE)
    harness = harness_with(tmp_path)
    ended = harness("verify", "contracts", "--reports", str(tmp_path), "--name", "run")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    [verdict] = json.loads((tmp_path / "run" / "verdicts.json").read_text())["claims"]
    assert (verdict["status"], verdict["denominators"]) == ("PASS", {"steps": 5})
    assert verdict["figures"]["last_loss"]["value"] == 1.0
    assert harness("judge", "--check", str(tmp_path / "run")).returncode == 0
