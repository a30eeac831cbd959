"""The command line: in processes of its own where these are the point, else called here with runs that are played."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import run as started  # what it starts is no fork
from xml.etree import ElementTree as ET

import pytest
from calls_made import LIBRARIES, calls_of_program
from limits_passed import clock_of_jumps
from waiting import eventually

from harness.api import session
from harness.cli import application
from harness.errors import ExitCode
from harness.execution.recorder import HEARTBEAT
from harness.report.view import ReportView
from harness.run_directory.bundle import read_bundle

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("warm_commands")
HARNESS = [sys.executable, "-m", "harness"]


@pytest.fixture
def contracts(scripted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    return tmp_path / "contracts"


def write_contract(folder: Path, *behaviours: str) -> None:
    from scripted_system import contract_text

    folder.mkdir(exist_ok=True)
    (folder / "scripted-v1.yaml").write_text(contract_text(*behaviours))


def harness(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*HARNESS, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=120)


def called(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The same without a process of its own."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["harness", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            application.main()
    assert isinstance(left.value.code, int)
    return subprocess.CompletedProcess(sys.argv, left.value.code, out.getvalue(), err.getvalue())


def run_directory(reports: Path = Path("harness-reports")) -> Path:
    [found] = reports.iterdir()
    return found


def test_the_command_runs_from_a_source_tree(tmp_path: Path) -> None:
    """The harness is not installed.

    Only the source tree is on the import path, and the working directory is elsewhere.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = started(
        [*HARNESS, "check", str(ROOT / "contracts" / "traced-step-v1.yaml")],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=environment,
    )
    assert (done.returncode, done.stdout) == (0, "1 contract · 3 claims · 0 errors · 0 warnings\n")


def test_a_command_that_runs_nothing_does_not_load_torch() -> None:
    """Nor what takes as long: pandas, matplotlib, scipy."""
    heavy = ("torch", "triton", "transformers", "pandas", "matplotlib", "scipy")
    program = (
        "import sys\nfrom harness.cli import application as cli\nfor command in ('check', 'doctor'):\n"
        f"    sys.argv = ['harness', command, {str(ROOT / 'contracts')!r}]\n"
        "    try:\n        cli.main()\n    except SystemExit:\n        pass\n"
        f"    print('after', command, sorted({set(heavy)!r} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    told = [line for line in done.stderr.splitlines() if line.startswith("after ")]
    assert told == ["after check []", "after doctor []"]


@pytest.mark.slow
def test_check_costs_little_next_to_its_libraries() -> None:
    """`check` makes less than 9.5 times the function calls of the imports of the three libraries that it needs.

    The aim is half a second of processor time. Of these 9.5, reading drill records strictly takes 0.15. Reading the
    contracts as they were at drills, because their texts have changed since, takes 1.4. The description of systems in
    another process is not counted.
    """
    check = (
        "import sys\nsys.argv = ['harness', 'check', 'contracts']\nimport harness.__main__\n"
        "try:\n    harness.__main__.main()\nexcept SystemExit:\n    pass"
    )
    calls = calls_of_program(check) + calls_of_program("import harness.system.describing")
    assert calls < 9.5 * calls_of_program(LIBRARIES)


MISBEHAVIOURS = {
    "killed": ("worker_signal", "SIGKILL"),
    "sleeps": ("worker_wall_limit", "still running after 60 s"),
    "leaves": ("worker_incomplete", "the `complete` record is missing"),
    "prints": ("worker_output_limit", "printed more than 10 MiB"),
    "raises": ("worker_exception", "RuntimeError: this module cannot be imported"),
}


def sleeps_alone() -> bool:
    """Return True while the run that sleeps is the only one under way."""
    lanes = [path.parent for path in Path.cwd().glob("harness-reports/*/evidence/*/lane.*/run.json")]
    under_way = [lane for lane in lanes if not (lane / "process.json").exists()]
    if {lane.parent.name for lane in under_way} != {"scripted-v1+sleeps+paired"}:
        return False
    heartbeats = [lane / HEARTBEAT for lane in under_way]
    return all(each.exists() and each.read_text().startswith("sleeps\n") for each in heartbeats)


def test_workers_that_die_fail_only_their_own_units(contracts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limit passes once for the run with the arm that sleeps, and once for its repetition without this arm."""
    monkeypatch.setattr("harness.execution.watched_worker.time", clock_of_jumps(sleeps_alone, 61.0))
    write_contract(contracts, *MISBEHAVIOURS, "held", "violated")
    done = called("verify", contracts, "--wall-limit", "60", "--no-where", "--json")
    assert done.returncode == 12, done.stderr
    claims = {claim["workload"]: claim for claim in json.loads(done.stdout)["claims"]}
    assert (claims["held"]["status"], claims["violated"]["status"]) == ("PASS", "FAIL")
    for behaviour, (reason, cause) in MISBEHAVIOURS.items():
        assert (claims[behaviour]["status"], claims[behaviour]["reason"]) == ("ERROR", reason)
        assert cause in claims[behaviour]["message"]
    page = (run_directory() / "report.html").read_text()
    assert "SIGKILL" in page
    assert "still running after 60 s" in page
    assert "testcase" in (run_directory() / "junit.xml").read_text()


def test_a_verified_run_is_judged_the_same_again(contracts: Path) -> None:
    write_contract(contracts, "held", "violated", "not_run")
    assert harness("verify", contracts, "--no-where").returncode == 1
    directory = run_directory()
    files = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    again = harness("judge", "--check", directory)
    digest = hashlib.sha256((directory / "manifest.json").read_bytes()).hexdigest()
    counts = "3 units · 1 held · 1 violated · 1 not run"
    assert (again.returncode, again.stdout) == (0, f"same     {directory}: {counts}\nmanifest: sha256:{digest}\n")
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == files


def test_changed_evidence_is_named_and_closes_the_gate(contracts: Path, played: None) -> None:
    write_contract(contracts, "violated")
    called("verify", contracts)
    directory = run_directory()
    [series] = directory.glob("evidence/*/fast.0.csv")
    series.write_text(series.read_text().replace("1.375", "1.25"))  # now equal to the baseline's
    check = called("judge", "--check", directory)
    assert check.returncode == 12
    assert f"{series.relative_to(directory)}: changed" in check.stderr
    judged = called("judge", directory)
    assert judged.returncode == 12  # though every claim holds in the files as they stand
    assert "WARNING: Altered: 1 file differs from the digests recorded with the run" in judged.stdout
    assert "1 unit · 1 held" in judged.stdout
    assert "HELD" not in judged.stdout
    printed = called("judge", directory, "--json")
    assert (printed.returncode, json.loads(printed.stdout)["gate"]) == (12, {"open": False})
    drawn = called("history", directory.parent)
    assert (drawn.returncode, f"left out: {directory} differs" in drawn.stderr) == (2, True)
    gate = called("judge", "--gate", directory)
    assert gate.returncode == 12
    assert "evidence differs from the digests recorded with it" in gate.stdout
    assert called("judge", "--write", directory).returncode == 12
    called("report", directory)
    page = (directory / "report.html").read_text()
    assert "Altered: 1 file differs" in page
    assert "<title>ERROR · scripted-v1</title>" in page
    assert '<error message="ERROR: Evidence differs' in (directory / "junit.xml").read_text()


@pytest.mark.parametrize("what", ["--write", "--check"])
@pytest.mark.parametrize(("behaviours", "code", "word"), [(["held"], 0, "HELD"), (["held", "not_run"], 10, "PARTLY")])
def test_every_mode_of_judge_with_the_gate_option_exits_like_the_gate(
    contracts: Path, played: None, what: str, behaviours: list[str], code: int, word: str
) -> None:
    write_contract(contracts, *behaviours)
    called("verify", contracts)
    directory = run_directory()
    assert called("judge", directory).returncode == 0
    assert called("judge", what, directory).returncode == 0
    gate = called("judge", "--gate", what, directory)
    assert gate.returncode == code
    assert gate.stderr.startswith(word)
    if what == "--write":
        assert "Judged as a gate" in (directory / "report.html").read_text()


def test_a_drill_is_refused_as_a_gate_and_stays_unchanged(contracts: Path, played: None) -> None:
    write_contract(contracts, "held")
    path = contracts / "scripted-v1.yaml"
    path.write_text(path.read_text().replace("[nan_tail]", "[no_steps]"))
    called("drill", contracts, "--name", "here")
    directory = Path("harness-reports/here")
    before = (directory / "report.html").stat().st_mtime_ns
    refused = called("judge", "--gate", "--write", directory)
    assert (refused.returncode, "a shard of a gate must not plant a fault" in refused.stderr) == (12, True)
    assert (directory / "report.html").stat().st_mtime_ns == before


def test_an_unfinished_run_with_complete_evidence_is_an_error(contracts: Path, played: None) -> None:
    write_contract(contracts, "held")
    called("verify", contracts)
    directory = run_directory()
    (directory / "INCOMPLETE").touch()
    judged = called("judge", directory)
    assert (judged.returncode, judged.stdout.splitlines()[-2]) == (
        12,
        "ERROR: The run did not finish, so nothing here is proven.",
    )
    called("report", directory)
    assert "<title>ERROR · scripted-v1</title>" in (directory / "report.html").read_text()


def digest_of(directory: Path) -> str | None:
    return read_bundle(directory).seal.digest


def test_report_says_that_it_sealed_a_run_again(contracts: Path, played: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version of the harness renders other pages, so a digest of the run that was stored elsewhere no longer
    matches.
    """
    write_contract(contracts, "held")
    called("verify", contracts)
    directory = run_directory()
    assert "new manifest" not in called("report", directory).stdout
    before = digest_of(directory)
    write_reports = session.write_reports

    def otherwise(folder: Path, view: ReportView, *, junit: bool = True) -> None:
        write_reports(folder, view, junit=junit)
        (folder / "summary.md").write_text("other words")

    monkeypatch.setattr(session, "write_reports", otherwise)
    said = called("report", directory).stdout.splitlines()[0]
    now = digest_of(directory)
    assert now != before
    assert said == f"new manifest: sha256:{now}, before sha256:{before}; with --out FOLDER, no run is changed"


def _ended(journal: Path) -> bool:
    return bool(json.loads(journal.read_text())["ended"])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"])
def test_an_interrupted_run_is_kept_and_marked_as_unfinished(contracts: Path, number: int, code: int) -> None:
    write_contract(contracts, "held", "sleeps")
    command = [*HARNESS, "verify", str(contracts), "--reports", "reports"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        eventually(lambda: any(map(_ended, Path("reports").glob("*/journal.json"))), "one run has ended", process)
        process.send_signal(number)
        said = process.stderr.read()
    assert process.returncode == code
    directory = run_directory(Path("reports"))
    assert f"kept the evidence so far, marked INCOMPLETE: {Path('reports') / directory.name}" in said
    assert (directory / "INCOMPLETE").exists()
    judged = called("judge", directory, "--json")
    assert judged.returncode == 12
    claims = {claim["workload"]: claim["status"] for claim in json.loads(judged.stdout)["claims"]}
    assert claims == {"held": "PASS", "sleeps": "ERROR"}
    assert "WARNING: Incomplete:" in judged.stderr
    check = called("judge", "--check", directory)
    assert (check.returncode, "the run did not finish" in check.stderr) == (12, True)
    called("report", directory)
    for name in ("report.html", "summary.md"):
        assert "did not finish" in (directory / name).read_text()


def test_a_finished_run_shows_no_warning_that_it_is_unfinished(contracts: Path, played: None) -> None:
    write_contract(contracts, "not_run")  # no evidence at all, and yet complete
    done = called("verify", contracts)
    assert done.returncode == 10
    assert "WARNING" not in done.stdout
    assert "did not finish" not in (run_directory() / "report.html").read_text()


def test_verify_under_github_actions_writes_summary_and_annotations(
    contracts: Path, played: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    Path("summary.md").write_text("what another step wrote\n")
    write_contract(contracts, "held", "violated")
    done = called("verify", contracts)
    annotations = [line for line in done.stdout.splitlines() if line.startswith("::")]
    [(place, text)] = [each.removeprefix("::error ").split("::", 1) for each in annotations]
    assert place == "file=contracts/scripted-v1.yaml,line=12,title=SCRIPT-001 on violated%3A violated"
    assert text.startswith("the losses of")
    summary = Path("summary.md").read_text()
    assert summary.startswith("what another step wrote\n**VIOLATED**: ")
    assert "2 units · 1 held · 1 violated" in summary


@pytest.mark.parametrize(
    ("arguments", "code", "place"),
    [
        (("verify", "nowhere"), 2, ""),
        (("verify", "contracts", "--nothing"), 2, ""),
        (("verify", "contracts"), 11, "file=contracts/scripted-v1.yaml,line=2,"),
        (("check", "contracts"), 11, "file=contracts/scripted-v1.yaml,line=2,"),
        (("judge", "--gate", "contracts"), 12, ""),
    ],
)
def test_a_command_that_ends_without_results_writes_an_annotation_and_a_summary_of_the_step(
    contracts: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: int, place: str
) -> None:
    write_contract(contracts, "held")
    path = contracts / "scripted-v1.yaml"
    path.write_text(path.read_text().replace("\nid:", "\nidd: a\nid:", 1))
    assert "::" not in called(*arguments).stderr
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    done = called(*arguments)
    [annotation, *_] = [line for line in done.stderr.splitlines() if line.startswith("::error ")]
    title = f"{ExitCode(code).name.replace('_', ' ')} (exit code {code})"
    assert done.returncode == code
    assert annotation.startswith(f"::error {place}title={title}::")
    assert Path("summary.md").read_text().startswith(f"**{title}**: `")


def test_an_interrupted_run_is_an_annotation_and_leaves_a_junit_file(
    contracts: Path, played: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise SystemExit(ExitCode.TERMINATED)  # as the handler of a signal does, which would later end this process

    monkeypatch.setattr("harness.api.session.execute", interrupted)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    write_contract(contracts, "held")
    done = called("verify", contracts, "--gate", "--name", "run")
    assert done.returncode == ExitCode.TERMINATED
    [annotation] = [line for line in done.stderr.splitlines() if line.startswith("::")]
    assert annotation.startswith("::error title=TERMINATED (exit code 143)::terminated; kept the evidence so far, ")
    [case] = ET.parse("harness-reports/run/junit.xml").iter("testcase")  # noqa: S314 - our own output
    assert [each.get("message") for each in case.iter("error")] == [
        "ERROR: The gate is closed: the run did not finish, so nothing here is proven."
    ]


def test_a_drill_prints_its_counts_and_is_stored_under_its_name(contracts: Path, played: None) -> None:
    write_contract(contracts, "held")
    path = contracts / "scripted-v1.yaml"
    path.write_text(path.read_text().replace("[nan_tail]", "[no_steps, missing_run]"))
    drilled = called("drill", contracts, "--fault", "no_steps", "--name", "here")
    assert (drilled.returncode, drilled.stderr.count("Traceback")) == (0, 0)
    assert drilled.stdout.splitlines()[0] == (
        "1 fault planted · 1 killed · 0 survived · 1 of 1 control held · 0 not run"
    )
    assert drilled.stdout.splitlines()[-2] == "HELD: The one planted fault was killed."
    record = json.loads(Path("harness-reports/here/drill.json").read_text())
    assert [(row["fault"], row["seen"]["reason"]) for row in record["rows"]] == [("no_steps", "vacuous_steps")]


def test_compare_and_history_print_changes_and_write_a_page(contracts: Path, played: None) -> None:
    write_contract(contracts, "held")
    called("verify", contracts, "--reports", "before")
    write_contract(contracts, "held", "violated")
    called("verify", contracts, "--reports", "after")
    before, after = run_directory(Path("before")), run_directory(Path("after"))
    compared = called("compare", before, after)
    assert compared.returncode == 0
    assert "SCRIPT-001 on violated: not planned -> FAIL differs" in compared.stdout
    assert "digests" not in compared.stdout.split("Verdicts")[1].split("Seconds")[0]
    (after / "INCOMPLETE").touch()
    drawn = called("history", "after")
    assert (drawn.returncode, "at least one finished run directory" in drawn.stderr) == (2, True)
    drawn = called("history", "before", "--out", "page.html")
    assert (drawn.returncode, drawn.stdout) == (0, "1 run: page.html\n")
    assert f'<a href="before/{before.name}/report.html">{before.name}</a>' in Path("page.html").read_text()


def test_doctor_lists_undecidable_units_with_the_missing_requirement(contracts: Path, played: None) -> None:
    write_contract(contracts, "held", "not_run")
    done = called("doctor", contracts)
    assert done.returncode == 0
    assert done.stdout.startswith("1 of 2 units can be decided on this machine\n")
    assert "Cannot be decided, needs a_module_that_nobody_has, which is not installed here:" in done.stdout
    assert "-> install the named module" in done.stdout
    units = json.loads(called("doctor", contracts, "--json").stdout)["units"]
    assert [(unit["workload"], unit["decidable"], unit["reason"]) for unit in units] == [
        ("held", True, None),
        ("not_run", False, "module_missing"),
    ]


def test_doctor_names_a_system_that_is_broken(contracts: Path) -> None:
    write_contract(contracts, "held")
    path = contracts / "scripted-v1.yaml"
    path.write_text(path.read_text().replace("scripted_system:ScriptedSystem", "raises_on_import:System"))
    done = harness("doctor", contracts)
    assert "BROKEN  raises_on_import:System: " in done.stdout
    assert "this module cannot be imported" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["verify", "nowhere"], 2, "nowhere: the path must exist"),
        (["verify", "contracts", "--claim", "SCRIPT-002"], 2, "did you mean `SCRIPT-001`?"),
        (["verify"], 2, "Missing argument"),
        (["verify", "contracts", "--wall-limit", "0"], 2, "--wall-limit"),
        (["verify", "contracts", "--data", "nowhere"], 2, "nowhere: the path must exist"),
        (["judge", "nowhere"], 2, "nowhere: the path must exist"),
        (["history", "contracts"], 2, "a history needs at least one finished run directory"),
    ],
    ids=["no contract", "no claim", "no argument", "no limit", "no data", "no run", "no runs"],
)
def test_each_command_error_has_its_exit_code_and_a_remedy(
    contracts: Path, played: None, arguments: list[str], code: int, said: str
) -> None:
    write_contract(contracts, "held")
    done = called(*arguments)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr


def test_a_system_that_exits_with_code_0_makes_the_command_end_with_an_error(contracts: Path) -> None:
    write_contract(contracts, "held")
    Path("leaves_early.py").write_text("raise SystemExit(0)\n")
    path = contracts / "scripted-v1.yaml"
    path.write_text(path.read_text().replace("scripted_system:ScriptedSystem", "leaves_early:System"))
    checked = harness("check", contracts)
    assert checked.returncode == 11
    assert f"must not end the process; found SystemExit: 0 ({Path('leaves_early.py').resolve()}:1)" in checked.stderr


def test_a_defect_of_the_harness_is_an_error_not_a_violation(contracts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*_: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("harness.api.session.verify", break_down)
    done = called("verify", "contracts")
    assert (done.returncode, "ZeroDivisionError: ours" in done.stderr) == (12, True)
