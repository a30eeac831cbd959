"""Whatever a file or a system says, no command and no page hands it on as more than text."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from obeyed import HOSTILE, obeyed
from scripted_contract import hostile_contract

from harness.cli import application

QUOTED = json.dumps(HOSTILE)  # as YAML takes it, too
WAIVERS = f"""schema: waivers/v1
waivers:
  - contract: scripted-v1
    claim: SCRIPT-001
    workload: violated
    owner: {QUOTED}
    reason: {QUOTED}
    expires: 2199-01-01
"""
Called = Callable[..., tuple[int, str, str]]


@pytest.fixture
def called(played: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Called:
    """Call a command in a folder of its own; its exit code, and what it printed on stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        monkeypatch.setattr(sys, "argv", ["harness", *map(str, arguments)])
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as left:
            application.main()
        assert isinstance(left.value.code, int)
        return left.value.code, out.getvalue(), err.getvalue()

    return call


def harmless(printed: tuple[int, str, str], code: int) -> None:
    """Nothing of it is obeyed, and something of the hostile text was in it."""
    assert printed[0] == code
    assert [*obeyed(printed[1]), *obeyed(printed[2])] == []
    assert "set-output" in printed[1] + printed[2]


def contract(text: str = "") -> Path:
    folder = Path("contracts")
    folder.mkdir(exist_ok=True)
    (folder / "c.yaml").write_text(
        text or hostile_contract(HOSTILE, "held", "violated", "undecided", "not_run", "error")
    )
    return folder


@pytest.fixture
def run(called: Called) -> Path:
    """A run of the hostile contract, with a waiver; its verdicts are of every kind."""
    folder = contract()
    (folder / "waivers.yaml").write_text(WAIVERS)
    code, _, _ = called("verify", folder, "--name", "run")
    assert code == 12
    return Path("harness-reports/run")


BROKEN_CONTRACTS = {
    "kind": "kind: trajectory_match",
    "claim id": "id: SCRIPT-001",
    "arm": "candidate: fast",
    "system": "system: scripted_system:ScriptedSystem",
    "workload": "on: [held]",
    "fault": "falsified_by: [nan_tail]",
    "number": "max_abs_difference: 0.1",
}


@pytest.mark.parametrize("where", BROKEN_CONTRACTS)
@pytest.mark.parametrize("command", [["check"], ["check", "--json"], ["verify"], ["drill"], ["doctor"]])
def test_hostile_text_in_a_contract_error_is_escaped(called: Called, command: list[str], where: str) -> None:
    from scripted_system import contract_text

    line = BROKEN_CONTRACTS[where]
    key = line.partition(":")[0]
    value = f"[{QUOTED}]" if "[" in line else QUOTED
    text = contract_text("held")
    assert line in text
    harmless(called(*command, contract(text.replace(line, f"{key}: {value}"))), 11)


def test_a_hostile_unknown_or_duplicate_key_is_escaped(called: Called) -> None:
    from scripted_system import contract_text

    harmless(called("check", contract(contract_text("held") + f"{QUOTED}: 1\n")), 11)
    harmless(called("check", contract(contract_text("held") + f"{QUOTED}: 1\n{QUOTED}: 1\n")), 11)


@pytest.mark.parametrize("place", ["2199-01-01", "expires", "scripted-v1", "schema", "waivers/v1"])
def test_hostile_text_in_a_waiver_error_is_escaped(called: Called, place: str) -> None:
    folder = contract()
    (folder / "waivers.yaml").write_text(WAIVERS.replace(place, QUOTED))
    for arguments in (["check", folder], ["check", "--json", folder]):
        code, out, err = called(*arguments)
        assert (code, obeyed(out), obeyed(err)) == (11, [], [])


@pytest.mark.parametrize("command", ["check", "doctor", "verify", "drill", "explain", "judge", "report", "pack"])
def test_hostile_file_names_are_escaped_by_every_command(called: Called, command: str) -> None:
    name = "x\n::set-output name=a::b\x1b[31m\u202e"
    folder = Path(name)
    folder.mkdir()
    (folder / f"{name}.yaml").write_text(f"{QUOTED}: 1\n")
    given: Sequence[str | Path] = ["SCRIPT-001", "--contracts", folder] if command == "explain" else [folder]
    harmless(called(command, *given), 11 if command in {"check", "doctor", "verify", "drill", "explain"} else 12)


def test_hostile_words_on_the_command_line_are_escaped(called: Called) -> None:
    harmless(called("check", "--set-output\n::set-output::a\x1b[31m", "contracts"), 2)
    harmless(called("explain", "set-output\n::set-output::a\x1b[31m", "--contracts", contract()), 2)


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (f"raise ValueError({HOSTILE!r})", "ValueError"),
        (f"import sys\nprint({HOSTILE!r}, file=sys.stderr, flush=True)\nimport os\nos._exit(3)", "exit status 3"),
        (f"System = {HOSTILE!r}", "System"),
        (f"def System():\n    raise SystemExit({HOSTILE!r})", "SystemExit"),
    ],
    ids=["raises", "prints and ends", "is a text", "exits"],
)
@pytest.mark.parametrize("command", [["check"], ["check", "--json"], ["doctor"], ["doctor", "--json"]])
def test_hostile_text_of_a_system_that_cannot_be_described_is_escaped(
    called: Called, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: list[str], body: str, word: str
) -> None:
    from scripted_system import contract_text

    (tmp_path / "hostile_system.py").write_text(body, encoding="utf-8", errors="surrogatepass")
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = contract(contract_text("held").replace("scripted_system:ScriptedSystem", "hostile_system:System"))
    code, out, err = called(*command, folder)
    assert [*obeyed(out), *obeyed(err)] == []
    assert word in out + err
    assert code == (11 if command[0] == "check" else 0)


@pytest.mark.parametrize("actions", ["", "true"])
def test_hostile_text_in_a_run_is_escaped_everywhere(
    called: Called, run: Path, monkeypatch: pytest.MonkeyPatch, actions: str
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", actions)
    for arguments in (["verify", "contracts", "--name", "other"], ["judge", run], ["judge", "--gate", run]):
        code, out, err = called(*arguments)
        commands = [line for line in out.split("\n") if line.startswith("::")]
        assert bool(commands) is bool(actions)
        assert all(line.startswith(("::error file=", "::warning file=")) for line in commands)
        rest = "\n".join(line.removeprefix("::") for line in out.split("\n"))
        harmless((code, rest, err), 12)
    _, out, err = called("judge", "--json", run)
    assert [*obeyed(out), *obeyed(err)] == []
    assert HOSTILE in json.loads(out)["waived"][0]["owner"]
    for arguments in (["compare", run, "harness-reports/other"], ["history", "harness-reports"], ["report", run]):
        code, out, err = called(*arguments)
        assert (code, obeyed(out), obeyed(err)) == (0, [], [])


@pytest.mark.parametrize("page", ["summary.md", "junit.xml"])
def test_hostile_text_in_pages_printed_to_logs_is_escaped(run: Path, page: str) -> None:
    text = (run / page).read_text(encoding="utf-8")
    assert obeyed(text) == []
    assert "set-output" in text.replace("\\", "")


def hostile_header(run: Path, **fields: Any) -> None:
    header = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(header | fields))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["judge"], 12), (["judge", "--check"], 12), (["report"], 12), (["pack"], 12), (["judge", "--json"], 12)],
)
def test_hostile_text_in_a_run_header_is_escaped(called: Called, run: Path, arguments: list[str], code: int) -> None:
    hostile_header(run, command=[HOSTILE, f"\n{HOSTILE}"], fault=HOSTILE, purpose="fault", started_at=HOSTILE)
    (run / "evidence" / "x\n::set-output::a\x1b[31m").write_text("")
    printed = called(*arguments, run)
    assert printed[0] == code
    assert [*obeyed(printed[1]), *obeyed(printed[2])] == []
    text = (run / "summary.md").read_text(encoding="utf-8")
    assert obeyed(text) == []


def test_hostile_text_in_a_damaged_run_header_is_escaped(called: Called, run: Path) -> None:
    hostile_header(run, units=HOSTILE, **{HOSTILE: 1})
    printed = called("judge", run)
    assert printed[0] == 12
    assert [*obeyed(printed[1]), *obeyed(printed[2])] == []


def test_hostile_text_in_an_internal_exception_is_escaped(called: Called, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError(HOSTILE)

    monkeypatch.setattr("harness.cli.check.print_findings", broken)
    code, _, err = called("check", "contracts")
    assert code == 12
    assert obeyed(err) == []
    assert all(line.startswith("| ") for line in err.rstrip("\n").split("\n"))
