"""Names of host, user and folders are left out of header, evidence and pages, and the rest stays as it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.api import drill as fire_drill
from harness.api import session
from harness.api.rejudge import judged, rejudged
from harness.cli.drill import drill_on
from harness.cli.pack import published
from harness.errors import EvidenceError, ExitCode
from harness.evidence.environment_records import CiFacts
from harness.evidence.plan_records import Run
from harness.evidence.redaction import NOTE, Redaction, of_this_machine, wanted
from harness.evidence.run_evidence import Death
from harness.execution import supervisor
from harness.pytest_plugin.shared_runs import SharedRuns, plan_file
from harness.run_directory.seal import read_manifest

HOST, USER = "gpu-box-7.lab.example", "kimberly"
NAMES = (HOST, "gpu-box-7", USER, "secret-project")
REDACTION = Redaction(frozenset({"gpu-box-7", HOST}), frozenset({USER}), frozenset({"/models/qwen"}))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cannot open /home/kim/secret/data.txt: none", "cannot open <folder>/data.txt: none"),
        ("--data=/mnt/a b/c", "--data=<folder>/a b/c"),
        ("'/srv/x/y.py', line 3", "'<folder>/y.py', line 3"),
        ("~/notes/a.txt", "<folder>/a.txt"),
        ("LD_LIBRARY_PATH=/usr/lib/a:/srv/secret/b:c", "LD_LIBRARY_PATH=<folder>/a:<folder>/b:c"),
        ("see file:///home/kim/secret/a.html", "see file://<folder>/a.html"),
        ("nas-3:/vol/secret/data.bin", "nas-3:<folder>/data.bin"),
        ("on gpu-box-7 by kimberly@gpu-box-7.lab.example", "on <host> by <user>@<host>"),
        ("kimberly's, not kimberlys nor gpu-box-71", "<user>'s, not kimberlys nor gpu-box-71"),
        ("a/b, 3 / 4, 1/2/3, https://example.org/a/b, model.layers.0/q", None),
        ("harness/execution/probes/paired.py:17", None),
        ("/models/qwen", None),
    ],
)
def test_redaction_replaces_private_names_by_placeholders(text: str, shown: str | None) -> None:
    assert REDACTION.text(text) == (text if shown is None else shown)


def test_redacting_json_keeps_every_other_character() -> None:
    before = '{"kimberly": 1e-05,  "a": ["x \\u00e9 é", "/home/kim/a", 1.0, "b\\"/srv/k/c"], "NaN": "NaN"}'
    after = '{"kimberly": 1e-05,  "a": ["x \\u00e9 é", "<folder>/a", 1.0, "b\\"<folder>/c"], "NaN": "NaN"}'
    assert REDACTION.json(before) == after


def test_a_cut_off_record_line_is_redacted(tmp_path: Path) -> None:
    whole, torn = json.dumps({"message": "on node-17"}), '{"message": "kimberly on node-'
    (tmp_path / "records.jsonl").write_text(f"{whole}\n{torn}17 and mo")
    Redaction(frozenset({"node-17"}), frozenset({"kimberly"})).directory(tmp_path)
    kept, cut = (tmp_path / "records.jsonl").read_text().splitlines()
    assert json.loads(kept) == {"message": "on <host>"}
    assert cut == '{"message": "<user> on <host> and mo'


@pytest.mark.parametrize(
    ("asked", "ci", "does"),
    [(None, "true", True), (None, "1", True), (None, "", False), (None, "false", False), (False, "true", False)],
)
def test_runs_are_redacted_in_ci_unless_the_option_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, asked: bool | None, ci: str, *, does: bool
) -> None:
    monkeypatch.setenv("CI", ci)
    assert wanted(asked) is does
    assert wanted(True)


def test_a_host_name_that_the_contract_uses_is_not_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "tiny")
    assert of_this_machine({"tiny"}).text("tiny") == "tiny"
    assert of_this_machine().text("tiny") == "<host>"


@pytest.fixture
def contracts(played: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs whose evidence is full of names: output, a death, what was executed."""
    from scripted_system import contract_text

    home = tmp_path / "home" / USER / "secret-project"
    home.mkdir(parents=True)
    (home / "text.txt").touch()
    monkeypatch.chdir(home)
    monkeypatch.setattr("socket.gethostname", lambda: HOST)
    monkeypatch.setattr("getpass.getuser", lambda: USER)
    play = supervisor.execute

    def with_names(run: Run, directory: Path, *rest: object, **options: object) -> Death | None:
        death = play(run, directory)
        (directory / "stderr.txt").write_text(f"{home}/a.py: hello {USER} on {HOST}\n\x00\n")
        if death is not None:
            death = death.model_copy(update={"detail": f"no file {home}/b on {HOST}", "stack": f"{home}/c.py"})
            (directory / "death.json").write_text(death.model_dump_json())
        return death

    monkeypatch.setattr("harness.execution.supervisor.execute", with_names)
    folder = home / "contracts"
    folder.mkdir()
    (folder / "scripted-v1.yaml").write_text(contract_text("held", "violated", "not_run", "error"))
    return folder


def names_in(directory: Path) -> list[str]:
    """Files with a name in them; contracts are copied as they are."""
    files = [path for path in sorted(directory.rglob("*")) if path.is_file() and path.parent.name != "contracts"]
    return [path.name for path in files if any(name.encode() in path.read_bytes() for name in NAMES)]


def verified(contracts: Path, **options: bool | None) -> Path:
    home = contracts.parent
    command = ("harness", "verify", str(contracts), f"--data={home}/text.txt", str(home / "text.txt"))
    chosen = session.VerifyOptions(name="run", data=home / "text.txt", command=command, **options)  # type: ignore[arg-type]
    assert session.verify([contracts], chosen).exit_code is ExitCode.ERROR
    return Path("harness-reports/run")


def test_a_redacted_run_contains_no_private_name_and_is_judged_the_same(contracts: Path) -> None:
    directory = verified(contracts, redact=True)
    assert names_in(directory) == []
    assert rejudged(directory).problems == []
    [bundle], judgement = judged([directory])
    assert bundle.header.environment.redacted == NOTE
    assert [str(verdict.status) for verdict in judgement.verdicts] == ["PASS", "FAIL", "NOT_RUN", "ERROR"]
    assert "no file <folder>/b on <host>" in judgement.verdicts[3].message
    assert NOTE in (directory / "report.html").read_text()


def test_a_run_that_is_not_redacted_contains_private_names(contracts: Path) -> None:
    directory = verified(contracts, redact=False)
    assert {"death.json", "run.json", "stderr.txt", "report.html"} <= set(names_in(directory))
    assert json.loads((directory / "run.json").read_text())["environment"]["redacted"] is None


def test_runs_in_ci_are_redacted_by_default(contracts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    assert names_in(verified(contracts)) == []


def test_a_redacted_drill_is_judged_the_same_again(contracts: Path) -> None:
    from scripted_system import contract_text

    text = contract_text("held").replace(":ScriptedSystem", ":FaultySystem").replace("nan_tail", "fault")
    (contracts / "scripted-v1.yaml").write_text(text)
    options = fire_drill.DrillOptions(name="run", command=("harness", "drill", str(contracts.resolve())), redact=True)
    assert fire_drill.drill([contracts], options).exit_code is ExitCode.HELD
    directory = Path("harness-reports/run")
    assert names_in(directory) == []
    assert rejudged(directory).problems == []


@pytest.mark.parametrize("ci", ["", "true"])
def test_pytest_redacts_only_runs_in_ci(
    contracts: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ci: str
) -> None:
    monkeypatch.setenv("CI", ci)
    planned = plan_file(contracts / "scripted-v1.yaml", session.VerifyOptions())
    shared = SharedRuns(tmp_path / "shared")
    for unit in planned.plan.units:
        shared.judged(planned, unit)
    options = session.VerifyOptions(command=("pytest", str(contracts.resolve())))
    judgement = shared.write_directory([planned], planned.plan.units, planned.plan.units, options, finished=True)
    assert judgement.run_directory is not None
    assert bool(names_in(judgement.run_directory)) is not bool(ci)


def test_an_interrupted_run_is_redacted(contracts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    execute = supervisor.execute

    def interrupted(run: Run, directory: Path, *rest: object, **options: object) -> None:
        execute(run, directory)
        raise KeyboardInterrupt

    monkeypatch.setattr("harness.execution.supervisor.execute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        verified(contracts, redact=True)
    assert list(Path("harness-reports/run/evidence").iterdir())
    assert names_in(Path("harness-reports/run")) == []


def test_evidence_of_a_located_difference_is_redacted(contracts: Path) -> None:
    directory = verified(contracts, redact=True, where=True)
    assert list(directory.glob("where/*/0/stderr.txt"))
    assert names_in(directory) == []
    assert rejudged(directory).problems == []


def test_an_interrupted_locating_run_leaves_no_private_name(contracts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    execute, folders = supervisor.execute, list[Path]()

    def interrupted(run: Run, directory: Path, *rest: object, **options: object) -> None:
        execute(run, directory)
        if run.probe == "where":
            folders.append(directory)
            raise KeyboardInterrupt

    monkeypatch.setattr("harness.execution.supervisor.execute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        verified(contracts, redact=True, where=True)
    assert [folder.exists() for folder in folders] == [False]
    assert names_in(Path("harness-reports/run")) == []


def test_packing_redacts_the_evidence_of_a_located_difference(contracts: Path) -> None:
    run = verified(contracts, redact=False, where=True)
    assert [path.name for path in run.glob("where/*/*/*") if path.name in names_in(run / "where")]
    published(run, contracts.parent / "published", redact=True)
    [bundle], _ = judged([contracts.parent / "published"])
    assert list(bundle.root.glob("where/*/0/stderr.txt"))
    assert names_in(bundle.root) == []


def _packed(contracts: Path, *, redact: bool) -> Path:
    """A run with names, published. Runs with an error are whole, too."""
    out = contracts.parent / "published"
    published(verified(contracts, redact=False), out, redact=redact)
    return out


def test_a_published_run_is_packed_without_names_and_judged_the_same(contracts: Path) -> None:
    out = _packed(contracts, redact=True)
    bundle = judged([out])[0][0]
    assert names_in(out) == []
    assert names_in(bundle.root) == []
    assert bundle.header.environment.redacted == NOTE
    assert NOTE in (out / "report.html").read_text()
    assert rejudged(out).problems == []
    statuses = [str(verdict.status) for verdict in rejudged(out).judgement.verdicts]
    assert statuses == ["PASS", "FAIL", "NOT_RUN", "ERROR"]


def test_a_redacted_packed_run_names_no_ci_job_and_no_author(contracts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITLAB_CI", "true")
    monkeypatch.setenv("GITLAB_USER_LOGIN", "ada")
    header = judged([_packed(contracts, redact=True)])[0][0].header
    assert header.environment.ci == CiFacts()


def test_a_redacted_copy_names_the_manifest_of_its_unchanged_source(contracts: Path) -> None:
    out = _packed(contracts, redact=True)
    source = Path("harness-reports/run")
    assert {"death.json", "run.json", "report.html"} <= set(names_in(source))
    assert read_manifest(out)[0].replaces == read_manifest(source)[1]


def test_a_run_is_packed_with_its_names_unless_redaction_is_requested(contracts: Path) -> None:
    assert "report.html" in names_in(_packed(contracts, redact=False))


def test_a_redacted_drill_is_packed_without_private_names(contracts: Path) -> None:
    from scripted_system import contract_text

    text = contract_text("held").replace(":ScriptedSystem", ":FaultySystem").replace("nan_tail", "fault")
    (contracts / "scripted-v1.yaml").write_text(text)
    command = ("harness", "drill", str(contracts.resolve()))
    fire_drill.drill([contracts], fire_drill.DrillOptions(name="run", command=command, redact=False))
    out = contracts.parent / "published"
    published(Path("harness-reports/run"), out, redact=True)
    assert (names_in(out), rejudged(out).problems) == ([], [])


def test_a_run_is_not_packed_if_redaction_would_change_its_verdicts(
    contracts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redaction changes verdicts if a private name is also a word in which evidence and contract must agree."""

    def too_much(_: Redaction, directory: Path) -> None:
        for path in directory.rglob("death.json"):
            path.unlink()

    run = verified(contracts, redact=False)
    monkeypatch.setattr(Redaction, "directory", too_much)
    rule = "verdicts as the run; found SCRIPT-001 on error: ERROR worker_incomplete instead of ERROR worker_"
    with pytest.raises(EvidenceError, match=rule):
        published(run, contracts.parent / "published", redact=True)
    assert not (contracts.parent / "published").exists()


@pytest.mark.parametrize(("redact", "word"), [(True, ["--redact"]), (False, ["--no-redact"]), (None, [])])
def test_the_shards_of_a_drill_are_redacted_like_the_drill(
    contracts: Path, monkeypatch: pytest.MonkeyPatch, *, redact: bool | None, word: list[str]
) -> None:
    passed: list[list[str]] = []

    def run_shards(*given: object) -> dict[str, int]:
        passed.append(list(given[4]))  # type: ignore[call-overload]
        return {}

    monkeypatch.setattr("harness.extras.fleet.gate.run_shards", run_shards)
    assert drill_on("local", "0", [contracts], contracts / "out", redact=redact) == ExitCode.HELD
    assert passed == [word]
