"""Mistakes that once gave a wrong word, a traceback, a page of errors or none at all."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path

import pytest
from one_day import TODAY

from harness.cli.check import print_findings
from harness.cli.explain import explanation_of
from harness.contract.load import load_contract, load_contracts
from harness.contract.waivers import load_waivers
from harness.errors import ContractError, ContractErrors, UsageError

CONTRACT = """\
schema: contract/v1
id: {id}
title: A contract of two arms
system: scripted_system:ScriptedSystem
workloads:
  tiny: {{model: m, batch_size: 2, seq_len: 4, steps: 5{workload}}}
arms:
  fast: {{capture: step{arm}}}
  plain: {{capture: none}}
claims:
  - id: {claim}
    title: The losses agree
    kind: trajectory_match
    candidate: fast
    baseline: plain
    equality: bitwise
    max_abs_difference: 0.1
    guards: {{steps: 5}}
    on: [tiny]
    why: {why}
    if_fails: The script says so.
    falsified_by: [nan_tail]
"""


def text(**fields: str) -> str:
    defaults = {"id": "one-v1", "claim": "ONE-001", "workload": "", "arm": "", "why": "The script decides."}
    return CONTRACT.format(**(defaults | fields))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "support" / "scripted"))
    folder = Path("contracts")
    folder.mkdir()
    (folder / "one.yaml").write_text(text())
    return folder


def refusals(*paths: Path) -> list[str]:
    with pytest.raises(ContractError) as refused:
        load_contracts(list(paths))
    return str(refused.value).split("\n")


def checked(capsys: pytest.CaptureFixture[str], *paths: Path, waivers: Path | None = None) -> list[str]:
    print_findings(list(paths), waivers=waivers, as_json=False)
    return [line for line in capsys.readouterr().err.splitlines() if not line.startswith("contracts: ")]


# --- links ---------------------------------------------------------------------------------------------------------


def test_a_link_to_itself_among_contracts_is_an_error(folder: Path) -> None:
    (folder / "loop.yaml").symlink_to("loop.yaml")
    (folder / "to.yaml").symlink_to("fro.yaml")
    (folder / "fro.yaml").symlink_to("to.yaml")
    rule = "a contract must be a file; found a link to a file that does not exist; fix the link, or remove it"
    assert refusals(folder) == [f"contracts/{name}.yaml: {rule}" for name in ("fro", "loop", "to")]
    assert refusals(folder / "loop.yaml") == [f"contracts/loop.yaml: {rule}"]


def test_circular_folder_links_are_searched_only_once(folder: Path) -> None:
    (folder / "again").symlink_to(folder.resolve())
    (folder / "self").symlink_to("self")
    assert [loaded.contract.id for loaded in load_contracts([folder])] == ["one-v1"]


@pytest.mark.parametrize("name", ["waivers.yaml", "other.yaml"])
def test_a_waiver_file_linked_to_itself_is_an_error(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / name).symlink_to(name)
    [line] = checked(capsys, folder / "one.yaml", waivers=folder / name)
    assert line.startswith(
        f"contracts/{name}: error: a waiver file must be a file; found a link to a file that does not exist"
    )


# --- waiver files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_errors", [False, True])
def test_a_missing_waiver_file_is_a_usage_error_even_if_contracts_are_invalid(
    folder: Path, capsys: pytest.CaptureFixture[str], *, with_errors: bool
) -> None:
    if with_errors:
        (folder / "one.yaml").write_text("[]")
    with pytest.raises(UsageError, match=r"none\.yaml: the path must exist"):
        print_findings([folder], waivers=Path("none.yaml"), as_json=True)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "waivers.yaml:1:1: a waiver file must not be empty; found an empty file"),
        (b"\xff", "waivers.yaml:1:1: a waiver file must be UTF-8; found byte 0xff; save as UTF-8"),
        (b" " * 2**21, "waivers.yaml: a waiver file must have at most 1048576 bytes; found a larger file; split it"),
        (b"[" + b"1," * 60_000 + b"]", "a waiver file must have at most 50000 values; found more"),
    ],
    ids=["empty", "not UTF-8", "large", "many"],
)
def test_an_error_in_a_waiver_file_names_the_file(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "waivers.yaml"
    path.write_bytes(content)
    with pytest.raises(ContractError) as refused:
        load_waivers(path)
    assert message in str(refused.value)
    assert "contract" not in refused.value.rule


def test_a_folder_named_as_a_waiver_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="a waiver file must be a file; found a directory"):
        load_waivers(tmp_path)


def waiver(days: int, **fields: str) -> str:
    defaults = {"contract": "one-v1", "claim": "ONE-001", "workload": "tiny", "owner": "kim", "reason": "known"}
    entry = {**defaults, "expires": str(TODAY + timedelta(days=days)), **fields}
    return f"schema: waivers/v1\nwaivers: [{json.dumps(entry)}]\n"


@pytest.mark.parametrize(("days", "warned"), [(-1, True), (0, False), (1, False)])
def test_an_expired_waiver_is_a_warning(
    folder: Path, noon: None, capsys: pytest.CaptureFixture[str], days: int, *, warned: bool
) -> None:
    (folder / "waivers.yaml").write_text(waiver(days))
    message = f"the waiver of ONE-001 on tiny was valid until {TODAY + timedelta(days=days)}: renew or remove it"
    found = [f"contracts/waivers.yaml:2:11: warning: {message}"] if warned else []
    assert [line for line in checked(capsys, folder) if "waiver of" in line] == found


# --- which key an error is of --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"workload": ", options: {layers: {a: 1}}"}, "'layers' must be a valid boolean, or a valid integer, or"),
        ({"workload": ", options: {layers: [1]}"}, "'layers' must be a valid boolean, or a valid integer, or"),
        ({"workload": ", options: {layers: null}"}, "'layers' must be a valid boolean, or a valid integer, or"),
        ({"arm": ", rate: {a: 1}"}, "'rate' must be a valid boolean, or a valid integer, or"),
        ({"arm": ", rate: {int: 1}"}, "'rate' must be a valid boolean, or a valid integer, or"),
    ],
)
def test_a_value_of_wrong_type_is_reported_with_its_key(folder: Path, fields: dict[str, str], message: str) -> None:
    (folder / "one.yaml").write_text(text(**fields))
    [line] = refusals(folder)
    assert message in line
    assert not any(f"'{kind}'" in line for kind in ("bool", "int", "float", "str"))


@pytest.mark.parametrize(
    "content", ["a: {b: 1\n", "a: b: c", "- [", "a: 'b", "? a\n? :\n  - b\n c", "%YAML 9", "a: @b"]
)
def test_no_error_message_contains_the_words_found_did_or_found_could(tmp_path: Path, content: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(content)
    assert "; found did" not in str(refusals(path))
    assert "; found could" not in str(refusals(path))


# --- very many errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "total"),
    [
        (text() + "".join(f"key{number}: 1\n" for number in range(20_000)), 20_000),
        (text(workload="".join(f", k{number}: [1]" for number in range(10_000))), 10_000),
        (text(workload=", options: {" + ", ".join(f"k{number}: {{}}" for number in range(9_000)) + "}"), 9_000),
        (text().replace("on: [tiny]", f"on: [{', '.join(f't{number}' for number in range(20_000))}]"), 20_000),
    ],
    ids=["unknown keys", "unknown keys inside", "wrong types", "unknown names"],
)
def test_after_100_errors_in_a_file_only_the_number_of_further_errors_is_printed(
    folder: Path, content: str, total: int
) -> None:
    path = folder / "one.yaml"
    path.write_text(content)
    lines = refusals(path)
    assert len(lines) == 101
    assert lines[-1] == f"contracts/one.yaml: {total - 100} more errors in this file; fix the errors above first"


def test_errors_of_waiver_files_beyond_the_limit_are_omitted(tmp_path: Path) -> None:
    path = tmp_path / "waivers.yaml"
    path.write_text("schema: waivers/v1\nwaivers:\n" + "- {a: 1}\n" * 3_000)
    with pytest.raises(ContractErrors) as refused:
        load_waivers(path)
    lines = refused.value.lines()
    assert (len(lines), lines[-1]) == (101, f"{path}: 20900 more errors in this file; fix the errors above first")


def test_a_wrong_name_is_compared_with_a_limited_number_of_names(folder: Path) -> None:
    arms = "".join(f"  arm{number}: {{}}\n" for number in range(5_000))
    (folder / "one.yaml").write_text(text().replace("arms:\n", f"arms:\n{arms}").replace("plain\n", "plaim\n"))
    [line] = refusals(folder)
    assert line.endswith("`baseline` must name an existing arm; found 'plaim'")


# --- names ---------------------------------------------------------------------------------------------------------


def test_contract_ids_that_differ_only_in_case_are_refused(folder: Path) -> None:
    (folder / "two.yaml").write_text(text(id="One-V1"))
    assert refusals(folder) == [
        (
            "contracts/two.yaml:2:5: contract ids must be unique; found 'One-V1'; "
            "rename one: the id at contracts/one.yaml:2:5 differs only in upper and lower case"
        )
    ]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  tiny:", "  Tiny: {model: m, batch_size: 2, seq_len: 4, steps: 5}\n  tiny:", "workloads must be unique"),
        (
            "  plain:",
            "  Fast: {capture: none}\n  plain:",
            "arms must be unique; found 'Fast', which differs from 'fast'",
        ),
        ("claims:\n", "claims:\n" + text(claim="one-001").partition("claims:\n")[2], "claim ids must be unique"),
    ],
)
def test_names_that_differ_only_in_case_are_refused(folder: Path, old: str, new: str, message: str) -> None:
    (folder / "one.yaml").write_text(text().replace(old, new))
    [line] = refusals(folder)
    assert message in line
    assert line.endswith("in upper and lower case; rename one of the two")


def test_a_claim_id_in_two_contracts_is_a_warning_and_explained_for_both(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "two.yaml").write_text(text(id="two-v1"))
    warnings = [line for line in checked(capsys, folder) if "ONE-001" in line and "is also in contract" in line]
    assert warnings == [
        "contracts/two.yaml:11:9: warning: claim 'ONE-001' is also in contract 'one-v1', so `--claim` selects both"
    ]
    lines = explanation_of("ONE-001", folder)
    assert [line for line in lines if line.startswith("  contract")] == [
        "  contract     one-v1 (contracts/one.yaml)",
        "  contract     two-v1 (contracts/two.yaml)",
    ]


# --- blank texts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blank", [" ", "\t", "\n", "\u00a0", "\u200b", "\u2800", "-", "...", "—"])
@pytest.mark.parametrize("key", ["why", "title", "if_fails"])
def test_a_contract_text_without_a_letter_or_digit_is_refused(folder: Path, key: str, blank: str) -> None:
    lines = [
        f"    {key}: {json.dumps(blank)}" if line.startswith(f"    {key}: ") else line for line in text().splitlines()
    ]
    (folder / "one.yaml").write_text("\n".join(lines))
    [line] = refusals(folder)
    assert f"'{key}' must have a letter or a digit" in line


@pytest.mark.parametrize("key", ["owner", "reason"])
def test_a_waiver_text_without_a_letter_is_refused(tmp_path: Path, key: str) -> None:
    path = tmp_path / "waivers.yaml"
    path.write_text(waiver(1, **{key: "\u200b-"}))
    with pytest.raises(ContractError, match=f"'{key}' must be a text of 1 to 1000 characters that has a letter"):
        load_waivers(path)


def test_the_texts_of_a_contract_may_be_in_any_script(folder: Path) -> None:
    (folder / "one.yaml").write_text(text(why="因为 0.1"))
    assert load_contract(folder / "one.yaml").contract.claims[0].why == "因为 0.1"


def test_a_contract_without_read_permission_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test raises the error itself, because the user root may read every file."""
    opened = os.stat

    def denied(path: object, *rest: object, **options: bool) -> os.stat_result:
        if "closed" in str(path):
            raise PermissionError(13, "Permission denied")
        return opened(path, *rest, **options)  # type: ignore[arg-type]

    (folder / "closed.yaml").touch()
    monkeypatch.setattr("os.stat", denied)
    assert refusals(folder) == ["contracts/closed.yaml: cannot read the file; found Permission denied"]
