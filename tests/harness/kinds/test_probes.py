"""The table of probes: a row says everything, its names are there, and a package may bring a probe."""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError
from toy_packages import Harness, harness_with

from harness.errors import KindError
from harness.evidence.base import ProbeName
from harness.kinds import Probe, installed, kinds, probe_named, resolve
from harness.kinds.installed import probes
from harness.kinds.probes import BUILT_IN

FIELDS = [field.name for field in fields(Probe)]
PACKAGE = """\
from dataclasses import replace
from harness.kinds import Probe
from harness.kinds.probes import BUILT_IN
from toy_kind.kind import KIND as BELOW

PROBE = replace(BUILT_IN["seeds"], name="watched", execute="toy_probe:execute")
KIND = replace(BELOW, judge="toy_probe:judge", probes={"watched": ("candidate",)})


def execute(run, recorder):
    from harness.execution.probes import paired

    assert run.settings == {"candidate": "fast"}
    paired.execute(run, recorder)


def judge(part, context, sheet):
    from toy_kind.judge import judge

    context.only_run("watched")
    return judge(part, replace(context, runs=[replace(run, probe="paired") for run in context.runs]), sheet)
"""
KIND_GROUP = "[contract_harness.kinds]\nloss_below = toy_probe:KIND\n"
PROBE_GROUP = "[contract_harness.probes]\nwatched = toy_probe:PROBE\n"


def values(row: Probe) -> dict[str, Any]:
    return {field: getattr(row, field) for field in FIELDS}


@pytest.mark.parametrize("field", FIELDS)
def test_a_row_without_a_field_is_refused(field: str) -> None:
    row = BUILT_IN["seeds"]
    given = values(row)
    del given[field]
    with pytest.raises(KindError) as caught:
        Probe(**given)
    name = "?" if field == "name" else row.name
    assert str(caught.value).startswith(f"probe '{name}': the field `{field}` must be given; found nothing")


@pytest.mark.parametrize("field", FIELDS)
def test_a_malformed_field_is_refused(field: str) -> None:
    with pytest.raises(KindError, match=f"the field `{field}` "):
        Probe(**values(BUILT_IN["seeds"]) | {field: "No Name"})


def test_an_incomplete_table_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = inspect.getsource(importlib.import_module("harness.kinds.probes"))
    said = 'steps=None, trainings="none", '
    assert said in source
    (tmp_path / "table_without_trainings.py").write_text(source.replace(said, "steps=None, "))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KindError, match=r"probe 'steady': the field `trainings` must be given"):
        importlib.import_module("table_without_trainings")


@pytest.mark.parametrize("row", BUILT_IN.values(), ids=BUILT_IN)
def test_every_reference_in_the_probe_table_can_be_imported(row: Probe) -> None:
    if row.name != "throughput":  # its module looks for a device
        assert list(inspect.signature(resolve(row.execute)).parameters) == ["run", "recorder"]
    for reference in (row.steps, row.gpu_memory):
        assert reference is None or len(inspect.signature(resolve(reference)).parameters) == 1
    assert row.apart is None or len(inspect.signature(resolve(row.apart)).parameters) == 3


def test_a_run_of_an_unknown_probe_is_refused() -> None:
    assert [TypeAdapter(ProbeName).validate_python(name) for name in BUILT_IN] == list(BUILT_IN)
    with pytest.raises(ValidationError, match="no probe has this name; use one of paired, throughput"):
        TypeAdapter(ProbeName).validate_python("clairvoyance")


Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a package with the given source as its module `toy_probe`, and the given entry points."""

    def install_with(source: str, entry_points: str) -> None:
        (tmp_path / "toy_probe.py").write_text(source)
        write_metadata(tmp_path, entry_points)
        entries = Distribution.at(tmp_path / "toy_probe-1.0.dist-info").entry_points
        monkeypatch.setattr(installed, "entry_points", lambda group: entries.select(group=group))
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.syspath_prepend(Path(__file__).parents[2] / "plugin_kind")

    for cache in (kinds, probes):
        cache.cache_clear()
    yield install_with
    sys.modules.pop("toy_probe", None)
    for cache in (kinds, probes):
        cache.cache_clear()


def write_metadata(folder: Path, entry_points: str) -> None:
    metadata = folder / "toy_probe-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-probe\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(entry_points)


def test_a_packages_probe_comes_after_the_harness_own(install: Install) -> None:
    install(PACKAGE, KIND_GROUP + PROBE_GROUP)
    assert list(probes()) == [*BUILT_IN, "watched"]
    assert kinds()["loss_below"].probes == {"watched": ("candidate",)}
    assert probe_named("watched").watches_steps


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (
            "PROBE = 1",
            (
                "of toy-probe 1.0: an entry point of `contract_harness.probes` must name a `harness.kinds.Probe`; "
                "found a int"
            ),
        ),
        (PACKAGE.replace('name="watched", ', ""), "the name of the package's probe is already used; found 'seeds'"),
        (PACKAGE.replace("PROBE = replace(", "PROBE = Probe(name='watched')\nreplace("), "probe 'watched': the field"),
    ],
)
def test_a_package_with_a_broken_probe_is_named(install: Install, source: str, problem: str) -> None:
    install(source, PROBE_GROUP)
    with pytest.raises(KindError, match=problem):
        probes()


@pytest.mark.parametrize(
    ("source", "entry_points"),
    [
        (PACKAGE, KIND_GROUP),
        (PACKAGE.replace('BUILT_IN["seeds"]', 'BUILT_IN["paired"]'), KIND_GROUP + PROBE_GROUP),
    ],
    ids=["a probe that is not there", "settings for one that goes arm by arm"],
)
def test_a_kind_that_names_an_unknown_probe_is_refused(install: Install, source: str, entry_points: str) -> None:
    install(
        source.replace("probe_named(", "__import__('harness.kinds.probes').kinds.probes.BUILT_IN.get("), entry_points
    )
    with pytest.raises(KindError, match="claim kind 'loss_below': the field `probes` must name existing probes"):
        kinds()


def test_every_command_knows_a_packages_probe(tmp_path: Path) -> None:
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "toy_probe.py").write_text(PACKAGE)
    write_metadata(tmp_path / "packages", KIND_GROUP + PROBE_GROUP)
    harness: Harness = harness_with(tmp_path)
    ended = harness("verify", "contracts", "--reports", str(tmp_path), "--name", "run")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert json.loads((tmp_path / "run" / "run.json").read_text())["runs"] == {"toy-v1+five+watched+fast+0": "watched"}
    [verdict] = json.loads((tmp_path / "run" / "verdicts.json").read_text())["claims"]
    assert (verdict["status"], verdict["denominators"]) == ("PASS", {"steps": 5})
    assert 'id="trajectories-1"' in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert harness("judge", "--check", str(tmp_path / "run")).returncode == 0
