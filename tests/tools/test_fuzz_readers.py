"""The fuzzer finds what it should, and what it has found stays mended."""

from __future__ import annotations

import faulthandler
import os
import time
from collections.abc import Callable
from itertools import repeat
from math import inf
from pathlib import Path

import fuzz_child
import fuzz_readers
import pytest
from fuzz_child import Child, Tried, attempt
from fuzz_readers import CASES, fuzz, warm
from fuzz_targets import NAMES, Target, targets


def _record(rest: bytes, record: bytes = b"telemetry") -> bytes:
    """A file of evidence that is one long line."""
    return b'evidence/traced-step-v1+smoke+paired/records.jsonl\n{"record":"' + record + b'",' + rest + b"}\n"


# Found by fuzzing, or by reading what fuzzing made suspicious; those of many bytes are made when a test asks for them.
MADE: dict[str, tuple[str, Callable[[], bytes]]] = {
    "an unclosed comment again and again": ("ptx", lambda: b"/*" * 200_000),
    "line ends before a target": ("ptx", lambda: b"\n" * 200_000 + b"x"),
    "thousands of unknown keys": (
        "contracts",
        lambda: b"schema: contract/v1\n" + b"".join(b"k%d: 1\n" % n for n in range(9_000)),
    ),
    "thousands of names to compare": ("contracts", lambda: b"[" + b"{a: 1}," * 12_000 + b"]"),
    "a number of a million digits": ("contracts", lambda: b"schema: contract/v1\nid: " + b"9" * 900_000),
    "waivers with thousands of unknown keys": (
        "waivers",
        lambda: (
            b"schema: waivers/v1\nwaivers:\n- {" + b", ".join(b"owne%d: 1" % number for number in range(9_000)) + b"}\n"
        ),
    ),
    "a record of samples that lack everything": (
        "evidence",
        lambda: _record(b'"samples":[' + b"{}," * 900_000 + b"{}]"),
    ),
    "a record of keys that nobody knows": (
        "evidence",
        lambda: _record(b",".join(b'"%x":0' % n for n in range(250_000))),
    ),
    "a record of facts that are none": (
        "evidence",
        lambda: _record(b'"facts":{' + b",".join(b'"%x":[]' % n for n in range(250_000)) + b"}", b"arm_start"),
    ),
}
KEPT = sorted(path for path in CASES.glob("*/*") if path.is_file())


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Target]:
    made = targets(tmp_path_factory.mktemp("fuzz") / "scratch")
    for target in made.values():
        warm(target)
    return made


def _tried(target: Target, case: bytes) -> Tried:
    return Child(target, lambda one: one(case)).end()


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_an_input_that_once_broke_a_reader_no_longer_breaks_it(path: Path, known: dict[str, Target]) -> None:
    assert _tried(known[path.parent.name], path.read_bytes()).broken is None


@pytest.mark.parametrize("name", MADE)
def test_an_input_built_to_make_a_reader_run_forever_is_answered_in_time(name: str, known: dict[str, Target]) -> None:
    target, case = MADE[name]
    assert _tried(known[target], case()).broken is None


@pytest.mark.parametrize("name", NAMES)
def test_each_fuzz_target_reads_at_least_one_of_its_inputs(
    name: str, known: dict[str, Target], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz_readers, "CASES", tmp_path)
    done = fuzz(name, [known[name]], 60, inf, number=1)
    assert (done.tried, done.broken) == (60, None)
    assert done.read > 0


def test_parallel_fuzzing_processes_try_the_requested_number_of_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz_readers, "BATCH", 7)
    done = fuzz("toy", [Target(bytes, len)] * 3, 100, inf, number=1)
    assert (done.tried, done.read, done.broken) == (100, 100, None)


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


def _aborts(case: bytes) -> None:
    faulthandler.disable()  # pytest's: its sixty lines say of a test that passes that it broke
    os.abort()


def _never_comes_back_to_python(case: bytes) -> None:
    sum(repeat(1))


@pytest.mark.parametrize(
    ("reader", "problem"),
    [
        (_raises, "KeyError: b'case'"),
        (_exits, "SystemExit: 0"),
        (_takes_long, "s of processor time"),
        (_never_ends, "the process ended by SIGXCPU"),
        (_takes_memory, "MemoryError: "),
        (_aborts, "the process ended by SIGABRT"),
        (_never_comes_back_to_python, "the process ended by SIGXCPU"),
    ],
)
def test_a_reader_that_raises_or_hangs_is_found_and_its_input_is_kept(
    reader: Callable[[bytes], object], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz_child, "SECONDS", 0.2)
    monkeypatch.setattr(fuzz_child, "ENDLESS", 0.5)
    monkeypatch.setattr(fuzz_readers, "CASES", tmp_path)
    monkeypatch.setattr(fuzz_readers, "MOST_FINDINGS", 1)
    done = fuzz("toy", [Target(lambda _: b"case", reader, (ValueError,))], 10, inf, number=1)
    assert done.tried == 1
    assert problem in str(done.broken)
    assert [path.read_bytes() for path in (tmp_path / "toy").iterdir()] == [b"case"]


def test_fuzzing_continues_after_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz_readers, "CASES", tmp_path)
    monkeypatch.setattr(fuzz_readers, "BATCH", 50)

    def aborts_at_times(case: bytes) -> None:
        if case[0] in {1, 2}:
            _aborts(case)

    done = fuzz("toy", [Target(bytes, aborts_at_times)], 500, inf, number=1)
    assert done.tried == 500
    assert str(done.broken).count("SIGABRT") == len(list((tmp_path / "toy").iterdir())) > 1


def test_an_expected_error_type_does_not_count_as_a_fuzzing_finding() -> None:
    def refuses(case: bytes) -> None:
        raise ValueError

    assert attempt(Target(bytes, refuses, (ValueError,)), b"") is False
    assert attempt(Target(bytes, len), b"") is True


def test_fuzzing_prints_its_figures_last(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz_readers.main(["ptx", "waivers", "--inputs", "5", "--seed", "7"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[:2]] == [["ptx", "5", "inputs,"], ["waivers", "5", "inputs,"]]
    assert lines[-1] == "10 inputs of 2 readers, broken inputs: 0"
