"""The fuzzer finds what it should, and what it has found stays mended."""

from __future__ import annotations

import time
from pathlib import Path

import fuzz_readers
import pytest
from fuzz_readers import CASES, Broken, attempt, fuzz, warm
from fuzz_targets import Target, targets
from hypothesis import strategies as st

TARGETS = targets()
# Found by fuzzing, or by reading what fuzzing made suspicious; those of many bytes are made here, others are files.
MADE = {
    "an unclosed comment again and again": ("ptx", b"/*" * 200_000),
    "line ends before a target": ("ptx", b"\n" * 200_000 + b"x"),
    "thousands of unknown keys": (
        "contracts",
        b"schema: contract/v1\n" + b"".join(b"k%d: 1\n" % n for n in range(9_000)),
    ),
    "thousands of names to compare": ("contracts", b"[" + b"{a: 1}," * 12_000 + b"]"),
    "a number of a million digits": ("contracts", b"schema: contract/v1\nid: " + b"9" * 900_000),
    "waivers with thousands of unknown keys": (
        "waivers",
        b"schema: waivers/v1\nwaivers:\n- {" + b", ".join(b"owne%d: 1" % number for number in range(9_000)) + b"}\n",
    ),
}
KEPT = sorted(path for path in CASES.glob("*/*") if path.is_file())


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_was_found_stays_mended(path: Path) -> None:
    warm(TARGETS[path.parent.name])
    attempt(TARGETS[path.parent.name], path.read_bytes())


@pytest.mark.parametrize("name", MADE)
def test_what_would_take_for_ever_is_answered_in_time(name: str) -> None:
    target, case = MADE[name]
    attempt(TARGETS[target], case)


@pytest.mark.parametrize("name", TARGETS)
def test_each_target_tries_inputs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz_readers, "CASES", tmp_path)
    warm(TARGETS[name])
    tried, _, broken = fuzz(name, TARGETS[name], 20, time.monotonic() + 60, number=1)
    assert (tried, broken) == (20, None)


def _raises(case: bytes) -> None:
    raise KeyError(case)


def _exits(case: bytes) -> None:
    raise SystemExit(0)


def _takes_long(case: bytes) -> None:
    until = time.process_time() + 0.3
    while time.process_time() < until:
        pass


def _never_ends(case: bytes) -> None:
    while True:
        try:
            time.process_time()
        except Exception:  # noqa: S112 - a reader that takes every error for its own
            continue


def _takes_memory(case: bytes) -> int:
    return len(bytearray(400 * 2**20))


@pytest.mark.parametrize(
    ("reader", "problem"),
    [
        (_raises, "KeyError: b'case'"),
        (_exits, "SystemExit: 0"),
        (_takes_long, "s of processor time"),
        (_never_ends, "more than 0.5 s of processor time"),
        (_takes_memory, "MemoryError: "),
    ],
)
def test_a_reader_that_does_not_answer_as_it_should_is_found_and_its_input_kept(
    reader: object, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz_readers, "SECONDS", 0.2)
    monkeypatch.setattr(fuzz_readers, "ENDLESS", 0.5)
    monkeypatch.setattr(fuzz_readers, "CASES", tmp_path)
    target = Target(st.just(b"case"), reader, (ValueError,))  # type: ignore[arg-type]
    tried, _, broken = fuzz("toy", target, 10, time.monotonic() + 60, number=1)
    assert tried <= 2  # hypothesis looks again
    assert isinstance(broken, Broken)
    assert problem in str(broken)
    assert [path.read_bytes() for path in (tmp_path / "toy").iterdir()] == [b"case"]


def test_a_typed_error_is_an_answer() -> None:
    def refuses(case: bytes) -> None:
        raise ValueError

    assert attempt(Target(st.just(b""), refuses, (ValueError,)), b"") is False
    assert attempt(Target(st.just(b""), len), b"") is True


def test_the_figures_come_last(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz_readers.main(["ptx", "waivers", "--inputs", "5", "--seed", "7"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[:2]] == [["ptx", "5", "inputs,"], ["waivers", "5", "inputs,"]]
    assert lines[-1] == "10 inputs of 2 readers, 0 found something"
