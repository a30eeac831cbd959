"""Workloads and arms that several contracts share: where they lie, whose error it is, what a run keeps of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from unittest import mock

import jsonschema
import pytest
from sealing import seal

from harness.api import session
from harness.api.rejudge import rejudged
from harness.cli.check import findings_of
from harness.contract import strict_yaml
from harness.contract.json_schema import SHARED_PATH, shared_schema_text
from harness.contract.load import load_contract, load_contracts
from harness.contract.shared import RULE, files_of_folder, folders_read
from harness.errors import ContractErrors
from harness.run_directory.bundle import altered, read_bundle

SCRIPTED = Path(__file__).parents[2] / "support" / "scripted"
SHARED = """\
# what both contracts train
schema: shared/v2
workloads:
  tiny: {model: m, batch_size: 2, seq_len: 4, steps: 5, options: {behaviour: held}}
  large: {model: m, batch_size: 8, seq_len: 4, steps: 5, options: {behaviour: held}}
arms:
  plain: {capture: none}
  fast: {capture: step}
  slow: {capture: none}
"""
CONTRACT = """\
schema: contract/v2
id: ID
title: A contract of two arms
uses: [shared.yaml]
system: scripted_system:ScriptedSystem
workloads: {}
arms: {}
claims:
  - id: ID-1
    title: The losses agree
    kind: trajectory_match
    candidate: fast
    baseline: plain
    equality: bitwise
    max_abs_difference: 0.1
    guards: {steps: 5}
    judged_on: [tiny]
    why: The script decides.
    if_fails: The script says so.
    falsified_by: [no_steps]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`contracts/` with two contracts that use one file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(SCRIPTED))
    monkeypatch.setenv("PYTHONPATH", str(SCRIPTED))
    folder = Path("contracts")
    folder.mkdir()
    (folder / "shared.yaml").write_text(SHARED)
    for name in ("one", "two"):
        (folder / f"{name}.yaml").write_text(CONTRACT.replace("ID", name))
    return folder


def changed(path: Path, old: str, new: str) -> Path:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return path


def refusals(*paths: Path) -> list[str]:
    with pytest.raises(ContractErrors) as error:
        load_contracts(list(paths))
    return [str(each) for each in error.value.errors]


def test_shared_workloads_and_arms_are_part_of_each_contract_that_uses_them(folder: Path) -> None:
    one, two = load_contracts([folder])
    assert list(one.contract.workloads) == ["tiny", "large"]
    assert one.contract.arms == two.contract.arms
    assert one.where("arms", "fast", "capture") == "contracts/shared.yaml:8:19"
    assert one.where("claims", 0, "candidate") == "contracts/one.yaml:12:16"
    assert files_of_folder(folder).shared == [folder / "shared.yaml"]


def test_a_contract_adds_its_own_arms_to_the_shared_arms(folder: Path) -> None:
    path = changed(folder / "one.yaml", "arms: {}", "arms: {own: {capture: none}}")
    assert list(load_contract(path).contract.arms) == ["plain", "fast", "slow", "own"]


def test_a_contract_may_omit_sections_that_its_shared_file_has(folder: Path) -> None:
    path = changed(changed(folder / "one.yaml", "workloads: {}\n", ""), "arms: {}\n", "")
    assert set(load_contract(path).contract.workloads) == {"tiny", "large"}


def test_changing_a_shared_file_changes_the_digest_of_its_contracts(folder: Path) -> None:
    before = [one.digest for one in load_contracts([folder])]
    changed(folder / "shared.yaml", "slow:", "slower:")
    after = [one.digest for one in load_contracts([folder])]
    assert not set(before) & set(after)


def test_a_shared_arm_that_one_contract_does_not_use_causes_no_finding(folder: Path) -> None:
    _, findings = findings_of([folder])
    assert [str(finding) for finding in findings if "used by no claim" in finding.message] == []


def test_an_error_in_a_shared_file_is_reported_once_at_its_place(folder: Path) -> None:
    changed(folder / "shared.yaml", "batch_size: 8", "batch_size: 0")
    assert refusals(folder) == ["contracts/shared.yaml:5:33: 'batch_size' must be greater than or equal to 1; found 0"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("arms:", "arm:", "6:1: unknown key; found 'arm'; did you mean 'arms'?"),
        ("steps: 5,", "stps: 5,", "4:47: unknown key; found 'stps'; did you mean 'steps'?"),
        (
            "capture: step",
            "capture: 1e-5",
            (
                "8:19: a value must mean the same to every YAML reader; found `1e-5`, which YAML 1.1 reads "
                "differently; "
                "write `1.0e-5`"
            ),
        ),
        (
            "schema: shared/v2",
            "schema: shared/v3",
            "2:9: a shared file must name its schema; found 'shared/v3'; write `schema: shared/v2`",
        ),
        ("workloads:", "workloads: [", "5:3: the file must be well-formed YAML: did not find expected ',' or ']'"),
    ],
)
def test_an_invalid_shared_file_is_refused_at_its_position(folder: Path, old: str, new: str, message: str) -> None:
    changed(folder / "shared.yaml", old, new)
    assert f"contracts/shared.yaml:{message}" in refusals(folder)


def test_a_contract_with_the_schema_of_a_shared_file_is_refused(folder: Path) -> None:
    changed(folder / "two.yaml", "contract/v2", "shared/v2")
    assert refusals(folder) == [
        (
            "contracts/two.yaml:1:9: a shared file may contain only workloads and arms; found 'id', 'title', 'uses', "
            "'system', 'claims', which only contracts may have; write `schema: contract/v2`, or move these keys into a "
            "contract"
        )
    ]


@pytest.mark.parametrize(
    "schema", ["schema: shared/v2", '"schema": "shared/v2"', "schema:\n  shared/v2", "schema : shared/v3"]
)
def test_an_unused_shared_file_is_still_checked(folder: Path, schema: str) -> None:
    (folder / "spare.yaml").write_text(f"{schema}\narm: {{}}\n")
    [message] = refusals(folder)
    assert message.startswith("contracts/spare.yaml:")
    assert files_of_folder(folder).shared == [folder / "shared.yaml", folder / "spare.yaml"]


@pytest.mark.parametrize("text", ["schema: shared/v2\narms: [\n", "arms: [\nschema: shared/v2\n"])
def test_a_malformed_yaml_file_is_an_error_even_when_no_contract_uses_it(folder: Path, text: str) -> None:
    (folder / "spare.yaml").write_text(text)
    [message] = refusals(folder)
    assert message.startswith("contracts/spare.yaml:")
    assert "the file must be well-formed YAML" in message


@pytest.mark.parametrize(
    "title", ['title: "A contract\nschema: shared/v2 is what it says"', "title: |\n  schema: shared/v2"]
)
def test_a_uses_line_inside_a_text_does_not_make_a_file_shared(folder: Path, title: str) -> None:
    path = changed(folder / "two.yaml", "title: A contract of two arms", title)
    assert [one.path for one in load_contracts([folder])] == [folder / "one.yaml", path]
    assert files_of_folder(folder).shared == [folder / "shared.yaml"]


@pytest.mark.parametrize(
    "text",
    [
        "workloads: {tiny: {schema: shared/v2}}\nschema: contract/v2\n",
        "? [schema, shared/v2]\n: 1\nschema: contract/v2\n",
        "- schema: shared/v2\n",
        "schema: [shared/v2]\n",
        "shared/v2\n",
    ],
)
def test_a_schema_line_inside_another_document_does_not_make_a_file_shared(folder: Path, text: str) -> None:
    (folder / "spare.yaml").write_text(text)
    assert files_of_folder(folder).shared == [folder / "shared.yaml"]


def test_each_contract_file_is_parsed_once_among_many_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (folder / "one.yaml").read_text()
    own_id = next(line for line in text.splitlines() if line.startswith("id: "))
    for number in range(70):
        (folder / f"more-{number}.yaml").write_text(text.replace(own_id, f"id: more-{number}-v1"))
    composed = mock.Mock(wraps=strict_yaml.parse)
    monkeypatch.setattr(strict_yaml, "parse", composed)
    loaded, _ = findings_of([folder], None, None, ())
    assert len(loaded) == 72
    assert composed.call_count == 72 + 1


def test_the_number_of_shared_files_in_a_folder_is_printed(folder: Path) -> None:
    shutil.copy(folder / "shared.yaml", folder / "spare.yaml")
    (folder / ".hidden.yaml").touch()
    assert folders_read([folder]) == [
        (
            f"contracts: 2 contract files ({RULE}); 2 shared files: contracts/shared.yaml, contracts/spare.yaml; "
            "hidden: contracts/.hidden.yaml"
        )
    ]


def test_an_unused_shared_file_is_a_lint_warning(folder: Path) -> None:
    (folder / "below").mkdir()
    shutil.move(folder / "one.yaml", folder / "below" / "one.yaml")
    changed(folder / "below" / "one.yaml", "[shared.yaml]", "[../shared.yaml]")
    shutil.copy(folder / "shared.yaml", folder / "spare.yaml")

    def warned(*paths: Path) -> list[str]:
        return [str(each) for each in findings_of(paths)[1] if "shared file" in each.message]

    assert warned(folder, folder / "below") == ["contracts/spare.yaml:1:1: warning: no contract uses this shared file"]
    assert warned(folder / "two.yaml") == []


def test_a_shared_setting_unknown_to_the_system_is_reported_in_the_shared_file(folder: Path) -> None:
    changed(folder / "shared.yaml", "{capture: step}", "{capture: step, no_such: 1}")
    _, findings = findings_of([folder / "one.yaml"])
    assert [finding.where for finding in findings if finding.level == "error"] == ["contracts/shared.yaml:8:34"]


def test_a_name_defined_in_contract_and_shared_file_is_refused(folder: Path) -> None:
    path = changed(folder / "one.yaml", "arms: {}", "arms: {fast: {capture: step}}")
    assert refusals(path) == [
        (
            "contracts/one.yaml:7:8: each name must be defined once; found 'fast' again; "
            "rename one: contracts/shared.yaml:8:3 already defines this name"
        )
    ]


def test_a_name_defined_in_two_shared_files_is_refused(folder: Path) -> None:
    (folder / "more.yaml").write_text("schema: shared/v2\narms:\n  fast: {capture: step}\n")
    path = changed(folder / "one.yaml", "[shared.yaml]", "[shared.yaml, more.yaml]")
    assert refusals(path) == [
        (
            "contracts/more.yaml:3:3: each name must be defined once; found 'fast' again; "
            "rename one: contracts/shared.yaml:8:3 already defines this name"
        )
    ]


@pytest.mark.parametrize("again", ["shared.yaml", "./shared.yaml", "link.yaml", "../contracts/shared.yaml"])
def test_naming_the_same_shared_file_twice_is_one_error(folder: Path, again: str) -> None:
    (folder / "link.yaml").symlink_to("shared.yaml")
    path = changed(folder / "one.yaml", "[shared.yaml]", f"[shared.yaml, {again}]")
    assert refusals(path) == [
        (
            f"contracts/one.yaml:4:21: `uses` must name each file once; found '{again}', which is the same file as "
            "'shared.yaml'; remove one of the two names"
        )
    ]


@pytest.mark.parametrize("name", ["out.yaml", "away/outside.yaml"])
def test_a_shared_file_link_that_leads_out_of_the_folder_is_refused(folder: Path, tmp_path: Path, name: str) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    (outside / "outside.yaml").write_text(SHARED)
    (folder / "out.yaml").symlink_to(outside / "outside.yaml")
    (folder / "away").symlink_to(outside)
    assert refusals(changed(folder / "one.yaml", "[shared.yaml]", f"[{name}]")) == [
        (
            "contracts/one.yaml:4:8: a shared file must be in the contract's folder, or in the folder above it; "
            f"found '{name}', a link that leads outside, to {outside / 'outside.yaml'}; "
            "move the linked file into the contract's folder, or into the folder above it"
        )
    ]


@pytest.mark.parametrize(
    "name",
    ["/etc/shared.yaml", "../../shared.yaml", "a/../../shared.yaml", "..\\\\a.yaml", "c:x.yaml"],
)
def test_a_shared_file_path_that_leads_out_of_the_folder_is_refused(folder: Path, name: str) -> None:
    [message] = refusals(changed(folder / "one.yaml", "[shared.yaml]", f'["{name}"]'))
    assert message.startswith(
        "contracts/one.yaml:4:8: a shared file must be in the contract's folder, or in the folder above it; found "
    )


def test_shared_files_in_parent_and_child_folders_can_be_used(folder: Path) -> None:
    (folder / "below").mkdir()
    shutil.move(folder / "one.yaml", folder / "below" / "one.yaml")
    changed(folder / "below" / "one.yaml", "[shared.yaml]", "[../shared.yaml]")
    shutil.copy(folder / "shared.yaml", folder / "below" / "own.yaml")
    changed(folder / "two.yaml", "[shared.yaml]", "[below/own.yaml]")
    assert [one.contract.id for one in load_contracts([folder])] == ["one", "two"]


def test_a_missing_shared_file_is_an_error(folder: Path) -> None:
    assert refusals(changed(folder / "one.yaml", "[shared.yaml]", "[shard.yaml]")) == [
        (
            "contracts/one.yaml:4:8: the shared file must exist; found nothing at contracts/shard.yaml; "
            "check the path, which is relative to the contract's folder"
        )
    ]


@pytest.mark.parametrize(("name", "place"), [('""', "contracts"), ("'.'", "contracts"), ("below", "contracts/below")])
def test_a_folder_named_as_a_shared_file_is_an_error(folder: Path, name: str, place: str) -> None:
    (folder / "below").mkdir()
    assert refusals(changed(folder / "one.yaml", "[shared.yaml]", f"[{name}]")) == [
        (
            f"contracts/one.yaml:4:8: the shared file must exist; found a directory at {place}; "
            "check the path, which is relative to the contract's folder"
        )
    ]


def test_a_shared_file_given_as_a_contract_is_refused(folder: Path) -> None:
    assert refusals(folder / "shared.yaml") == [
        (
            "contracts/shared.yaml:2:9: a shared file can be read only with the contracts that use it; found only the "
            "path of the shared file; "
            "name a contract"
        )
    ]


def test_version_1_contracts_cannot_use_shared_files(folder: Path) -> None:
    text = (folder / "one.yaml").read_text().replace("contract/v2", "contract/v1").replace("judged_on", "on")
    (folder / "one.yaml").write_text(text)
    assert refusals(folder / "one.yaml")[0].startswith("contracts/one.yaml:4:1: unknown key; found 'uses' in a file of")


def test_a_run_can_be_judged_again_after_its_shared_contract_files_are_deleted(folder: Path) -> None:
    judgement = session.verify([folder], session.VerifyOptions(name="run"))
    assert [verdict.status for verdict in judgement.verdicts] == ["PASS", "PASS"]
    run = Path("harness-reports/run")
    shutil.rmtree(folder)
    header = json.loads((run / "run.json").read_text())["digests"]
    [digest] = set(header["shared"]["one"] + header["shared"]["two"])
    assert (run / "contracts" / "shared" / f"{digest}.yaml").read_text() == SHARED
    again = rejudged(run)
    assert again.problems == []
    assert list(again.judgement.verdicts) == list(judgement.verdicts)


def test_a_shared_file_changed_in_a_sealed_run_is_reported(folder: Path) -> None:
    session.verify([folder], session.VerifyOptions(name="run"))
    run = Path("harness-reports/run")
    [copy] = (run / "contracts" / "shared").iterdir()
    copy.write_text(SHARED.replace("slow", "slower"))
    seal(run)
    assert altered(read_bundle(run)) == [f"contracts/shared/{copy.name}: changed"]
    copy.unlink()
    seal(run)
    assert altered(read_bundle(run)) == [f"contracts/shared/{copy.name}: missing"]


def test_the_checked_in_schema_is_current(folder: Path) -> None:
    from harness.contract import strict_yaml

    schema = json.loads(SHARED_PATH.read_text(encoding="utf-8"))
    assert SHARED_PATH.read_text(encoding="utf-8") == shared_schema_text()
    validator = jsonschema.Draft202012Validator(schema)
    assert list(validator.iter_errors(strict_yaml.read(folder / "shared.yaml").value)) == []
    assert len(list(validator.iter_errors({"schema": "shared/v2", "claims": []}))) == 1
