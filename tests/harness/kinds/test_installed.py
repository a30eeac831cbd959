"""Kinds of installed packages: what a package may offer, and which error names it when it is wrong."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import Distribution
from pathlib import Path

import pytest

from harness.drill import faults
from harness.errors import KindError
from harness.judging import reasons
from harness.judging.verdict import Status
from harness.kinds import BUILT_IN, installed, kinds

Install = Callable[[str], None]
ROW = """\
from dataclasses import replace
from harness.kinds import BUILT_IN
KIND = replace(BUILT_IN["capture"], {})
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a package `odd-kinds` with the given source as its module `odd_kinds`."""

    def installed_with(source: str) -> None:
        (tmp_path / "odd_kinds.py").write_text(source)
        folder = tmp_path / "odd_kinds-3.2.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-kinds\nVersion: 3.2\n")
        (folder / "entry_points.txt").write_text("[contract_harness.kinds]\nodd = odd_kinds:KIND\n")
        entries = list(Distribution.at(folder).entry_points)
        monkeypatch.setattr(installed, "entry_points", lambda group: entries if group == installed.GROUP else [])
        monkeypatch.syspath_prepend(tmp_path)

    caches = (kinds, reasons._with_packages, faults.evidence_faults)
    for cache in caches:
        cache.cache_clear()
    yield installed_with
    sys.modules.pop("odd_kinds", None)
    for cache in caches:
        cache.cache_clear()


PLACE = "entry point 'odd = odd_kinds:KIND' of odd-kinds 3.2: "
SOUND = "an entry point of `contract_harness.kinds` must name a `harness.kinds.Kind`; found "


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("import nowhere_at_all", f"{SOUND}ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("raise SystemExit(0)", f"{SOUND}SystemExit: 0"),
        ("OTHER = 1", f"{SOUND}AttributeError: module 'odd_kinds' has no attribute 'KIND'"),
        ("KIND = 'capture'", f"{SOUND}a str"),
        ("from harness.kinds import Kind\nKIND = Kind(name='odd')", f"{SOUND}KindError: claim kind 'odd': the field"),
        (ROW.format(""), "the name of the package's claim kind is already used; found 'capture'"),
        (ROW.format("name='composite'"), "the name of the package's claim kind is already used; found 'composite'"),
    ],
)
def test_a_package_with_a_broken_kind_is_named(install: Install, source: str, problem: str) -> None:
    install(source)
    with pytest.raises(KindError) as caught:
        kinds()
    assert str(caught.value).startswith(f"{PLACE}{problem}")


def test_a_packages_kind_comes_after_the_harness_own(install: Install) -> None:
    install(ROW.format("name='odd'"))
    assert list(kinds()) == [*BUILT_IN, "odd"]


def test_a_reason_code_that_is_taken_is_refused(install: Install) -> None:
    install(ROW.format("name='odd', reasons={'differs': ('FAIL', 'Another meaning.')}"))
    with pytest.raises(
        KindError,
        match="claim kind 'odd': the kind of claim adds a reason code that exists already; found 'differs'",
    ):
        reasons.reason_of("unheard_of")


def test_an_invalid_evidence_fault_of_a_package_is_refused(install: Install) -> None:
    install(ROW.format("name='odd', evidence_faults=('harness.drill.faults:without_steps',)"))
    with pytest.raises(KindError, match=r"claim kind 'odd': an evidence fault must be an `EvidenceFault`"):
        faults.evidence_faults()


def test_a_row_of_the_harness_adds_its_reason_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    row = dataclasses.replace(BUILT_IN["capture"], reasons={"grew": ("FAIL", "It grew.")})
    monkeypatch.setitem(BUILT_IN, "capture", row)
    spec = importlib.util.spec_from_file_location(reasons.__name__, reasons.__file__)
    assert spec is not None
    assert spec.loader is not None
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)
    assert again.REASONS["grew"] == again.Reason("grew", Status.FAIL, "It grew.")
