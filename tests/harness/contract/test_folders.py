"""Which files of a folder are contracts: one rule, and nothing of it is lost in silence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.contract.load import load_contracts
from harness.contract.shared import RUN_HEADER, RUN_MARKS, files_of_folder, folders_read
from harness.contract.waivers import find_waivers
from harness.errors import ContractError, ContractErrors
from harness.evidence import layout

Toy = Callable[..., Path]


@pytest.fixture
def add(toy: Toy, tmp_path: Path) -> Callable[[str], Path]:
    """Write a valid contract of its own id at a path below the folder `all`."""
    text = toy("", "").read_text()

    def write(name: str) -> Path:
        path = tmp_path / "all" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("toy-v1", name.replace("/", "-").lstrip(".")))
        return path

    return write


@pytest.mark.parametrize("name", ["a.yaml", "a.yml", "a.YAML", "a.Yml", "sub/a.yaml", "sub/deeper/a.yml"])
def test_every_yaml_file_at_any_depth_is_a_contract(add: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    add("first.yaml")
    added = add(name)
    assert added in [loaded.path for loaded in load_contracts([tmp_path / "all"])]


@pytest.mark.parametrize("name", [".a.yaml", ".old/a.yaml", "sub/.old/deeper/a.yml"])
def test_hidden_files_in_a_contracts_folder_are_named(add: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    add("first.yaml")
    hidden = add(name)
    found = files_of_folder(tmp_path / "all")
    assert (found.contracts, found.hidden) == ([tmp_path / "all" / "first.yaml"], [hidden])
    [line] = folders_read([tmp_path / "all"])
    assert line.startswith(f"{tmp_path / 'all'}: 1 contract file (")
    assert line.endswith(f"; hidden: {hidden}")


@pytest.mark.parametrize("mark", ["manifest.json", "INCOMPLETE"])
@pytest.mark.parametrize("name", ["harness-reports/one", "sub/.old/one", "one"])
def test_contract_copies_in_a_run_directory_are_skipped_and_the_directory_is_named(
    add: Callable[[str], Path], tmp_path: Path, name: str, mark: str
) -> None:
    first = add("first.yaml")
    run = tmp_path / "all" / name
    for copy in ("contracts/first.yaml", "waivers/waivers.yaml", "contracts/shared/0.yaml"):
        add(f"{name}/{copy}").write_text(first.read_text())
    for own in ("run.json", mark):
        (run / own).touch()
    found = files_of_folder(tmp_path / "all")
    assert (found.contracts, found.signed, found.hidden, found.shared) == ([first], [], [], [])
    assert [loaded.path for loaded in load_contracts([tmp_path / "all"])] == [first]
    [line] = folders_read([tmp_path / "all"])
    assert line.endswith(f"; run directories, which were not searched: {run}")


def test_run_directories_are_recognized_by_their_file_names() -> None:
    assert (RUN_HEADER, RUN_MARKS) == (layout.HEADER, (layout.MANIFEST, layout.INCOMPLETE))


@pytest.mark.parametrize("there", [["run.json"], ["manifest.json"], ["INCOMPLETE"], []])
def test_a_folder_with_only_some_run_marks_is_searched_for_contracts(
    add: Callable[[str], Path], tmp_path: Path, there: list[str]
) -> None:
    """Otherwise contracts in a folder with a file named like one of a run directory would be skipped."""
    added = add("sub/first.yaml")
    for name in there:
        (added.parent / name).touch()
    assert files_of_folder(tmp_path / "all").contracts == [added]


def test_a_run_directory_passed_by_name_is_searched_for_contracts(add: Callable[[str], Path], tmp_path: Path) -> None:
    added = add("run/contracts/first.yaml")
    for name in ("run.json", "manifest.json"):
        (tmp_path / "all" / "run" / name).touch()
    assert files_of_folder(tmp_path / "all" / "run").contracts == [added]


@pytest.mark.parametrize("name", ["waivers.yaml", "waivers.yml", "WAIVERS.YAML", "sub/waivers.yaml"])
def test_waiver_files_are_read_as_waivers_in_any_folder(add: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    add("first.yaml")
    waivers = add(name)
    waivers.write_text(
        "schema: waivers/v1\nwaivers:\n"
        "  - {contract: c, claim: d, workload: w, owner: ada, reason: known, expires: 2999-12-31}\n"
    )
    assert len(load_contracts([tmp_path / "all"])) == 1
    assert [waiver.owner for waiver in find_waivers([tmp_path / "all"])] == ["ada"]


def test_a_cycle_of_folder_links_is_read_once_and_ends(add: Callable[[str], Path], tmp_path: Path) -> None:
    add("first.yaml")
    add("sub/second.yaml")
    (tmp_path / "all" / "sub" / "back").symlink_to(tmp_path / "all")
    (tmp_path / "all" / "again").symlink_to(tmp_path / "all" / "sub")
    assert len(load_contracts([tmp_path / "all"])) == 2


def test_contracts_in_a_linked_folder_are_read(add: Callable[[str], Path], toy: Toy, tmp_path: Path) -> None:
    add("first.yaml")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "third.yml").write_text(toy("", "").read_text())
    (tmp_path / "all" / "linked").symlink_to(elsewhere)
    assert {loaded.contract.id for loaded in load_contracts([tmp_path / "all"])} == {"first.yaml", "toy-v1"}


@pytest.mark.parametrize("text", ["jobs: {}\n", "- a list\n"])
def test_yaml_that_is_not_a_contract_has_a_remedy(add: Callable[[str], Path], tmp_path: Path, text: str) -> None:
    add("first.yaml")
    add("sub/other.yml").write_text(text)
    with pytest.raises(
        ContractErrors, match="move a file that is not a contract to another folder, or to a hidden one"
    ):
        load_contracts([tmp_path / "all"])


def test_a_link_to_nothing_is_an_error(add: Callable[[str], Path], tmp_path: Path) -> None:
    add("first.yaml")
    (tmp_path / "all" / "gone.yml").symlink_to(tmp_path / "nowhere.yml")
    with pytest.raises(ContractErrors, match=r"gone\.yml"):
        load_contracts([tmp_path / "all"])


def test_a_folder_that_cannot_be_read_is_an_error(
    add: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add("sub/first.yaml")
    listed = Path.iterdir

    def refuses(path: Path) -> object:
        if path.name == "sub":
            raise PermissionError(13, "Permission denied")
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", refuses)
    with pytest.raises(ContractError, match="the folder of contracts must be readable; found Permission denied"):
        load_contracts([tmp_path / "all"])
