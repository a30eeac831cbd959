"""Waivers: what a file may say, when one holds, and when it names nothing."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from harness.contract.load import LoadedContract, load_contract
from harness.contract.signed_entries import unmatched
from harness.contract.waivers import find_waivers, load_waivers
from harness.errors import ContractErrors, UsageError

ENTRY = {
    "contract": "traced-step-v1",
    "claim": "TRACED-STEP-002",
    "workload": "smoke",
    "owner": "ada",
    "reason": "known",
    "expires": "2026-12-31",
}
HEAD = "schema: waivers/v1\nwaivers:\n"


def entry(**changes: str | None) -> str:
    values = {**ENTRY, **changes}
    return "  - {" + ", ".join(f"{key}: {value}" for key, value in values.items() if value is not None) + "}\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "waivers.yaml"
    path.write_text(text)
    return path


def test_a_waiver_is_loaded_with_its_position(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD + entry())
    [waiver] = load_waivers(path)
    assert (waiver.contract, waiver.claim, waiver.workload) == ("traced-step-v1", "TRACED-STEP-002", "smoke")
    assert (waiver.owner, waiver.reason, waiver.expires) == ("ada", "known", date(2026, 12, 31))
    assert waiver.where == f"{path}:3:5"


def test_a_waiver_is_valid_through_its_last_day(tmp_path: Path) -> None:
    [waiver] = load_waivers(write(tmp_path, HEAD + entry()))
    assert not waiver.expired(date(2026, 12, 31))
    assert waiver.expired(date(2027, 1, 1))
    assert waiver.record(date(2027, 1, 1)) == {**ENTRY, "expired": True}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]\n", "1:1: a waiver file must begin with `schema: waivers/v1`; add it"),
        ("schema: waivers/v2\nwaivers: []\n", "1:1: a waiver file must begin with `schema: waivers/v1`; add it"),
        ("schema: waivers/v1\n", "1:1: 'waivers' must be a list; write one entry for each unit"),
        (HEAD + "  - text\n", "3:5: a waiver must be a mapping; write the keys contract, claim, workload, owner,"),
        (HEAD + entry(owner=None), "3:5: a waiver must have the key 'owner'; found none; add it"),
        (HEAD + entry(expires=None), "3:5: a waiver must have the key 'expires'; found none; add it"),
        (HEAD + entry(owner="''"), "'owner' must be a text of 1 to 1000 characters"),
        (HEAD + entry(workload="7"), "'workload' must be a text of 1 to 1000 characters"),
        (HEAD + entry(expires="never"), "'expires' must be a day, YYYY-MM-DD; found 'never'"),
        (HEAD + entry(expires="2026-02-30"), "'expires' must be a day, YYYY-MM-DD; found '2026-02-30'"),
        (HEAD + entry(expires="20261231"), "'expires' must be a text of 1 to 1000 characters"),
        (HEAD + entry(expires="2026-W53-4"), "'expires' must be a day, YYYY-MM-DD; found '2026-W53-4'"),
        (HEAD + entry(expiry="2026-12-31"), "unknown key; found 'expiry'; did you mean 'expires'?"),
        (HEAD + entry() + entry(reason="another"), "4:5: a unit must have only one waiver; found a second;"),
        ("schema: waivers/v1\nwaivers: []\nwaiver: []\n", "3:1: unknown key; found 'waiver'; did you mean 'waivers'?"),
    ],
)
def test_an_invalid_waiver_file_is_refused_at_its_position(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ContractErrors) as found:
        load_waivers(path)
    assert message in str(found.value)
    assert str(found.value).startswith(f"{path}:")


def test_every_error_of_a_waiver_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ContractErrors) as found:
        load_waivers(write(tmp_path, HEAD + entry(owner=None) + entry(expires="soon")))
    assert len(found.value.errors) == 2


def test_a_missing_waiver_file_is_an_error_only_if_it_was_named(tmp_path: Path) -> None:
    assert find_waivers([tmp_path, tmp_path / "a.yaml"]) == []
    with pytest.raises(UsageError, match="the path must exist"):
        find_waivers([tmp_path], tmp_path / "waivers.yaml")


def test_a_waiver_file_next_to_several_contracts_is_read_once(tmp_path: Path) -> None:
    write(tmp_path, HEAD + entry())
    assert len(find_waivers([tmp_path / "a.yaml", tmp_path / "b.yaml", tmp_path])) == 1


def test_two_waivers_for_one_unit_in_different_files_are_refused(tmp_path: Path) -> None:
    """Regression: a waiver that had expired in one file was silently renewed by a waiver in a second file."""
    inner = tmp_path / "inner"
    inner.mkdir()
    first = write(tmp_path, HEAD + entry(expires="2026-01-31"))
    second = write(inner, HEAD + entry(claim="TRACED-STEP-001") + entry())
    with pytest.raises(ContractErrors) as caught:
        find_waivers([tmp_path])
    [error] = caught.value.errors
    assert (error.where, error.rule) == (f"{first}:3:5", "a unit must have only one waiver")
    assert error.remedy == f"keep one: {second}:4:5 is the first"


def test_a_named_waiver_file_replaces_the_waivers_next_to_the_contracts(tmp_path: Path) -> None:
    write(tmp_path, HEAD + entry())
    other = tmp_path / "other.yaml"
    other.write_text(HEAD + entry(owner="grace"))
    assert [waiver.owner for waiver in find_waivers([tmp_path], other)] == ["grace"]


@pytest.fixture
def contract() -> LoadedContract:
    return load_contract(Path(__file__).parents[3] / "contracts" / "traced-step-v1.yaml")


@pytest.mark.parametrize(
    ("changes", "all_known", "found"),
    [
        ({}, True, None),
        ({"claim": "TRACED-STEP-02"}, False, "claim 'TRACED-STEP-02'; did you mean 'TRACED-STEP-002'?"),
        ({"workload": "smok"}, False, "workload 'smok'; did you mean 'smoke'?"),
        ({"contract": "traced-step-v2"}, True, "contract 'traced-step-v2'; did you mean 'traced-step-v1'?"),
        ({"contract": "traced-step-v2"}, False, None),
    ],
    ids=["matches", "claim", "workload", "contract", "a contract that was not read"],
)
def test_a_waiver_that_matches_no_unit_is_reported(
    tmp_path: Path, contract: LoadedContract, changes: dict[str, str], all_known: bool, found: str | None
) -> None:
    waivers = load_waivers(write(tmp_path, HEAD + entry(**changes)))
    errors = [str(error) for error in unmatched(waivers, [contract], all_known=all_known)]
    if found is None:
        assert errors == []
    else:
        [error] = errors
        assert error.endswith(f"a waiver must name a unit that a contract plans; found {found}; or remove the waiver")
