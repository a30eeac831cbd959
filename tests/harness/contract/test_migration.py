"""Version 1: read as version 2 with the positions of its own file, and rewritten by `harness migrate`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.commands import application
from harness.commands.check import print_findings
from harness.contract import migrate
from harness.contract.folders import files_of_folder
from harness.contract.load import load_contract
from harness.contract.migrate import migration_of
from harness.contract.text_edits import Edit
from harness.errors import ContractError

Toy = Callable[..., Path]

ROOT = Path(__file__).parents[3]
OURS = [file for name in ("contracts", "contracts-long", "examples") for file in files_of_folder(ROOT / name).contracts]
PUBLISHED = sorted((ROOT / "reports").rglob("run.tar.xz"))
OLD = """\
# a contract of version 1
schema: contract/v1  # the first
id: old-v1
title: "on, off"
system: toy.system:Toy
workloads:
  small: {model: toy, batch_size: 2, seq_len: 8, steps: 010, options: {flag: no, since: 2026-01-01}}

arms:
  fast: {capture: step}
  off: {capture: none}   # a name
claims:
  - {id: OLD-1, title: t, kind: capture, candidate: fast, on: [small], why: w, if_fails: f}
  - id: OLD-2
    title: Fast equals plain
    kind: trajectory_match
    candidate: fast
    baseline: off
    equality: bitwise
    max_abs_difference: 1e-3  # rounding
    guards: {steps: 10}
    "on":   # where
      - small
    why: on this we agree
    if_fails: f
"""

Call = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Runs `harness migrate` beside `old.yaml`: exit code, lines of stdout."""
    monkeypatch.chdir(tmp_path)
    Path("old.yaml").write_text(OLD)

    def run(*arguments: str) -> tuple[int, list[str]]:
        monkeypatch.setattr(sys, "argv", ["harness", "migrate", *arguments])
        with pytest.raises(SystemExit) as left:
            application.main()
        assert isinstance(left.value.code, int)
        return left.value.code, capsys.readouterr().out.splitlines()

    return run


EFFECT = """\
      training_effect:
        control: waiting
        last: 2
        at_least: 2e-1  # of tiny
"""


FLOW = (
    "      training_effect: {control: waiting, last: 2, at_least: "
    "{otherwise: 1, cases: [{workload: small, value: 3.0}]}}\n"
)


@pytest.mark.parametrize(
    ("written", "rewritten"),
    [
        (
            EFFECT + "        at_least_on: {small: 3.0}  # random\n",
            EFFECT.replace(
                "at_least: 2e-1  # of tiny\n",
                "at_least:\n          otherwise: 2.0e-1  # of tiny\n          cases:  # random\n"
                "            - {workload: small, value: 3.0}\n",
            ),
        ),
        (
            EFFECT.replace(
                "        last: 2\n", "        at_least_on:  # random\n          # far\n          small: 3  # a\n\n"
            )
            + "        last: 2\n",
            EFFECT.replace("        last: 2\n", "\n").replace(
                "at_least: 2e-1  # of tiny\n",
                "at_least:\n          otherwise: 2.0e-1  # of tiny\n          cases:  # random\n            # far\n"
                "            - {workload: small, value: 3}  # a\n",
            )
            + "        last: 2\n",
        ),
        (
            "      training_effect: {control: waiting, last: 2, at_least: 1, at_least_on: {small: 3.0}}\n",
            FLOW,
        ),
        (
            "      training_effect: {at_least_on: {small: 3.0}, control: waiting, last: 2, at_least: 1}\n",
            FLOW,
        ),
        (EFFECT + "        at_least_on: {}\n", EFFECT.replace("2e-1", "2.0e-1")),
    ],
)
def test_an_effect_by_workload_has_a_case_for_each(toy: Toy, written: str, rewritten: str) -> None:
    path = old(toy, "guards: {steps: 10}\n", f"guards:\n      steps: 10\n{written}")
    before = load_contract(path).contract
    migration = migration_of(path)
    assert migration is not None
    assert f"    guards:\n      steps: 10\n{rewritten}    judged_on: [small]\n" in migration.text
    path.write_text(migration.text)
    assert load_contract(path).contract == before


def test_a_comment_that_would_be_lost_is_refused(toy: Toy) -> None:
    effect = "{control: waiting, last: 2, at_least: 1, at_least_on: {small: 3.0 # far\n    }}"
    path = old(toy, "guards: {steps: 10}", f"guards: {{steps: 10, training_effect: {effect}}}")
    with pytest.raises(ContractError) as error:
        migration_of(path)
    assert str(error.value) == (
        "toy.yaml:19:96: `at_least_on` can be rewritten as cases where no comment is lost; found a comment within "
        "`at_least_on`; move it, and migrate again"
    )


@pytest.mark.parametrize(
    ("effect", "message"),
    [
        ("at_least: 1, at_least_on: {small: -3}", "19:104: 'at_least' must be greater than 0; found -3"),
        ("at_least: 1, at_least_on: 3", "19:96: 'at_least_on' must be a mapping"),
        (
            "at_least: 1, at_least_on: {smal: 3}",
            "19:97: a case's `workload` is one of its claim; found 'smal'; did you mean 'small'?",
        ),
        (
            "at_least: {otherwise: 1, cases: [{gpu: H100, value: 2}]}",
            (
                "19:95: unknown key; found 'cases' in a file of contract/v1; "
                "`harness migrate` rewrites the file as version 2, which has it"
            ),
        ),
    ],
)
def test_errors_in_an_effect_of_version_1(toy: Toy, effect: str, message: str) -> None:
    guards = f"guards: {{steps: 10, training_effect: {{control: waiting, last: 2, {effect}}}}}"
    assert refusal(old(toy, "guards: {steps: 10}", guards)) == f"toy.yaml:{message}"


def old(toy: Toy, old_text: str = "", new_text: str = "") -> Path:
    """The toy contract as version 1."""
    path = toy()
    text = path.read_text().replace("contract/v2", "contract/v1").replace("judged_on", "on")
    assert old_text in text
    path.write_text(text.replace(old_text, new_text, 1) if old_text else text)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(ContractError) as error:
        load_contract(path)
    return str(error.value)


def test_version_1_is_the_same_contract(toy: Toy) -> None:
    new = load_contract(toy())
    loaded = load_contract(old(toy))
    assert (new.version, loaded.version) == (2, 1)
    assert loaded.contract == new.contract
    assert loaded.where("claims", 0, "judged_on", 0) == "toy.yaml:20:10"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (("on: [small]", "on: [smal]"), "20:10: `on` names a workload; found 'smal'; did you mean 'small'?"),
        (("    on: [small]\n", ""), "12:5: the key 'on' is required; add it"),
        (("on: [small]", "on: []"), "20:9: 'on' must have at least 1 item; found a list of 0"),
        (("on: [s", "judged_on: [s"), "20:5: unknown key; found 'judged_on' in a file of contract/v1; write `on`"),
    ],
)
def test_errors_speak_of_the_file_as_it_is(toy: Toy, edit: tuple[str, str], message: str) -> None:
    assert refusal(old(toy, *edit)) == f"toy.yaml:{message}"


def test_check_notes_it(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    print_findings([old(toy)], as_json=False)
    note = "toy.yaml:1:9: note: this is contract/v1; `harness migrate toy.yaml` rewrites it as contract/v2"
    out, err = capsys.readouterr()
    assert note in err.splitlines()
    assert out.endswith("· 1 error · 1 warning\n")  # of its system, which is none, and of an arm that is unused


def test_a_file_is_rewritten_where_it_must_be(call: Call) -> None:
    before = load_contract(Path("old.yaml")).contract
    assert call("old.yaml") == (
        0,
        [
            "old.yaml:2:9: `contract/v1` -> `contract/v2`",
            "old.yaml:7:57: `010` -> `10`",
            'old.yaml:7:78: `no` -> `"no"`',
            'old.yaml:7:89: `2026-01-01` -> `"2026-01-01"`',
            'old.yaml:11:3: `off` -> `"off"`',
            "old.yaml:13:59: `on` -> `judged_on`",
            'old.yaml:18:15: `off` -> `"off"`',
            "old.yaml:20:25: `1e-3` -> `1.0e-3`",
            'old.yaml:22:5: `"on"` -> `judged_on`',
            "1 of 1 contract file rewritten as contract/v2",
        ],
    )
    edits = {"contract/v1": "contract/v2", "010": "10", "flag: no": 'flag: "no"', "1e-3": "1.0e-3"}
    edits |= {"2026-01-01": '"2026-01-01"', "off:": '"off":', "baseline: off": 'baseline: "off"'}
    edits |= {", on: [": ", judged_on: [", '"on":': "judged_on:"}
    expected = OLD
    for one, other in edits.items():
        expected = expected.replace(one, other)
    assert Path("old.yaml").read_text() == expected
    after = load_contract(Path("old.yaml"))
    assert (after.version, after.contract) == (2, before)


def test_a_second_time_changes_nothing(call: Call) -> None:
    call("old.yaml")
    text = Path("old.yaml").read_bytes()
    assert call("old.yaml") == (0, ["0 of 1 contract file rewritten as contract/v2"])
    assert Path("old.yaml").read_bytes() == text
    assert call("--check", "old.yaml")[0] == 0


def test_check_writes_nothing(call: Call) -> None:
    code, lines = call("--check", ".")
    assert (code, lines[-1]) == (1, "1 of 1 contract file to be rewritten as contract/v2")
    assert Path("old.yaml").read_text() == OLD


def test_nothing_is_written_where_one_file_is_refused(call: Call) -> None:
    Path("worse.yaml").write_text(OLD.replace("bitwise", "bitwize"))
    assert call("old.yaml", "worse.yaml")[0] == 11
    assert Path("old.yaml").read_text() == OLD


def test_what_would_be_another_contract_is_refused(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    path = old(toy)
    at = path.read_text().index("0.1")
    monkeypatch.setattr(migrate, "effect_edits", lambda _: [Edit(at, at + 3, "0.2")])
    with pytest.raises(ContractError) as error:
        migration_of(path)
    assert str(error.value) == (
        "toy.yaml: what contract/v1 says can be said in contract/v2 by edits of the text; found another contract; "
        "rewrite it by hand"
    )


def test_a_link_stays_one_and_the_mode_stays(call: Call) -> None:
    Path("link.yaml").symlink_to("old.yaml")
    Path("old.yaml").chmod(0o640)
    call("link.yaml")
    assert Path("link.yaml").is_symlink()
    assert Path("old.yaml").stat().st_mode & 0o777 == 0o640
    assert load_contract(Path("old.yaml")).version == 2


@pytest.mark.parametrize("path", OURS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_contract_of_this_repository_stays_the_same(path: Path, tmp_path: Path) -> None:
    migration = migration_of(path)
    if migration is None:
        assert load_contract(path).version == 2
        return
    copy = tmp_path / path.name
    copy.write_text(migration.text)
    assert load_contract(copy).contract == load_contract(path).contract


@pytest.mark.parametrize("archive", PUBLISHED, ids=lambda path: path.parent.name)
def test_published_contracts_are_read_and_can_be_migrated(archive: Path, tmp_path: Path) -> None:
    from harness.rejudge import copies
    from harness.run_directory.bundle import read_bundle

    bundle = read_bundle(archive.parent)
    for loaded in copies([bundle]):
        if loaded.version == 1:
            migration = migration_of(loaded.path)
            assert migration is not None
            copy = tmp_path / loaded.path.name
            copy.write_text(migration.text)
            assert load_contract(copy).contract == loaded.contract
