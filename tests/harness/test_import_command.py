"""`harness import`: what it lists, what it writes, and how it refuses."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli import application
from harness.cli.check import findings_of, print_findings
from harness.contract.schema import parts_of
from harness.kinds.speed.model import ThroughputRatio
from harness.kinds.trajectory.model import TrajectoryMatch

GRAPH = """\
metadata: {description: A graph}
proof_obligations:
- {id: G-1, property: Same losses, formal: "|graphed_loss[t] - ungraphed_loss[t]| < 0.01 for t in [0, 100]"}
- {id: G-2, property: Faster, formal: graphed_tok_s / ungraphed_tok_s >= 3.0}
- {id: G-3, property: Pretty, formal: beauty > 3}
promises: {speed: [1, 2]}
"""
COUNTS = "3 items: 2 executable, 1 without an executable check"
SPEED = "proof_obligations:\n- {id: G-2, property: Faster, formal: graphed_tok_s / ungraphed_tok_s >= 2.0}\n"

Call = Callable[..., tuple[int, list[str], str]]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Runs `harness import` in a folder of its own: exit code, lines of stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    Path("up").mkdir()
    Path("up/graph.yaml").write_text(GRAPH)

    def run(*arguments: str) -> tuple[int, list[str], str]:
        monkeypatch.setattr(sys, "argv", ["harness", "import", *arguments])
        with pytest.raises(SystemExit) as left:
            application.main()
        assert isinstance(left.value.code, int)
        out, err = capsys.readouterr()
        return left.value.code, out.splitlines(), err

    return run


def test_import_lists_every_upstream_item_with_its_result(call: Call) -> None:
    assert call("up") == (
        0,
        [
            f"1 file · {COUNTS} · 2 values under keys that no form names · 0 errors",
            f"up/graph.yaml: {COUNTS}",
            "  executable as trajectory_match: G-1: losses within a bound",
            "  executable as throughput_ratio: G-2: throughput over the ungraphed arm's",
            "  no executable check: 1 × the words match no form that a claim kind can judge",
            "    G-3: Pretty",
            "  no claim: 1 value: says what the file, gate or equation is called and where it comes from",
            (
                "  NOT READ: up/graph.yaml:6:11: `promises`, 2 values: the importer knows no form of contract with "
                "this key"
            ),
        ],
        "",
    )


def test_an_imported_contract_has_upstreams_numbers(call: Call) -> None:
    code, lines, _ = call("up", "--write", "ours.yaml")
    assert (code, lines[-1]) == (0, "written: ours.yaml")
    [loaded], findings = findings_of([Path("ours.yaml")])
    assert [finding for finding in findings if finding.level == "error"] == []
    losses, ratio = loaded.contract.claims
    [part] = parts_of(losses)
    assert isinstance(part, TrajectoryMatch)
    assert (part.max_abs_difference, part.guards.steps) == (0.01, 100)
    [part] = parts_of(ratio)
    assert isinstance(part, ThroughputRatio)
    assert (part.at_least, part.trajectory) == (3.0, "G-1")
    assert losses.upstream == "G-1 of graph (up/graph.yaml:3:3)"
    [listed] = loaded.contract.unchecked
    assert (listed.id, listed.title, listed.source) == ("G-3", "Pretty", "graph: proof_obligations (up/graph.yaml:5:3)")


def test_a_speed_ratio_without_a_loss_claim_is_not_imported_as_executable(call: Call) -> None:
    Path("up/graph.yaml").write_text(SPEED)
    _, lines, _ = call("up/graph.yaml")
    assert lines[2:] == [
        "  no executable check: 1 × a ratio of speeds, but no recognized claim of the file requires equal losses",
        "    G-2: Faster",
    ]


def test_an_imported_speed_ratio_refers_to_the_loss_claim_of_its_own_arms(call: Call) -> None:
    half = "- {id: H-1, property: Half ends alike, formal: FP16_GEMM=1 abs(diff) < 2.0}\n"
    faster = "- {id: H-2, property: Half is faster, formal: FP16_GEMM=1 ratio >= 1.3}\n"
    Path("up/graph.yaml").write_text(GRAPH.replace("promises", half + faster + "promises"))
    call("up", "--write", "ours.yaml")
    [loaded], _ = findings_of([Path("ours.yaml")])
    judged = [(claim.id, part) for claim in loaded.contract.claims for part in parts_of(claim)]
    assert {name: part.trajectory for name, part in judged if isinstance(part, ThroughputRatio)} == {
        "G-2": "G-1",
        "H-2": "H-1",
    }


def test_imported_claims_with_equal_ids_are_prefixed_with_their_file(call: Call) -> None:
    Path("up/other.yaml").write_text(GRAPH.replace("G-2", "G-4"))
    call("up", "--write", "ours.yaml")
    [loaded], _ = findings_of([Path("ours.yaml")])
    assert [claim.id for claim in loaded.contract.claims] == ["graph.G-1", "G-2", "other.G-1", "G-4"]
    ratios = [part for claim in loaded.contract.claims for part in parts_of(claim) if isinstance(part, ThroughputRatio)]
    assert [ratio.trajectory for ratio in ratios] == ["graph.G-1", "other.G-1"]


def test_imported_claims_of_two_files_with_equal_names_get_a_number(call: Call) -> None:
    Path("up/more").mkdir()
    Path("up/more/graph.yaml").write_text(GRAPH)
    call("up", "--write", "ours.yaml")
    [loaded], _ = findings_of([Path("ours.yaml")])
    assert [claim.id for claim in loaded.contract.claims] == ["graph.G-1", "graph.G-2", "graph.G-1-2", "graph.G-2-2"]


def test_an_unreadable_upstream_file_is_named_and_nothing_is_written(call: Call) -> None:
    Path("up/bad.yaml").write_text("a: [")
    code, lines, error = call("up", "--write", "ours.yaml")
    assert code == 11
    assert lines[0].endswith("· 1 error")
    assert "up/bad.yaml:2:1: the file must be well-formed YAML" in error
    assert not Path("ours.yaml").exists()


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        pytest.param(
            GRAPH + "invariants:\n" + f"- {'so ' * 100}\n" * 3000,
            "ours.yaml: a contract must have at most 1048576 bytes; found 1",
            marks=pytest.mark.slow,
        ),
        (
            "name: x\n",
            "ours.yaml: a contract must have at least one claim; found no recognized claim among 0 items; leave out",
        ),
        pytest.param(
            GRAPH + "invariants:\n" + "- so\n" * 6000,
            "ours.yaml: a contract must have at most 50000 values; found more; import fewer files into one contract",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_upstream_files_that_give_no_contract_are_refused(call: Call, text: str, rule: str) -> None:
    Path("up/graph.yaml").write_text(text)
    code, _, error = call("up", "--write", "ours.yaml")
    assert (code, Path("ours.yaml").exists()) == (11, False)
    assert rule in error


def test_import_does_not_replace_an_existing_file(call: Call) -> None:
    Path("ours.yaml").write_text("mine")
    code, lines, error = call("up", "--write", "ours.yaml")
    assert (code, lines) == (2, [])
    assert "ours.yaml: --write must name a new file; found a file that exists; name another file" in error
    assert Path("ours.yaml").read_text() == "mine"


def test_import_also_reads_hidden_files_and_waiver_files_of_a_folder(call: Call) -> None:
    for name in (".hidden.yaml", "waivers.yaml"):
        Path("up", name).write_text(SPEED)
    assert call("up")[1][0].startswith("3 files · 5 items")


def test_importing_a_folder_without_files_is_an_error(call: Call) -> None:
    Path("empty").mkdir()
    assert call("empty")[::2] == (11, "empty: the folder must contain .yaml or .yml files; found none\n")


def test_the_json_output_of_import_contains_every_item(call: Call) -> None:
    code, lines, _ = call("up", "--json")
    [file] = json.loads("\n".join(lines))["files"]
    assert code == 0
    assert [item["id"] for item in file["executable"]] == ["G-1", "G-2"]
    assert file["executable"][1]["judgement"]["at_least"] == 3.0
    assert [(item["id"], item["where"]) for item in file["no_executable_check"]] == [("G-3", "up/graph.yaml:5:3")]
    assert [(one["path"], one["values"]) for one in file["left_out"]] == [("metadata", 1), ("promises", 2)]


def test_check_counts_imported_claims_without_a_check(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    call("up", "--write", "ours.yaml")
    print_findings([Path("ours.yaml")], as_json=False)
    assert capsys.readouterr().out == (
        "1 contract · 2 claims · 1 without an executable check · 0 errors · 2 warnings\n"
    )
