"""Progress on stderr: how many runs have ended, time to go once there is a basis, verdicts, one line on a terminal."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from report_views import verdict

from harness.contract.schema import Workload
from harness.evidence.base import ProbeName
from harness.evidence.plan_records import Run
from harness.judging.verdict import Status
from harness.platform.standard_streams import StatusLine
from harness.report.progress import Progress
from harness.run_directory.drill_record import Row, Triple


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


def test_a_log_has_a_line_for_each_phase_and_counts_the_runs_that_ended() -> None:
    stream = io.StringIO()
    with Progress(stream=stream) as watch:
        watch.begins([run("tiny-paired"), run("tiny-kernels", "kernels")])
        watch.moves(run("tiny-paired"), "capture", 1.25)
        watch.moves(run("tiny-kernels", "kernels"), "compile", 2.0)
        watch.moves(run("tiny-paired"), "", 9.0)
        watch.judged(verdict("F-1", status=Status.FAIL, message="differs"))
        watch.moves(run("tiny-kernels", "kernels"), "", 9.0)
    assert stream.getvalue().splitlines() == [
        "[0/2] tiny-paired  1.2 s  capture",
        "[0/2] tiny-kernels  2.0 s  compile",
        "[1/2] tiny-paired  9.0 s  ended",
        " violated  F-1 on tiny: differs",
        "[2/2] tiny-kernels  9.0 s  ended",
    ]


def test_what_is_executed_after_the_session_has_no_place_in_its_counts(terminal: Terminal) -> None:
    stream = io.StringIO()
    with Progress(stream=stream) as watch:
        watch.begins([run("tiny-paired")])
        watch.moves(run("tiny-paired"), "", 4.0)
        watch.moves(run("locating F-1"), "fast.0: steps", 1.0)
        watch.moves(run("locating F-1"), "", 2.0)
    _, phase, ended = stream.getvalue().splitlines()
    assert (phase, ended) == ("locating F-1  1.0 s  fast.0: steps", "locating F-1  2.0 s  ended")
    with Progress(stream=terminal) as watch:
        watch.moves(run("locating F-1"), "fast.0: steps", 1.0)
    assert "locating F-1 · fast.0: steps" in terminal.getvalue()
    assert "[0/0]" not in terminal.getvalue()


def test_one_message_of_many_units_is_told_once() -> None:
    stream = io.StringIO()
    with Progress(stream=stream) as watch:
        for claim in ("F-1", "F-2"):
            watch.judged(verdict(claim, status=Status.ERROR, message="the worker died"))
        watch.judged(verdict("F-3", status=Status.ERROR, message="another died"))
    assert stream.getvalue().splitlines() == [
        "    error  F-1 on tiny: the worker died",
        "    error  F-2 on tiny: as F-1 on tiny",
        "    error  F-3 on tiny: another died",
    ]


def test_where_results_are_printed_in_the_same_place_units_are_only_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each unit has one line there: that of the results, when the session ends."""
    with (tmp_path / "log").open("w") as log, (tmp_path / "out").open("w") as out:
        for stdout in (log, out):
            monkeypatch.setattr("sys.stdout", stdout)
            with Progress(stream=log) as watch:
                watch.begins([run("a")])
                watch.judged(verdict("F-1"))
                watch.judged(verdict("F-2", status=Status.FAIL, message="differs"))
                watch.moves(run("a"), "", 1.0)
    said = (tmp_path / "log").read_text().splitlines()
    assert said == [
        "[1/1] a  1.0 s  ended; 1 held, 1 violated",
        *["     held  F-1 on tiny: 100 steps are equal in every bit.", " violated  F-2 on tiny: differs"],
        "[1/1] a  1.0 s  ended",
    ]


def test_verdicts_are_not_told_where_the_answer_follows_at_once() -> None:
    stream = io.StringIO()
    with Progress(stream=stream, verdicts=False) as watch:
        watch.judged(verdict("F-1", status=Status.FAIL, message="differs"))
    assert stream.getvalue() == ""


def test_time_to_go_is_told_once_a_run_like_those_left_has_ended() -> None:
    stream = io.StringIO()
    with Progress(stream=stream) as watch:
        watch.begins([run("a"), run("b"), run("c")])
        watch.moves(run("a"), "steps", 1e6)
        for name in "abc":
            watch.moves(run(name), "", 1e6)
    phase, *ends = stream.getvalue().splitlines()
    assert "to go" not in phase
    assert [" to go" in end for end in ends] == [True, True, False]


def test_time_to_go_is_told_at_once_from_what_was_recorded() -> None:
    asked: list[list[str]] = []

    def recorded(runs: Sequence[Run]) -> Mapping[str, float]:
        asked.append([each.id for each in runs])
        return {"b": 1e7}

    stream = io.StringIO()
    watch = Progress(recorded, stream)
    watch.begins([run("a"), run("b", "kernels")])
    watch.lookup.join()
    watch.moves(run("a"), "", 0.0)
    assert asked == [["a", "b"]]
    assert stream.getvalue() == "[1/2] a  0.0 s  ended; about 2777 h 47 min to go\n"


def test_a_look_up_that_fails_costs_the_estimate_alone() -> None:
    def fails(_: Sequence[Run]) -> Mapping[str, float]:
        raise OSError("unreadable")

    stream = io.StringIO()
    watch = Progress(fails, stream)
    watch.begins([run("a"), run("b", "kernels")])
    watch.lookup.join()
    watch.moves(run("a"), "", 1.0)
    assert stream.getvalue() == "[1/2] a  1.0 s  ended\n"


def test_a_fault_that_survived_says_what_was_expected() -> None:
    stream = io.StringIO()
    watch = Progress(stream=stream)
    watch.drilled(row(killed=True))
    watch.drilled(row(killed=False))
    assert stream.getvalue().splitlines() == [
        "   killed  stale_batch in F-1 on tiny",
        " SURVIVED  stale_batch in F-1 on tiny: FAIL differs was expected, and PASS held was seen",
    ]


def test_a_terminal_keeps_what_ended_and_writes_the_rest_over(terminal: Terminal) -> None:
    with Progress(stream=terminal) as watch:
        watch.begins([run("a"), run("b")])
        watch.moves(run("a"), "open", 0.0)
        watch.moves(run("b"), "open", 0.0)
        watch.moves(run("a"), "", 1.0)
        watch.judged(verdict("F-1", message="equal"))
    plain = re.sub(r"\x1b\[[\d;]*m", "", terminal.getvalue())
    written = plain.split("\r\x1b[2K")
    assert written[:5] == ["", "[0/2] a · open, 0 s", "[0/2] b (+1 more) · open, 0 s", *written[3:5]]
    assert written[3].startswith("[1/2] a  1.0 s  ended; about ")
    assert written[-2] == "     held  F-1 on tiny: equal\n"
    assert written[-1] == ""


def test_the_line_at_the_bottom_is_cut_where_the_terminal_ends(terminal: Terminal) -> None:
    StatusLine(terminal).show("漢" * 40)
    assert terminal.getvalue() == f"\r\x1b[2K{'漢' * 29}"


def test_what_a_stranger_wrote_is_escaped_at_the_bottom_too(terminal: Terminal) -> None:
    StatusLine(terminal).show("a\x1b[2Jb\nc")
    assert terminal.getvalue() == "\r\x1b[2Ka\\x1b[2Jb\\nc"


@pytest.mark.parametrize(("variable", "value"), [("TERM", "dumb"), ("TERM", ""), ("CI", "true")])
def test_no_line_is_written_over_where_that_cannot_be_or_is_kept_as_a_log(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    assert StatusLine(terminal).live
    monkeypatch.setenv(variable, value)
    status = StatusLine(terminal)
    status.show("seen")
    status.clear()
    assert (status.live, terminal.getvalue()) == (False, "")


def test_a_log_is_no_terminal() -> None:
    assert not StatusLine(io.StringIO()).live
