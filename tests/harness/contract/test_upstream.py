"""The importer of foreign contracts, on small made-up files of the forms that were met."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.contract.upstream import UpstreamClaim, UpstreamContract, import_upstream
from harness.errors import ContractError

TESTS_AND_OBLIGATIONS = """\
metadata:
  version: 1.0.0
  created: '2026-01-02'
  description: >
    Widgets are
    even.
equations:
  evenness: {formula: "w % 2 == 0"}
proof_obligations:
- id: W-EQ-001
  type: equivalence
  property: Even widgets stay even
  formal: 'w % 2 == 0'
  tolerance: 1.0e-5
  applies_to: all
- type: invariant
  property: Widgets are positive
  formal: w > 0
falsification_tests:
- id: F-W-001
  rule: Evenness
  prediction: >
    At most 0.1
    off.
  test: "rm -rf / # a text like any other"
  if_fails: Look at the widget
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path()


def _import(text: str) -> UpstreamContract:
    path = Path("widget-v1.yaml")
    path.write_text(text, encoding="utf-8")
    return import_upstream(path)


def test_tests_and_obligations(folder: Path) -> None:
    assert _import(TESTS_AND_OBLIGATIONS) == UpstreamContract(
        id="widget-v1",
        title="Widgets are even.",
        claims=[
            UpstreamClaim(
                id="F-W-001",
                section="falsification_tests",
                rule="Evenness",
                prediction="At most 0.1 off.",
                test="rm -rf / # a text like any other",
                if_fails="Look at the widget",
            ),
            UpstreamClaim(
                id="W-EQ-001",
                section="proof_obligations",
                rule="Even widgets stay even",
                formal="w % 2 == 0",
                tolerance=1e-5,
            ),
            UpstreamClaim(
                id="proof_obligations-2", section="proof_obligations", rule="Widgets are positive", formal="w > 0"
            ),
        ],
        unread=[],
    )


def test_named_contract_with_a_falsification_list(folder: Path) -> None:
    contract = _import(
        "kind: KernelContract\nname: widget-tiled\ndescription: Tiled widgets.\nfalsification:\n"
        "  - {id: F-1, description: Tiles fit, test: unit tests, evidence: run them}\n"
    )
    assert (contract.id, contract.title, contract.unread) == ("widget-tiled", "Tiled widgets.", [])
    assert contract.claims == [UpstreamClaim(id="F-1", section="falsification", rule="Tiles fit", test="unit tests")]


def test_claims_with_other_names_for_rule_and_consequence(folder: Path) -> None:
    contract = _import(
        "falsification_tests:\n"
        "- {id: F-1, claim: It is fast, test: time it, status: PENDING, action_if_falsified: Profile}\n"
    )
    assert contract.claims[0].rule == "It is fast"
    assert contract.claims[0].if_fails == "Profile"
    assert contract.unread == []


def test_what_cannot_be_read_is_reported(folder: Path) -> None:
    contract = _import(
        "proof_obligations: {a: 1}\n"
        "falsification_tests:\n"
        "- just a text\n"
        "- {id: F-1, rule: R, claim: C, surprise: 1, tolerance: small}\n"
        "- {id: F-2}\n"
    )
    assert [claim.id for claim in contract.claims] == ["F-1", "F-2"]
    assert contract.claims[0].tolerance is None
    assert contract.unread == [
        "widget-v1.yaml:3:3: a claim is not a mapping",
        "widget-v1.yaml:4:29: `claim` left out beside `rule`",
        "widget-v1.yaml:4:42: unknown key `surprise`",
        "widget-v1.yaml:4:56: tolerance 'small' is no number",
        "widget-v1.yaml:5:3: no rule (one of rule, property, claim, description)",
        "widget-v1.yaml:1:20: `proof_obligations` is not a list",
    ]


def test_a_file_without_claims_says_so(folder: Path) -> None:
    contract = _import("name: nothing\n")
    assert contract.claims == []
    assert contract.unread == [
        "widget-v1.yaml:1:1: no claims under falsification_tests, falsification, proof_obligations"
    ]


def test_a_file_that_is_no_mapping_is_refused(folder: Path) -> None:
    with pytest.raises(
        ContractError, match=r"^widget-v1\.yaml:1:1: a contract is a mapping of keys to values; found list$"
    ):
        _import("- 1\n")


def test_a_python_tag_is_refused_and_not_run(folder: Path) -> None:
    with pytest.raises(ContractError, match="no tags"):
        _import("a: !!python/object/apply:os.system ['touch ran']\n")
    assert not Path("ran").exists()
