"""What a command line is answered with: its version, its examples, paths that are not there, words on a terminal."""

from __future__ import annotations

import errno
import io
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from harness.cli.application import COMMANDS, EXAMPLES, TASKS, application, main
from harness.platform.paths import require_existing
from harness.platform.standard_streams import broken, print_line

ROOT = Path(__file__).parents[2]
Ended = Callable[..., subprocess.CompletedProcess[str]]
HARNESS = [sys.executable, "-m", "harness"]
THAT_READ_A_PATH = {
    "verify": [],
    "check": [],
    "judge": [],
    "report": [],
    "drill": [],
    "doctor": [],
    "compare": ["also-nothing"],
    "history": [],
    "pack": [],
    "attest": ["--key", "key.pem"],
    "import": [],
}
# options and arguments that name a path beside the one above
THAT_NAME_ANOTHER = {
    "--waivers": ["check", "contracts", "--waivers", "nothing-here.yaml"],
    "--drill": ["check", "contracts", "--drill", "nothing-here.yaml"],
    "--data": ["verify", "contracts", "--plan", "--data", "nothing-here.yaml"],
    "--model": ["verify", "contracts", "--plan", "--model", "nothing-here.yaml"],
    "--contracts": ["explain", "F-PTX-001", "--contracts", "nothing-here.yaml"],
    "try": ["try", "nothing-here.py:make_step"],
    "init": ["init", "nothing-here.py:make_step"],
}


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ended:
    """Run a command line in this process, in the repository; `test_a_command_in_its_own_process_*` starts one."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(ROOT)
        monkeypatch.setattr(sys, "argv", ["harness", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        printed, code = capsys.readouterr(), left.value.code
        assert isinstance(code, int)
        return subprocess.CompletedProcess(arguments, code, printed.out, printed.err)

    return run


def process(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*HARNESS, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("arguments", [["--version"], ["verify", "contracts", "--plan", "--claim", "F-PTX-01"]])
def test_a_command_in_its_own_process_ends_like_a_command_called_in_process(ended: Ended, arguments: list[str]) -> None:
    here, there = ended(*arguments), process(*arguments)
    assert (here.returncode, here.stdout, here.stderr) == (there.returncode, there.stdout, there.stderr)


def test_the_version_is_that_of_the_installed_package(ended: Ended) -> None:
    assert (done := ended("--version")).returncode == 0
    assert done.stdout == f"contract-harness {version('contract-harness')}\n"


def test_every_command_has_examples_that_it_accepts() -> None:
    assert set(EXAMPLES) == set(COMMANDS)
    group = typer.main.get_command(application([]))
    for name, examples in EXAMPLES.items():
        command = group.commands[name]  # type: ignore[attr-defined]
        for arguments, what in examples:
            words = shlex.split(arguments.partition(">")[0])
            assert what
            command.make_context(name, words)  # raises for an option that there is none of


@pytest.mark.parametrize("columns", ["80", "40"])
def test_the_help_lists_every_command_once_with_its_whole_summary(
    ended: Ended, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    shown = ended("--help").stdout
    assert "..." not in shown.partition("Options:")[2]
    listed = re.findall(r"^  ([a-z][a-z-]*)  +\S", shown, re.MULTILINE)
    assert sorted(listed) == sorted(COMMANDS)
    for task in TASKS:
        assert f"\n{task}:\n" in shown


def test_the_help_lists_each_example_on_its_own_line(ended: Ended) -> None:
    lines = ended("judge", "--help").stdout.splitlines()
    place = next(number for number, line in enumerate(lines) if line.strip() == "Examples:")
    assert [line.strip().split("  ")[0] for line in lines[place + 1 :] if line.strip()] == [
        f"harness judge {arguments}" for arguments, _ in EXAMPLES["judge"]
    ]


@pytest.mark.parametrize("command", THAT_READ_A_PATH)
def test_a_path_argument_that_does_not_exist_is_a_usage_error(ended: Ended, command: str) -> None:
    done = ended(command, "nothing-here.yaml", *THAT_READ_A_PATH[command])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("nothing-here.yaml: the path must exist") == 1


@pytest.mark.parametrize("option", THAT_NAME_ANOTHER)
def test_a_path_in_an_option_that_does_not_exist_is_a_usage_error(ended: Ended, option: str) -> None:
    done = ended(*THAT_NAME_ANOTHER[option])
    assert (done.returncode, done.stdout) == (2, "")
    assert len(re.findall(r"nothing-here\.(yaml|py): the path must exist", done.stderr)) == 1


def test_a_missing_path_is_reported_with_the_nearest_existing_name(tmp_path: Path) -> None:
    (tmp_path / "contracts").mkdir()
    with pytest.raises(Exception, match=re.escape(f"did you mean `{tmp_path / 'contracts'}`?")):
        require_existing([tmp_path / "contract" / "deeper.yaml"])
    with pytest.raises(Exception, match=re.escape(f"`{tmp_path}` has no `elsewhere`")):
        require_existing([tmp_path / "elsewhere"])


@pytest.mark.parametrize("command", ["verify", "drill"])
def test_the_option_plan_is_refused_for_a_run_that_began_earlier(ended: Ended, command: str) -> None:
    done = ended(command, "contracts", "--plan", "--resume", "begun")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--plan cannot be combined with --resume; found --resume begun; leave out --plan or --resume" in done.stderr


class Collector:
    """Of garbage, put off as `harness` leaves it while it imports."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def isenabled(self) -> bool:
        return False

    def freeze(self) -> None:
        self.calls.append("freeze")

    def enable(self) -> None:
        self.calls.append("enable")


@pytest.mark.parametrize(
    ("arguments", "calls"),
    [(["explain", "F-PTX-001"], ["freeze", "enable"]), (["check", "contracts/ptx-target-parity-v1.yaml"], [])],
)
def test_garbage_collection_starts_after_all_imports_except_for_check(
    ended: Ended, monkeypatch: pytest.MonkeyPatch, arguments: list[str], calls: list[str]
) -> None:
    monkeypatch.setattr("harness.cli.application.gc", collector := Collector())
    assert ended(*arguments).returncode == 0
    assert collector.calls == calls


CLAIM = "no contract has this claim; found `F-PTX-01`; did you mean `F-PTX-001`?"
FAULT = "this fault; found `stale_bach`; did you mean `stale_batch`?"


@pytest.mark.parametrize(
    ("words", "near"),
    [
        ("verify contracts --plan --claim F-PTX-01", CLAIM),
        ("drill contracts --plan --claim F-PTX-01", CLAIM),
        ("verify contracts --plan --workload tinny", "found `tinny`; did you mean `tiny`?"),
        ("verify contracts --plan --fault stale_bach", f"no contract has {FAULT}"),
        ("drill contracts --plan --fault stale_bach", f"no selected claim names {FAULT}"),
        ("verfy contracts", "No such command 'verfy'. Did you mean 'verify'?"),
        ("verify contracts --claims F-PTX-001", "No such option: --claims (Possible options: --claim)"),
    ],
)
def test_a_wrong_name_is_refused_with_the_nearest_existing_name(ended: Ended, words: str, near: str) -> None:
    done = ended(*words.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(f"{near}\n")


def test_a_wrong_tag_is_refused_with_the_nearest_existing_tag(ended: Ended, tmp_path: Path) -> None:
    text = (ROOT / "contracts" / "ptx-target-parity-v1.yaml").read_text()
    (tmp_path / "tagged.yaml").write_text(text.replace("claims:", "tags: [kernels]\nclaims:", 1))
    shutil.copytree(ROOT / "contracts" / "shared", tmp_path / "shared")
    done = ended("verify", str(tmp_path), "--plan", "--tag", "kernel")
    assert done.returncode == 2
    assert done.stderr.endswith("no claim has this tag; found `kernel`; did you mean 'kernels'?\n")


def test_an_unknown_name_without_a_near_match_lists_some_names_and_counts_the_rest(ended: Ended) -> None:
    done = ended("drill", "contracts", "--plan", "--fault", "xyz")
    assert re.search(r"found `xyz`; known: adam_epsilon_in_root, .* and \d+ more\n$", done.stderr)
    assert len(done.stderr) < 600


def test_an_unknown_claim_is_refused_with_the_nearest_existing_claim(ended: Ended) -> None:
    done = ended("explain", "F-PTX-01")
    assert done.stderr.endswith("no contract has this claim; found 'F-PTX-01'; did you mean 'F-PTX-001'?\n")


@given(
    st.lists(st.text("ab", min_size=1, max_size=12), max_size=12).map(" ".join), st.integers(1, 40), st.integers(0, 50)
)
def test_a_wrapped_text_keeps_its_words_within_the_width(text: str, width: int, hang: int) -> None:
    lines = [" " * indent + text[start:end] for indent, start, end in broken(text, width, hang)]
    assert " ".join(lines).split() == text.split()
    assert all(len(line) <= width or len(line.split()) == 1 for line in lines)


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_wrapped_terminal_line_continues_below_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "24")
    monkeypatch.setenv("NO_COLOR", "1")
    screen = Screen()
    print_line(("    held  ", "green"), "A on tiny: equal in bits", file=screen, hang=10)
    print_line("   a note that is long enough to be broken", file=screen)
    assert screen.getvalue().splitlines() == [
        "    held  A on tiny:",
        "          equal in bits",
        "   a note that is long",
        "   enough to be broken",
    ]


def test_a_line_printed_to_a_file_is_not_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "24")
    file = io.StringIO()
    print_line(("held  ", "green"), "as long as it may be " * 5, file=file)
    assert file.getvalue() == f"held  {'as long as it may be ' * 5}\n"


def test_terminal_lines_are_not_longer_than_the_terminal_is_wide() -> None:
    reader, writer = pty.openpty()
    command = [*HARNESS, "check", "contracts"]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "COLUMNS": "60"}, stdout=writer, stderr=writer, check=True)
    os.close(writer)
    lines = os.read(reader, 100_000).decode().replace("\r", "").splitlines()
    os.close(reader)
    assert len(lines) > 10
    assert [line for line in lines if len(line) > 60 and len(line.split()) > 1] == []


def test_a_full_disk_is_an_error_that_lists_the_kept_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def written(**_options: object) -> None:
        error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "small/r/report.html")
        error.add_note("kept the evidence so far, marked INCOMPLETE: small/r")
        raise error

    monkeypatch.setattr("harness.cli.application.application", lambda _arguments: written)
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 12
    assert capsys.readouterr().err.splitlines() == [
        (
            "error: small/r/report.html: the disk must have room for the command's output; found No space left on "
            "device; "
            "make room, or name another folder"
        ),
        "kept the evidence so far, marked INCOMPLETE: small/r",
    ]
