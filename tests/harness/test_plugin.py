"""The pytest plugin on made projects: what is collected, shown, written, and how a test verifies its own system."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from one_day import TODAY

Write = Callable[..., Path]


@pytest.fixture
def drawn() -> None:
    """For a test of the reports themselves: they are drawn."""


@pytest.fixture
def project(
    pytester: pytest.Pytester,
    scripted: Path,
    played: None,
    noon: None,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Write:
    """Write the contract of some behaviours; the folder that pytest collects."""
    from scripted_system import contract_text

    if "drawn" not in request.fixturenames:
        monkeypatch.setattr("harness.api.session.write_reports", lambda *_: None)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # hypothesis alone takes half a second
    pytester.makeini("[pytest]\ncontract_paths = contracts\naddopts = -p harness.pytest_plugin\n")
    pytester.makeconftest(f"import sys\nsys.path.insert(0, {str(scripted)!r})\nimport played_runs\n")
    folder = pytester.mkdir("contracts")

    def write(*behaviours: str) -> Path:
        (folder / "scripted-v1.yaml").write_text(contract_text(*behaviours))
        return folder

    return write


def write_waiver(folder: Path, *, days: int, workload: str = "violated") -> None:
    """A waiver whose last day lies `days` after today."""
    (folder / "waivers.yaml").write_text(
        "schema: waivers/v1\nwaivers:\n"
        f"  - {{contract: scripted-v1, claim: SCRIPT-001, workload: {workload}, owner: ada, "
        f"reason: known since June, expires: {TODAY + timedelta(days=days)}}}\n"
    )


def run_directory(pytester: pytest.Pytester) -> Path:
    [found] = (pytester.path / "harness-reports").iterdir()
    return found


def test_only_contract_paths_are_collected(pytester: pytest.Pytester, project: Write) -> None:
    folder = project("held", "violated")
    elsewhere = pytester.mkdir("elsewhere")
    (elsewhere / "other-v1.yaml").write_text((folder / "scripted-v1.yaml").read_text())
    (folder / "notes.txt").write_text("no contract")
    write_waiver(folder, days=1)
    (folder / "accepted-baselines.yaml").write_text("schema: accepted-baselines/v1\naccepted: []\n")
    result = pytester.runpytest_inprocess("--collect-only", "-q", "-m", "contract")
    result.stdout.fnmatch_lines(
        ["contracts/scripted-v1.yaml::SCRIPT-001[[]held]", "contracts/scripted-v1.yaml::SCRIPT-001[[]violated]"]
    )
    result.stdout.no_fnmatch_line("*elsewhere*")
    result.stdout.no_fnmatch_line("*waivers*")
    result.stdout.no_fnmatch_line("*accepted*")
    assert result.ret == 0


@pytest.mark.parametrize("name", ["more.yml", "more.YAML", "sub/more.yaml"])
def test_pytest_collects_the_files_that_the_commands_read(pytester: pytest.Pytester, project: Write, name: str) -> None:
    from scripted_system import contract_text

    folder = project("held")
    for path in (folder / name, folder / ".hidden" / "no.yaml"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(contract_text("held", identity="more-v1"))
    result = pytester.runpytest_inprocess("contracts")
    result.assert_outcomes(passed=2)


@pytest.mark.parametrize(
    ("words", "ran"),
    [
        ((), False),
        (("-m", "not slow"), False),
        ((".",), False),
        (("-m", "contract"), True),
        (("-m", "contract and not slow"), True),
        (("contracts",), True),
        (("contracts/scripted-v1.yaml::SCRIPT-001[held]",), True),
        (("--contract-workload", "held"), True),
        (("--contract-gate",), True),
        (("-p", "xdist.plugin", "-n", "1"), False),
        (("-p", "xdist.plugin", "-n", "1", "-m", "contract"), True),
    ],
)
def test_pytest_runs_contracts_only_on_request_and_otherwise_reports_them_as_not_run(
    pytester: pytest.Pytester, project: Write, words: tuple[str, ...], ran: bool
) -> None:
    project("held")
    pytester.makepyfile(OTHER)
    result = pytester.runpytest_inprocess(*words)
    told = [line for line in result.outlines if line.startswith("contracts: ")]
    assert told == (
        [] if ran else ["contracts: 1 of `contract_paths` was not run: `pytest -m contract` runs all of them"]
    )
    assert ("1 unit · 1 held" in result.outlines) is ran
    assert result.ret == 0


def test_a_gate_over_contracts_that_pytest_did_not_collect_is_closed(pytester: pytest.Pytester, project: Write) -> None:
    """`testpaths` names another folder, so no unit of the contracts was judged."""
    project("held")
    pytester.mkdir("tests").joinpath("test_other.py").write_text("def test_other():\n    pass\n")
    pytester.makeini("[pytest]\ncontract_paths = contracts\ntestpaths = tests\naddopts = -p harness.pytest_plugin\n")
    result = pytester.runpytest_inprocess("--contract-gate")
    result.stdout.fnmatch_lines(["contracts: named in `contract_paths`, but not judged: *contracts/scripted-v1.yaml"])
    assert result.ret == 10
    assert pytester.runpytest_inprocess().ret == 0


OTHER = "def test_other():\n    pass\n"


@pytest.mark.parametrize(
    ("ini", "words", "code", "said"),
    [
        ("", ["--contract-gate"], 10, "contracts: none was judged; `contract_paths` in *.ini must *; * is not set"),
        ("", ["--contract-gate", "tests"], 10, "contracts: none was judged; `contract_paths` in *"),
        ("", ["--contract-gate", "-m", "contract"], 10, "contracts: none was judged; `contract_paths` in *"),
        ("", ["-m", "contract"], 5, "contracts: none was judged; `contract_paths` in *"),
        ("contract_paths = empty", ["--contract-gate"], 10, "contracts: none *found no contract in *empty"),
        ("contract_paths = contracts", ["--contract-gate", "tests"], 10, "*closed: the tests that pytest was told*"),
        ("contract_paths = contracts", ["--contract-gate", "-k", "other"], 10, "*`--contract-gate` stays closed*"),
        ("contract_paths = contracts\ntestpaths = tests", ["-m", "contract"], 5, "*but not judged: *scripted-v1.yaml"),
        ("addopts = -p harness.pytest_plugin --contract-gate", [], 10, "contracts: none was judged*"),
    ],
)
def test_a_pytest_gate_without_judged_units_is_closed(
    pytester: pytest.Pytester, project: Write, ini: str, words: list[str], code: int, said: str
) -> None:
    project("held")
    pytester.mkdir("empty")
    pytester.mkdir("tests").joinpath("test_other.py").write_text(OTHER)
    addopts = "" if "addopts" in ini else "addopts = -p harness.pytest_plugin\n"
    pytester.makeini(f"[pytest]\n{ini}\n{addopts}")
    result = pytester.runpytest_inprocess(*words)
    result.stdout.fnmatch_lines([said])
    assert result.ret == code


@pytest.mark.parametrize(
    "words", [["tests"], ["-k", "other"], ["--contract-gate", "--collect-only"], ["-m", "not contract"]]
)
def test_single_tests_without_contracts_pass_under_a_configured_gate(
    pytester: pytest.Pytester, project: Write, words: list[str]
) -> None:
    project("held")
    pytester.mkdir("tests").joinpath("test_other.py").write_text(OTHER)
    pytester.makeini("[pytest]\naddopts = -p harness.pytest_plugin --contract-gate\n")
    assert pytester.runpytest_inprocess(*words).ret == 0


def test_units_judged_by_the_fixture_can_open_the_gate(pytester: pytest.Pytester, project: Write) -> None:
    project("held")
    write_test(pytester, "verify_contract()")
    result = run_test(pytester, "--contract-gate")
    result.assert_outcomes(passed=1)
    assert result.ret == 0


def test_a_pytest_selection_is_recorded_as_a_narrowed_plan(pytester: pytest.Pytester, project: Write) -> None:
    from harness.api.rejudge import judged

    project("held", "also_held")
    result = pytester.runpytest_inprocess("contracts", "-k", "also_held", "--contract-gate")
    assert result.ret == 0
    _, outcome = judged([run_directory(pytester)], gate=True)
    assert (outcome.counts.planned, outcome.exit_code, outcome.view.narrowed()) == (1, 0, "workloads: also_held")


SKIPS = """
import pytest


def pytest_collection_modifyitems(items):
    for item in items:
        if "[violated]" in item.name:
            item.add_marker(pytest.mark.skip(reason="not today"))
"""
ENDS = """
import pytest


def pytest_runtest_setup(item):
    if "[violated]" in item.name:
        pytest.exit("enough", returncode=0)
"""


@pytest.mark.parametrize(
    ("behaviours", "gate", "code"),
    [
        (("held", "violated"), ["--contract-gate"], 10),
        (("held", "violated"), [], 0),
        (("violated",), ["--contract-gate"], 10),
    ],
)
def test_a_unit_skipped_by_a_mark_keeps_the_gate_closed(
    behaviours: tuple[str, ...], gate: list[str], code: int, pytester: pytest.Pytester, project: Write
) -> None:
    """A mark is not a selection.

    If the other units counted as a selected part, the gate would ignore the skipped unit.
    """
    project(*behaviours)
    with (pytester.path / "conftest.py").open("a") as file:
        file.write(SKIPS)
    result = pytester.runpytest_inprocess("contracts", *gate)
    assert result.ret == code
    if "held" in behaviours:
        result.stdout.fnmatch_lines(["2 units · 1 held · 1 not run"])
        result.stdout.fnmatch_lines(["PARTLY DECIDED: *1 of 2 planned units held (1 not run).*"])
    else:
        result.stdout.fnmatch_lines(["*`--contract-gate` stays closed: every selected contract was skipped"])


@pytest.mark.parametrize(
    ("behaviours", "gate", "code"),
    [
        (("held", "violated"), "", 12),
        (("held", "violated"), "--contract-gate", 12),
        (("violated",), "--contract-gate", 10),
    ],
)
def test_a_pytest_session_ended_early_with_code_0_counts_as_unfinished(
    behaviours: tuple[str, ...], gate: str, code: int, pytester: pytest.Pytester, project: Write
) -> None:
    project(*behaviours)
    pytester.makeini(f"[pytest]\ncontract_paths = contracts\naddopts = -p harness.pytest_plugin {gate}\n")
    with (pytester.path / "conftest.py").open("a") as file:
        file.write(ENDS)
    result = pytester.runpytest_inprocess("contracts")
    assert result.ret == code
    if code == 10:
        result.stdout.fnmatch_lines(["*-gate` stays closed: the session ended before any contract was judged"])


def test_pytest_prints_a_violated_unit_like_a_failed_assertion(pytester: pytest.Pytester, project: Write) -> None:
    project("violated")
    result = pytester.runpytest_inprocess("contracts")
    result.stdout.fnmatch_lines(
        [
            "FAIL differs: the losses of * differ at 1 of 5 steps, first at step 3, by at most 0.125*",
            "*step 3, loss of fast: 1.375",
            "*step 3, loss of plain: 1.25",
            "*tolerance: 0.1 loss",
            "what the contract says: The script says so.",
        ]
    )
    result.stdout.no_fnmatch_line("*contract_items.py*")
    shown = result.outlines
    start = next(at for at, line in enumerate(shown) if line.startswith("FAIL differs: "))
    end = next(at for at, line in enumerate(shown) if line.startswith("to run it again: "))
    assert end - start < 15


@pytest.fixture
def actions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As in a step of GitHub Actions; the file that becomes the page of its job."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "page.md"))
    return tmp_path / "page.md"


@pytest.mark.parametrize("processes", [(), ("-p", "xdist.plugin", "-n", "2")], ids=["one", "two"])
def test_pytest_under_github_actions_annotates_and_summarizes_once(
    pytester: pytest.Pytester, project: Write, actions: Path, processes: tuple[str, ...]
) -> None:
    result = pytester.runpytest_inprocess(project("held", "violated"), *processes)
    annotations = [line for line in result.outlines if line.startswith("::")]
    starts = [
        re.match(
            r"::error file=contracts/scripted-v1.yaml,line=\d+,title=SCRIPT-001 on violated%3A violated::the losses of",
            line,
        )
        is not None
        for line in annotations
    ]
    assert starts == [True]
    assert actions.read_text().count("2 units · 1 held · 1 violated") == 1


def test_pytest_outside_github_actions_writes_no_annotations_and_no_summary(
    pytester: pytest.Pytester, project: Write, actions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS")
    result = pytester.runpytest_inprocess(project("held", "violated"))
    assert [line for line in result.outlines if line.startswith("::")] == []
    assert not actions.exists()


def test_an_error_names_how_the_worker_died(pytester: pytest.Pytester, project: Write) -> None:
    project("error")
    result = pytester.runpytest_inprocess("contracts")
    result.stdout.fnmatch_lines(["ERROR worker_signal: the worker of run * died in phase arm fast: SIGKILL"])


def test_undecided_units_are_skipped_by_pytest_with_their_reason(pytester: pytest.Pytester, project: Write) -> None:
    project("undecided", "not_run")
    result = pytester.runpytest_inprocess("contracts", "-rs")
    result.stdout.fnmatch_lines_random(
        ["SKIPPED*INCONCLUSIVE candidate_not_captured: *", "SKIPPED*NOT_RUN module_missing: needs a_module*"]
    )


def test_pytests_junit_file_contains_verdicts_and_figures(pytester: pytest.Pytester, project: Write) -> None:
    project("held", "violated", "error", "not_run")
    pytester.runpytest_inprocess("contracts", "--junit-xml=junit.xml")
    tree = ET.parse(pytester.path / "junit.xml")  # noqa: S314 - pytest wrote it just now
    cases = {case.get("name"): case for case in tree.iter("testcase")}
    values = {
        name: {found.get("name"): found.get("value") for found in case.iter("property")} for name, case in cases.items()
    }
    assert values["SCRIPT-001[held]"]["contract.status"] == "PASS"
    assert values["SCRIPT-001[held]"]["denominator.steps"] == "5"
    assert values["SCRIPT-001[violated]"]["figure.first_differing_step"] == "3"
    results = [[child.tag for child in case if child.tag != "properties"] for case in cases.values()]
    assert results == [[], ["failure"], ["error"], ["skipped"]]


def test_pytest_writes_the_run_directory_of_verify(drawn: None, pytester: pytest.Pytester, project: Write) -> None:
    from harness.cli import judge

    project("held", "violated")
    result = pytester.runpytest_inprocess("contracts")
    directory = run_directory(pytester)
    result.stdout.fnmatch_lines([f"report: harness-reports/{directory.name}/report.html"])
    assert (directory / "report.html").exists()
    assert judge.check_recorded([directory], as_json=False) == 0


def test_an_interrupted_pytest_session_never_passes(drawn: None, pytester: pytest.Pytester, project: Write) -> None:
    project("held", "violated")
    with (pytester.path / "conftest.py").open("a") as file:
        file.write(
            "\ndef pytest_runtest_setup(item):\n    if 'violated' in item.name:\n        raise KeyboardInterrupt\n"
        )
    result = pytester.runpytest_inprocess("contracts", no_reraise_ctrlc=True)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["1 unit · 1 held", "ERROR: The run did not finish, so nothing here is proven.*"])
    assert (run_directory(pytester) / "INCOMPLETE").exists()
    assert "<title>ERROR · scripted-v1</title>" in (run_directory(pytester) / "report.html").read_text()


@pytest.mark.parametrize("options", [("-x",), ("--maxfail=1",)])
def test_a_session_that_stops_at_a_failure_has_not_finished(
    drawn: None, pytester: pytest.Pytester, project: Write, options: tuple[str, ...]
) -> None:
    """The units after the failure were selected and never ran. Calling the run narrowed would hide them."""
    project("held", "violated", "also_held")
    result = pytester.runpytest_inprocess("contracts", *options)
    result.assert_outcomes(passed=1, failed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert (run_directory(pytester) / "INCOMPLETE").exists()
    assert not (run_directory(pytester) / "manifest.json").exists()


def test_pytest_can_select_a_workload(pytester: pytest.Pytester, project: Write) -> None:
    project("held", "violated")
    result = pytester.runpytest_inprocess("contracts", "--contract-workload", "held")
    result.assert_outcomes(passed=1)
    assert result.ret == 0


def tagged(folder: Path, tags: str) -> None:
    path = folder / "scripted-v1.yaml"
    text = path.read_text().replace("contract/v1", "contract/v2").replace("    on: ", "    judged_on: ")
    path.write_text(text.replace("\nsystem:", f"\ntags: [{tags}]\nsystem:", 1))


def test_pytest_can_select_a_tag(pytester: pytest.Pytester, project: Write) -> None:
    folder = project("held")
    tagged(folder, "quick, cpu")
    pytester.runpytest_inprocess("contracts", "--contract-tag", "cpu").assert_outcomes(passed=1)
    [run] = (pytester.path / "harness-reports").iterdir()
    assert json.loads((run / "run.json").read_text())["narrowed"]["tags"] == ["cpu"]


def test_a_tag_selects_a_part_of_a_pytest_gate(pytester: pytest.Pytester, project: Write) -> None:
    """A contract without the tag is left out on purpose, as with `-k` or `--contract-workload`."""
    from scripted_system import contract_text

    folder = project("held")
    tagged(folder, "nightly")
    (folder / "more-v1.yaml").write_text(contract_text("held", identity="more-v1", claim="MORE-001"))
    assert pytester.runpytest_inprocess("--contract-gate", "--contract-tag", "nightly").ret == 0
    assert pytester.runpytest_inprocess("--contract-gate").ret == 0


def test_an_unknown_contract_tag_is_a_pytest_usage_error(pytester: pytest.Pytester, project: Write) -> None:
    tagged(project("held"), "quick")
    result = pytester.runpytest_inprocess("contracts", "--contract-tag", "quik")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*no claim has this tag; found `quik`; did you mean 'quick'?"])


def test_a_failing_ordinary_test_fails_pytest_though_units_passed(pytester: pytest.Pytester, project: Write) -> None:
    project("held")
    pytester.makepyfile("def test_other():\n    assert False\n")
    assert pytester.runpytest_inprocess().ret == 1


def test_a_failing_ordinary_test_takes_precedence_over_undecided_units_in_the_exit_code(
    pytester: pytest.Pytester, project: Write
) -> None:
    """The table of exit codes requires this, because CI may treat exit code 10 as a warning."""
    project("held", "not_run")
    pytester.makepyfile("def test_fails():\n    assert False\n")
    assert pytester.runpytest_inprocess("--contract-gate").ret == 1


def test_a_collection_error_fails_pytest_though_all_units_passed(pytester: pytest.Pytester, project: Write) -> None:
    project("held")
    pytester.makepyfile("import a_module_that_nobody_has\n")
    assert pytester.runpytest_inprocess("--continue-on-collection-errors").ret == 1


@pytest.mark.parametrize("claim", ["SCRIPT-001", "OTHER-001"])
@pytest.mark.parametrize(
    ("identity", "said"),
    [("scripted-v1", "'scripted-v1' again; *"), ("Scripted-v1", "'Scripted-v1'; *upper and lower case*")],
)
def test_two_contract_files_with_one_id_are_refused_by_pytest(
    identity: str, said: str, claim: str, pytester: pytest.Pytester, project: Write
) -> None:
    """Regression: a violated unit of the second contract was ignored, and the session ended with exit code 0."""
    from scripted_system import contract_text

    folder = project("held")
    (folder / "the-second.yaml").write_text(contract_text("violated", identity=identity, claim=claim))
    result = pytester.runpytest_inprocess("-m", "contract")
    result.stdout.fnmatch_lines([f"*the-second.yaml:2:5: contract ids must be unique; found {said}"])
    assert result.ret == 11


def test_a_contract_and_a_link_to_it_are_collected_once(pytester: pytest.Pytester, project: Write) -> None:
    folder = project("held")
    (folder / "the-link.yaml").symlink_to("scripted-v1.yaml")
    result = pytester.runpytest_inprocess("--contract-gate")
    result.assert_outcomes(passed=1)
    assert result.ret == 0


def test_without_contract_items_the_exit_code_is_pytests_own(pytester: pytest.Pytester, project: Write) -> None:
    pytester.makepyfile("def test_other():\n    pass\n")
    assert pytester.runpytest_inprocess("-m", "not contract").ret == 0
    assert not (pytester.path / "harness-reports").exists()


def test_an_invalid_contract_is_a_collection_error_of_pytest(pytester: pytest.Pytester, project: Write) -> None:
    folder = project("held")
    (folder / "broken.yaml").write_text("schema: contract/v1\nid: x\n")
    result = pytester.runpytest_inprocess("contracts")
    result.stdout.fnmatch_lines(["*broken.yaml:1:1: the key 'title' is required*"])
    assert result.ret != 0


@pytest.mark.parametrize(
    ("days", "code", "outcomes", "counted"),
    [
        (0, 0, {"passed": 1, "xfailed": 1}, "1 waived"),
        (-1, 1, {"passed": 1, "failed": 1}, "1 violated"),
    ],
    ids=["on its last day", "the day after"],
)
def test_a_waiver_applies_under_pytest_until_its_date(
    pytester: pytest.Pytester, project: Write, days: int, code: int, outcomes: dict[str, int], counted: str
) -> None:
    folder = project("held", "violated")
    write_waiver(folder, days=days)
    result = pytester.runpytest_inprocess("contracts", "-rx")
    result.assert_outcomes(**outcomes)
    result.stdout.fnmatch_lines([f"2 units · 1 held · {counted}"])
    assert result.ret == code
    if days == 0:
        result.stdout.fnmatch_lines([f"XFAIL*waived by ada until {TODAY}: known since June*"])


# --- the marker and the fixture ------------------------------------------------------------------------------


def test_a_waiver_applies_under_pytest_to_contracts_in_subfolders(pytester: pytest.Pytester, project: Write) -> None:
    folder = project("held", "violated")
    write_waiver(folder, days=1)
    (folder / "inner").mkdir()
    (folder / "scripted-v1.yaml").rename(folder / "inner" / "scripted-v1.yaml")
    result = pytester.runpytest_inprocess("--contract-gate")
    result.assert_outcomes(passed=1, xfailed=1)
    assert result.ret == 0


def write_test(pytester: pytest.Pytester, call: str, marker: str = '@pytest.mark.contract("SCRIPT-001")') -> None:
    pytester.makepyfile(test_mine=f"import pytest\n\n{marker}\ndef test_mine(verify_contract):\n    {call}\n")


def run_test(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess("test_mine.py", *options)


def test_a_test_can_verify_a_claim_with_the_fixture(pytester: pytest.Pytester, project: Write) -> None:
    project("held")
    write_test(pytester, "assert verify_contract().denominators['steps'] == 5")
    run_test(pytester, "-m", "contract").assert_outcomes(passed=1)


def test_a_system_given_to_the_fixture_replaces_the_contracts_system(pytester: pytest.Pytester, project: Write) -> None:
    """The system of the contract cannot even be imported, so the system that the test names must be used."""
    folder = project("held")
    path = folder / "scripted-v1.yaml"
    path.write_text(path.read_text().replace("system: scripted_system:", "system: nobody_has_this:"))
    write_test(pytester, 'verify_contract(system="scripted_system:ScriptedSystem")')
    run_test(pytester).assert_outcomes(passed=1)


def test_a_violated_claim_fails_the_test_at_the_line_that_calls_verify_contract(
    pytester: pytest.Pytester, project: Write
) -> None:
    project("violated")
    write_test(pytester, "verify_contract()")
    result = run_test(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            ">       verify_contract()",
            "E       Failed: FAIL differs: the losses of * first at step 3*",
            "E*step 3, loss of fast: 1.375",
            "E*step 3, loss of plain: 1.25",
            "E       what the contract says: The script says so.",
        ]
    )
    result.stdout.no_fnmatch_line("*contract_verifier.py*")
    assert result.ret == 1


def test_verify_contract_uses_the_first_workload_that_can_be_decided(pytester: pytest.Pytester, project: Write) -> None:
    project("not_run", "held")
    write_test(pytester, "assert verify_contract().workload == 'held'")
    run_test(pytester).assert_outcomes(passed=1)


def test_a_test_of_an_undecided_claim_is_skipped_and_fails_under_the_gate(
    pytester: pytest.Pytester, project: Write
) -> None:
    project("undecided")
    write_test(pytester, "verify_contract()")
    run_test(pytester).assert_outcomes(skipped=1)
    run_test(pytester, "--contract-gate").assert_outcomes(failed=1)


def test_options_of_the_fixture_verify_contract_change_the_workload(pytester: pytest.Pytester, project: Write) -> None:
    project("held")
    write_test(pytester, "verify_contract(workload='held', options={'behaviour': 'violated'})")
    run_test(pytester).assert_outcomes(failed=1)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("verify_contract('SCRIPT-002')", "no contract has this claim; found 'SCRIPT-002'; did you mean 'SCRIPT-001'?"),
        ("verify_contract(workload='hold')", "did you mean `held`?"),
        ("verify_contract(stepps=3)", "an override must be a field of a workload; found stepps: Extra inputs"),
        ("verify_contract(steps=-3)", "an override must be a field of a workload; found steps: "),
        ("verify_contract(steps=3)", "guard"),
        ("verify_contract(contracts='nowhere')", "nowhere: the path must exist"),
    ],
    ids=["claim", "workload", "unknown field", "bad value", "fewer steps than the guard demands", "contracts"],
)
def test_an_invalid_verify_call_in_a_test_fails_with_an_explanation(
    pytester: pytest.Pytester, project: Write, call: str, said: str
) -> None:
    project("held")
    write_test(pytester, call)
    result = run_test(pytester)
    result.assert_outcomes(failed=1)
    assert said in result.stdout.str()
    result.stdout.no_fnmatch_line("*contract_verifier.py*")


def test_a_fixture_call_without_a_claim_explains_how_to_name_it(pytester: pytest.Pytester, project: Write) -> None:
    project("held")
    write_test(pytester, "verify_contract()", marker="")
    result = run_test(pytester)
    assert 'write @pytest.mark.contract("CLAIM-ID") above the test' in result.stdout.str()


def test_an_inner_pytest_session_unloads_only_its_own_modules(pytester: pytest.Pytester, project: Write) -> None:
    """Libraries must stay loaded, because importing a library again would create different classes."""
    project("held")
    pytester.makepyfile(own="value = 1")
    pytester.makepyfile("def test_it():\n    import own\n    import wave\n")
    assert "wave" not in sys.modules
    pytester.runpytest_inprocess("-k", "test_it").assert_outcomes(passed=1)
    assert ("wave" in sys.modules, "own" in sys.modules) == (True, False)


def test_a_test_that_changes_the_folder_leaves_the_run_directory_where_pytest_began(
    pytester: pytest.Pytester, project: Write
) -> None:
    project("held")
    elsewhere = pytester.mkdir("elsewhere")
    pytester.makepyfile(f"import os\n\ndef test_goes_away():\n    os.chdir({str(elsewhere)!r})\n")
    result = pytester.runpytest_inprocess("--contract-reports", "parts", ".", "contracts")
    [directory] = (pytester.path / "parts").iterdir()
    result.stdout.fnmatch_lines([f"report: parts/{directory.name}/report.html"])
    assert [*elsewhere.iterdir()] == []
