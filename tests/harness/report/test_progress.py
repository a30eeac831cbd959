"""Progress on stderr: one line at the bottom of a terminal, and a line every few minutes in a log."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence

import pytest
from report_views import verdict

from harness.contract.schema import Arm, Workload
from harness.evidence.base import ProbeName
from harness.evidence.plan_records import PlannedArm, Run
from harness.judging.verdict import Status
from harness.platform.standard_streams import StatusLine
from harness.report.terminal import Progress
from harness.run_directory.verdict_file import Row, Triple


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(name: str, probe: ProbeName = "paired") -> Run:
    workload = Workload(model="tiny", batch_size=4, seq_len=64, steps=1)
    return Run(id=name, contract="c", probe=probe, workload_name="tiny", workload=workload, arms={})


def row(*, killed: bool) -> Row:
    return Row(
        contract="c",
        claim="F-1",
        workload="tiny",
        fault="stale_batch",
        expected=Triple(status="FAIL", reason="differs", figures={}),
        seen=Triple(status="PASS", reason="held", figures={}),
        killed=killed,
        upstream_alone_passes=None,
        message="equal",
        runs=["a"],
    )


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("COLUMNS", "60")
    return Terminal()


def test_nothing_is_printed_to_a_log_while_runs_end_and_units_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each unit has a line among the results, which another pipe may write to the same log."""
    stream = io.StringIO()
    with Progress(stream=stream) as watch:
        watch.begins([run("a"), run("b")])
        watch.moves(run("a"), "capture", 1.25)
        watch.moves(run("a"), "", 9.0)
        watch.judged(verdict("F-1", status=Status.FAIL, message="differs"))
        watch.drilled(row(killed=False))
        assert stream.getvalue() == ""
        monkeypatch.setattr("harness.report.terminal.QUIET_S", 0.0)
        watch.moves(run("b"), "steps", 2.0)
    first = stream.getvalue().splitlines()[0]
    assert re.fullmatch(r"1 of 2 runs · 1 violated, 1 SURVIVED · about \d+ s to go · b · steps, 2 s", first)


def test_a_time_line_tells_what_is_trained_and_when_each_arm_begins() -> None:
    """The processes of a run train different arms at the same time, so phases of the arms alternate."""
    plain = PlannedArm(arm=Arm(capture="none"), system="s:S", replicas=2)
    trial = run("a").model_copy(update={"arms": {"plain": plain, "fast": plain.model_copy(update={"replicas": 1})}})
    stream = io.StringIO()
    with Progress(stream=stream, stages=True) as watch:
        watch.begins([trial])
        for phase in ("start", "plain.0: open", "plain.1: open", "plain.0: steps", "fast.0: open", "plain.1: end", ""):
            watch.moves(trial, phase, 1.0)
    assert [re.sub(r"^  0:0\d  ", "", each) for each in stream.getvalue().splitlines()] == [
        "paired: to train plain 2 times, fast, 1 step each",
        "paired: training plain",
        "paired: training plain again",
        "paired: training fast",
    ]


def test_a_run_that_locates_a_difference_after_the_planned_runs_does_not_count_in_the_progress() -> None:
    watch = Progress(stream=io.StringIO())
    watch.begins([run("tiny-paired")])
    watch.moves(run("tiny-paired"), "", 4.0)
    watch.moves(run("locating F-1"), "fast.0: steps", 1.0)
    assert watch.parts() == ["locating F-1", "fast.0: steps, 1 s"]


def test_remaining_time_is_shown_once_a_similar_run_has_ended() -> None:
    watch = Progress(stream=io.StringIO())
    watch.begins([run("a"), run("b"), run("c")])
    watch.moves(run("a"), "steps", 1e6)
    assert watch.parts()[:2] == ["0 of 3 runs", "a"]
    watch.moves(run("a"), "", 1e6)
    watch.moves(run("b"), "steps", 1e6)
    assert " to go" in watch.parts()[1]


def test_remaining_time_is_shown_immediately_from_recorded_durations() -> None:
    asked: list[list[str]] = []

    def recorded(runs: Sequence[Run]) -> Mapping[str, float]:
        asked.append([each.id for each in runs])
        return {"a": 1e7, "b": 0.0}

    watch = Progress(recorded, io.StringIO())
    watch.begins([run("a"), run("b", "kernels")])
    watch.lookup.join()
    watch.moves(run("a"), "steps", 0.0)
    assert asked == [["a", "b"]]
    assert watch.parts()[1] == "about 2777 h 47 min to go"


def test_a_failing_duration_lookup_only_removes_the_estimate() -> None:
    def fails(_: Sequence[Run]) -> Mapping[str, float]:
        raise OSError("unreadable")

    watch = Progress(fails, io.StringIO())
    watch.begins([run("a"), run("b", "kernels")])
    watch.lookup.join()
    watch.moves(run("a"), "open", 1.0)
    assert watch.parts() == ["0 of 2 runs", "a", "open, 1 s"]


def test_progress_on_a_terminal_is_one_line_that_is_overwritten(terminal: Terminal) -> None:
    with Progress(stream=terminal) as watch:
        watch.begins([run("a"), run("b")])
        watch.moves(run("a"), "open", 0.0)
        watch.moves(run("b"), "open", 0.0)
        watch.judged(verdict("F-1", message="equal"))
        watch.moves(run("a"), "", 1.0)
    assert "\n" not in terminal.getvalue()
    written = terminal.getvalue().split("\r\x1b[2K")
    assert written[1:4] == [
        "0 of 2 runs · a · open, 0 s",
        "0 of 2 runs · b (+1 more) · open, 0 s",
        "0 of 2 runs · 1 held · b (+1 more) · open, 0 s",
    ]
    assert written[4].startswith("1 of 2 runs · 1 held · about ")
    assert written[-1] == ""


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (60, "3 of 12 runs · 12 held · about 5 min to go · tiny-paired"),
        (40, "3 of 12 runs · 12 held"),
        (20, "3 of 12 runs"),
        (9, ""),
    ],
)
def test_a_narrow_terminal_shows_only_whole_parts_in_one_line(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, columns: int, shown: str
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    parts = ["3 of 12 runs", "12 held", "about 5 min to go", "tiny-paired", "a phase of many words, 12 s"]
    StatusLine(terminal).show(parts)
    assert terminal.getvalue() == f"\r\x1b[2K{shown}"


def test_wide_letters_take_two_columns(terminal: Terminal) -> None:
    StatusLine(terminal).show(["漢" * 29, "b"])
    assert terminal.getvalue() == f"\r\x1b[2K{'漢' * 29}"


def test_control_characters_in_the_status_line_are_escaped(terminal: Terminal) -> None:
    StatusLine(terminal).show(["a\x1b[2Jb\nc"])
    assert terminal.getvalue() == "\r\x1b[2Ka\\x1b[2Jb\\nc"


@pytest.mark.parametrize(("variable", "value"), [("TERM", "dumb"), ("TERM", ""), ("CI", "true")])
def test_the_status_line_is_off_on_terminals_that_cannot_overwrite_and_in_ci(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    assert StatusLine(terminal).live
    monkeypatch.setenv(variable, value)
    status = StatusLine(terminal)
    status.show(["seen"])
    status.clear()
    assert (status.live, terminal.getvalue()) == (False, "")


def test_a_log_file_gets_no_status_line() -> None:
    assert not StatusLine(io.StringIO()).live
