"""The page of upstream's claims is what its script writes, has a row for every claim, and names what is there alone."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import upstream_decisions
import write_upstream_table as table
from index_reports import Published
from report_views import header, verdict
from upstream_decisions import Decisions, Outcome, joined, read_decisions
from write_upstream_table import OurClaim, _verdicts

from harness.errors import ContractError
from harness.extras.upstream.importing import import_files
from harness.judging.verdict import Status
from harness.run_directory.verdict_file import verdict_file

GRAPH = "aprender/cuda-graph-backward-v1.yaml"
SEED_IDS = {  # every ticket and claim that the five source files name, as a search of them for such words found
    *(
        "ALB-075",
        "ALB-076",
        "ALB-078",
        "C-PREWARM-001",
        "C-TILE-BWD-001",
        "C-TILE-BWD-002",
        "C-TILE-BWD-007",
        "ENT-153",
    ),
    *("F-GRAPH-BWD-001", "F-GRAPH-BWD-002", "F-GRAPH-BWD-003", "F-PTX-001", "FALSIFY-GPUTRAIN-006", "KAIZEN-058"),
    *("PMAT-063", "PMAT-464", "PMAT-472", "PMAT-477", "PMAT-484", "PMAT-698g", "PMAT-698h"),
    *("trueno#109", "trueno#170", "trueno#200"),
}
OURS = OurClaim("ours-v1", "1 PASS in a-run")


@pytest.fixture(scope="module")
def decisions() -> Decisions:
    return read_decisions()


@pytest.fixture
def excerpts(tmp_path: Path) -> Path:
    return Path(shutil.copytree(upstream_decisions.EXCERPTS, tmp_path / "excerpts"))


@pytest.fixture
def changed(tmp_path: Path) -> Callable[[str, str], Decisions]:
    """The decisions with one text replaced."""

    def read(old: str, new: str) -> Decisions:
        text = upstream_decisions.DECISIONS.read_text(encoding="utf-8")
        assert old in text
        path = tmp_path / "decisions.yaml"
        path.write_text(text.replace(old, new, 1), encoding="utf-8")
        return read_decisions(path)

    return read


def test_every_item_of_every_file_is_counted_once(decisions: Decisions) -> None:
    imported, _ = import_files([upstream_decisions.EXCERPTS])
    rows = joined(decisions)
    listed = [item.where for each in rows.values() for row in each for item in row.items]
    assert sorted(listed) == sorted(item.where for each in imported for item in each.contract.items)
    assert table.counts(rows, rows, defaultdict(lambda: OURS)).total() == len(listed)


def test_every_id_of_the_source_files_has_a_row(decisions: Decisions) -> None:
    named = {name.strip() for seed in decisions.seeds for name in seed.id.split(",")}
    named |= {item.id for each in joined(decisions).values() for row in each for item in row.items}
    assert SEED_IDS - named == set()


def test_an_upstream_claim_without_a_row_is_an_error(decisions: Decisions, excerpts: Path) -> None:
    path = excerpts / GRAPH
    path.write_text(path.read_text().replace("falsification_tests:\n", "falsification_tests:\n- {id: F-NEW-001}\n"))
    with pytest.raises(ContractError, match=rf"^{GRAPH}: every upstream claim .* must have a row; found F-NEW-001$"):
        joined(decisions, excerpts)


def test_an_upstream_file_without_a_decision_is_an_error(decisions: Decisions, excerpts: Path) -> None:
    (excerpts / "new-v1.yaml").write_text("invariants: [It holds]\n")
    with pytest.raises(ContractError, match=r"^new-v1\.yaml: every upstream file must be decided or out of scope"):
        joined(decisions, excerpts)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "items: [CGB-INV-003]",
            "items: [CGB-INV-004]",
            "must name an item that no other pattern names; found CGB-INV-004",
        ),
        ("items: [CGB-INV-003]", "items: [CGB-INV-003, CGB-INV-002]", "found CGB-INV-002"),
    ],
)
def test_a_row_without_an_item_and_a_duplicate_row_are_errors(
    changed: Callable[[str, str], Decisions], old: str, new: str, message: str
) -> None:
    with pytest.raises(ContractError) as raised:
        joined(changed(old, new))
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("state: decided, by: [CGB-INV-003]", "state: decided", "decided needs `by`, the claims that decide it"),
        ("state: decided, by: [CGB-INV-003]", "state: restated", "restated needs `why` it is not judged as it stands"),
        ("state: decided, by: [CGB-INV-003]", "state: refuted, why: So", "refuted needs `tests` that refute it"),
        ("state: decided, by: [CGB-INV-003]", "state: guessed", "Input should be 'decided', 'restated' or 'refuted'"),
    ],
)
def test_a_row_state_without_its_required_proof_is_an_error(
    changed: Callable[[str, str], Decisions], old: str, new: str, message: str
) -> None:
    with pytest.raises(ContractError) as raised:
        changed(old, new)
    assert message in str(raised.value)


def test_a_row_of_the_upstream_table_that_names_a_missing_claim_is_an_error() -> None:
    with pytest.raises(ContractError, match=r"^here: a row may name only claims of this project; found GONE-001$"):
        table.checked("here", Outcome(state="decided", by=["CGB-EQ-001", "GONE-001"]), {"CGB-EQ-001": OURS})


@pytest.mark.parametrize("test", ["tests/none.py::test_it", "tests/tools/test_upstream_table.py::test_none"])
def test_a_row_of_the_upstream_table_that_names_a_missing_test_is_an_error(test: str) -> None:
    with pytest.raises(ContractError, match=rf"^here: a row may name only tests that exist; found {test}$"):
        table.checked("here", Outcome(state="refuted", tests=[test], why="So."), {})


def test_an_upstream_item_is_decided_once_a_run_of_its_claim_is_published() -> None:
    decided = Outcome(state="decided", by=["OLD-001", "NEW-001"])
    fresh = replace(OURS, published="not published yet")
    assert table.state_of(decided, {"OLD-001": fresh, "NEW-001": fresh}) == "decided, unpublished"
    assert table.state_of(decided, {"OLD-001": OURS, "NEW-001": fresh}) == "decided"
    restated = Outcome(state="restated", by=["NEW-001"], why="So.")
    assert table.state_of(restated, {"NEW-001": fresh}) == "restated"


def published(name: str, purpose: str, *statuses: Status) -> Published:
    units = [verdict("F-GRAPH-BWD-001", f"w{place}", status) for place, status in enumerate(statuses)]
    return Published(name, header(purpose=purpose), verdict_file(units), None, "report.html")


def test_the_upstream_table_shows_the_verdicts_of_the_last_run_that_has_the_claim() -> None:
    runs = [published("1", "verify", Status.PASS), published("2", "verify", Status.FAIL, Status.PASS, Status.PASS)]
    later = published("3", "verify")
    found = _verdicts("cuda-graph-backward-v1", "F-GRAPH-BWD-001", [*runs, later])
    assert found == "1 FAIL, 2 PASS in [2](../reports/2/report.html)"
    assert _verdicts("cuda-graph-backward-v1", "CGB-EQ-001", runs) == "not published yet"


def test_verdicts_of_a_drill_are_labelled_as_its_controls() -> None:
    runs = [published("1", "drill", Status.PASS)]
    assert _verdicts("cuda-graph-backward-v1", "F-GRAPH-BWD-001", runs) == (
        "1 PASS in [1](../reports/1/report.html) (its controls)"
    )
