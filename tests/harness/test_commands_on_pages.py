"""Every command and every link on a page works: for a run, a gate, runs of two contracts on one page, and a drill."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from harness.cli import application
from harness.errors import ExitCode

REPORTS = Path("harness-reports")
WORKS = {ExitCode.HELD, ExitCode.VIOLATED, ExitCode.UNDECIDED}


class Shown(HTMLParser):
    """The code, the places and the links of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.code: list[str] = []
        self.places: set[str] = set()
        self.links: list[str] = []
        self._inside = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.places.add(named.get("id") or "")
        if tag == "a":
            self.links.append(named.get("href") or "")
        if tag == "code":
            self.code.append("")
        self._inside = tag == "code"

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag != "code"

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.code[-1] += data

    def commands(self) -> list[str]:
        return [line for code in self.code for line in code.splitlines() if line.startswith("harness ")]


def called(*arguments: str) -> tuple[int, str]:
    """The exit code of the command line, and what it wrote on stderr."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["harness", *arguments])
        with pytest.raises(SystemExit) as left:
            application.main()
    assert isinstance(left.value.code, int)
    return left.value.code, err.getvalue()


@pytest.fixture
def folder(played: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two contracts, in which a reader starts commands."""
    from scripted_system import contract_text

    monkeypatch.chdir(tmp_path)
    Path("contracts").mkdir()
    text = contract_text("held", "violated", "undecided", "not_run").replace("ScriptedSystem", "FaultySystem")
    Path("contracts/scripted-v1.yaml").write_text(text.replace("[nan_tail]", "[drill]"))
    Path("contracts/other-v1.yaml").write_text(contract_text("violated", identity="other-v1", claim="OTHER-001"))
    return tmp_path


def page_of_a_run() -> Path:
    called("verify", "contracts/scripted-v1.yaml", "--name", "one")
    return REPORTS / "one"


def page_of_a_gate() -> Path:
    called("verify", "contracts", "--gate", "--name", "gate", "--workload", "held", "--workload", "violated")
    return REPORTS / "gate"


def page_of_two_contracts() -> Path:
    called("verify", "contracts/scripted-v1.yaml", "--name", "first")
    called("verify", "contracts/other-v1.yaml", "--name", "second")
    called("report", str(REPORTS / "first"), str(REPORTS / "second"), "--out", "both")
    return Path("both")


def page_of_a_drill() -> Path:
    called("drill", "contracts/scripted-v1.yaml", "--claim", "SCRIPT-001", "--name", "drilled")
    return REPORTS / "drilled"


def page_elsewhere() -> Path:
    """The page of one run, in a folder that is no run directory."""
    called("report", str(page_of_a_run()), "--out", "elsewhere")
    return Path("elsewhere")


MADE = [page_of_a_run, page_of_a_gate, page_of_two_contracts, page_of_a_drill, page_elsewhere]


@pytest.mark.parametrize("made", MADE)
def test_every_command_and_link_of_a_page_works(made: object, folder: Path) -> None:
    assert callable(made)
    place: Path = made()
    html = (place / "report.html").read_text()
    shown = Shown(html)
    commands = shown.commands()
    assert len(commands) >= 2, commands
    for command in commands:
        works(command, place)
    for link in shown.links:
        leads_somewhere(link, shown, place)


def works(command: str, page: Path) -> None:
    """Start it where the page says: a judge in the run directory of each part, a run where that was started."""
    words = shlex.split(command)[1:]
    for inside in parts_of(page) if words[0] == "judge" else [Path()]:
        with contextlib.chdir(inside):
            code, stderr = called(*words)
            assert code in WORKS, (command, code, stderr)


def parts_of(page: Path) -> Iterator[Path]:
    """The run directories that a page is of."""
    if (page / "run.json").exists():
        yield page
    elif page.name == "elsewhere":
        yield REPORTS / "one"
    else:
        links = [unquote(link) for link in Shown((page / "report.html").read_text()).links]
        yield from ((page / link).parent for link in links if link.endswith("report.html"))


def leads_somewhere(link: str, shown: Shown, page: Path) -> None:
    if link.startswith("#"):
        assert link[1:] in shown.places, link
    elif not re.match(r"https?:", link):
        assert (page / unquote(link)).exists(), link


def test_a_page_written_elsewhere_refers_its_reader_to_the_run_directory(folder: Path) -> None:
    html = (page_elsewhere() / "report.html").read_text()
    assert "Made from the run directory alone: in it, <code>harness judge .</code>" in html


def test_the_command_that_repeats_a_unit_of_a_shared_page_names_the_contract_of_this_unit(folder: Path) -> None:
    html = (page_of_two_contracts() / "report.html").read_text()
    found = {command for command in Shown(html).commands() if "--claim" in command}
    assert "harness verify contracts/other-v1.yaml --claim OTHER-001 --workload violated" in found
    assert "harness verify contracts/scripted-v1.yaml --claim SCRIPT-001 --workload violated" in found
