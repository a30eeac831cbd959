"""Systems are described in a process of their own: what each way to misbehave costs, and how it reads."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from installed_packages import record_installed
from limits_passed import clock_ahead
from process_table import await_end
from strange_systems import HANGS, STRANGE
from waiting import LIMIT_S

from harness.contract.load import load_contracts
from harness.errors import SystemResolutionError
from harness.system import described, describing
from harness.system.described import NotADescription, describe, describe_all, from_plain, known_name, to_plain
from harness.system.protocol import Expectation, FaultDescription, SystemDescription
from harness.system.resolve import resolve

CONTRACTS = Path(__file__).parents[3] / "contracts"
SHIPPED = sorted({system for loaded in load_contracts([CONTRACTS]) for system in loaded.contract.systems()})


@pytest.fixture
def strange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The strange systems as modules in a folder on the path; their names begin with `stranger_`."""
    for name, one in STRANGE.items():
        one.write(tmp_path / f"stranger_{name}.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    imported = {name for name in set(sys.modules) - before if name.startswith("stranger_")}
    assert not imported, "a stranger's code ran in this process"


def system(name: str) -> str:
    return f"stranger_{name}:System"


def found_in(name: str, folder: Path) -> str:
    """What the error of a strange system must say."""
    return (STRANGE[name].found or "").format(path=folder / f"stranger_{name}.py")


QUICK = [name for name, one in STRANGE.items() if not one.hangs]


def test_a_misbehaving_system_fails_only_its_own_description(strange: Path) -> None:
    answers = describe_all([system(name) for name in QUICK])
    wrong = {}
    for name in QUICK:
        answer, expected = answers[system(name)], found_in(name, strange)
        if expected and not (isinstance(answer, SystemResolutionError) and expected in str(answer)):
            wrong[name] = str(answer)
        if not expected and not isinstance(answer, SystemDescription):
            wrong[name] = str(answer)
        if isinstance(answer, SystemResolutionError) and not str(answer).startswith(f"{system(name)}: "):
            wrong[name] = f"says not of whom: {answer}"
    assert wrong == {}


def test_the_error_about_a_class_without_source_names_no_place() -> None:
    made = type("Made", (), {"name": 1})()
    assert describing._declared(made, "name: must be text") == ""


def limited_once_it_hangs(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """The second that a system has begins when a system stands where it hangs, however long it takes to get there."""
    monkeypatch.setattr(described, "time", clock_ahead(lambda: any(folder.glob("*.hangs")), 1.0))
    monkeypatch.setattr(described, "STACK_S", LIMIT_S)


@pytest.mark.parametrize("name", [name for name, one in STRANGE.items() if one.hangs])
def test_describing_a_system_that_hangs_ends_at_the_time_limit(
    strange: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    limited_once_it_hangs(monkeypatch, strange)
    if name == "deaf":  # it never gives the stack that the others give once they have a turn
        monkeypatch.setattr(described, "STACK_S", 0.1)
    with pytest.raises(SystemResolutionError) as caught:
        answer = describe_all([system(name)], limit_s=1.0)[system(name)]
        assert isinstance(answer, SystemResolutionError)
        raise answer
    assert "; found no answer after 1 s" in str(caught.value)
    assert found_in(name, strange) in str(caught.value)


@pytest.mark.parametrize(("does", "limit_s"), [("raise OSError('gone')", 60.0), (f"{HANGS}time.sleep(600)", 1.0)])
def test_a_failing_or_hanging_library_is_reported_at_the_line_of_the_system(
    strange: Path, monkeypatch: pytest.MonkeyPatch, does: str, limit_s: float
) -> None:
    if limit_s == 1.0:
        limited_once_it_hangs(monkeypatch, strange)
    name = f"installed_and_{does.partition(' ')[0]}s"
    record_installed(strange, {f"{name}.py": f"def load():\n    {does}\n"})
    (strange / f"stranger_{name}.py").write_text(f"import {name}\n\n{name}.load()\n")
    answer = describe_all([system(name)], limit_s=limit_s)[system(name)]
    assert f"stranger_{name}.py:3)" in str(answer)


def test_a_daemon_left_by_an_import_is_ended(strange: Path) -> None:
    assert describe(system("leaves_a_daemon")).name == "strange"
    await_end(int((strange / "stranger_leaves_a_daemon.py.daemon").read_text()))


def test_a_failure_caused_by_an_earlier_system_does_not_fail_the_next_description(strange: Path) -> None:
    """A thread of the first system ends the process while the second system is described.

    The second system is then described in another process.
    """
    (strange / "stranger_time_bomb.py").write_text(
        "import os, sys, threading, time\n"
        "def wait():\n"
        "    while 'stranger_slow' not in sys.modules: time.sleep(0.001)\n"
        "    os._exit(1)\n"
        "threading.Thread(target=wait).start()\n" + (strange / "stranger_prints.py").read_text()
    )
    (strange / "stranger_slow.py").write_text(
        "import sys, time\nif 'stranger_time_bomb' in sys.modules: time.sleep(600)\n"
        + (strange / "stranger_prints.py").read_text()
    )
    answers = describe_all([system("time_bomb"), system("slow")])
    assert [type(answer) for answer in answers.values()] == [SystemDescription, SystemDescription]


def test_a_system_is_described_only_once(strange: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = describe(system("prints"))
    with pytest.raises(SystemResolutionError):
        describe(system("raises"))
    monkeypatch.setattr(described, "_Describer", None)  # would be needed to ask again
    assert describe(system("prints")) is first
    with pytest.raises(SystemResolutionError, match="ZeroDivisionError"):
        describe(system("raises"))


@pytest.mark.parametrize("name", SHIPPED)
def test_a_system_description_arrives_unchanged(name: str) -> None:
    given = resolve(name).describe()
    assert describe(name) == given
    assert from_plain(to_plain(given)) == given


def test_every_field_of_a_system_description_is_transferred_unchanged() -> None:
    fault = FaultDescription(
        "a", "b", "both", {"C-1": Expectation("ERROR", "r", {"n": 1, "x": 0.1, "y": True})}, "cuda"
    )
    given = SystemDescription(
        name="é",
        summary="s",
        models=("tiny", "large"),
        arm_options={"rate": float, "on": bool, "rank": int, "mode": str, "choice": (1, 1.0, True, "1")},
        workload_options={},
        capabilities=frozenset({"inputs"}),
        captures=frozenset({"none", "step"}),
        faults={"a": fault},
    )
    arrived = from_plain(to_plain(given))
    assert arrived == given
    assert [type(value) for value in arrived.arm_options["choice"]] == [int, float, bool, str]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "change", [{"more": 1}, {"models": [1]}, {"faults": {"a": {}}}, {"arm_options": {"a": {}}}, {"name": None}]
)
def test_an_answer_that_is_not_a_system_description_is_refused(change: dict[str, object]) -> None:
    plain = to_plain(SystemDescription("a", "b", (), {}, {}, frozenset()))
    with pytest.raises(NotADescription):
        from_plain({**plain, **change})


def test_a_described_system_name_is_reused_under_any_import_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pytest changes `sys.path` between a plan and its run directory, and user code must not run a second time."""
    shipped = SHIPPED[0]
    name = describe(shipped).name
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(described, "_ask", None)
    assert known_name(shipped) == name
    assert known_name("nobody:Asked") is None
