"""The reader of foreign contracts, on small made-up files of the forms that were met, and of none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import ContractError
from harness.extras.upstream.items import (
    CLAIM_SECTIONS,
    NO_CLAIM,
    NOT_NAMED,
    Item,
    LeftOut,
    UpstreamContract,
    read_upstream,
    reasons,
)

WIDGET = """\
metadata: {version: 1.0.0, description: "Widgets are\\n  even."}
equations:
  evenness:
    formula: w % 2 == 0
    invariants: [Widgets stay even]
    preconditions: [w > 0]
proof_obligations:
- id: W-EQ-001
  property: Even widgets stay even
  tolerance: 1.0e-5
  lean: {status: proved, depends_on: [a, b]}
- {type: invariant, property: Widgets are positive}
falsification_tests:
- {id: F-W-001, rule: Evenness, test: "rm -rf / # a text like any other"}
upper_bounds: {latency_ms: 3}
qa_gate: {id: F-W, checks: [even], min_coverage: 0.9}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path()


def read(text: str) -> UpstreamContract:
    path = Path("widget-v1.yaml")
    path.write_text(text, encoding="utf-8")
    return read_upstream(path)


def test_every_upstream_claim_is_an_item_with_its_text_and_position(folder: Path) -> None:
    contract = read(WIDGET)
    assert (contract.id, contract.title) == ("widget-v1", "Widgets are even.")
    obligation = {
        "id": "W-EQ-001",
        "property": "Even widgets stay even",
        "tolerance": "1e-05",
        "lean.status": "proved",
        "lean.depends_on": "a; b",
    }
    test = {"id": "F-W-001", "rule": "Evenness", "test": "rm -rf / # a text like any other"}
    positive = {"type": "invariant", "property": "Widgets are positive"}
    assert contract.items == [
        Item("equations.evenness.invariants.1", "invariants", {"": "Widgets stay even"}, "widget-v1.yaml:5:18"),
        Item("equations.evenness.preconditions.1", "preconditions", {"": "w > 0"}, "widget-v1.yaml:6:21"),
        Item("W-EQ-001", "proof_obligations", obligation, "widget-v1.yaml:8:3"),
        Item("proof_obligations.2", "proof_obligations", positive, "widget-v1.yaml:12:3"),
        Item("F-W-001", "falsification_tests", test, "widget-v1.yaml:14:3"),
        Item("upper_bounds.latency_ms", "upper_bounds", {"": "latency_ms: 3"}, "widget-v1.yaml:15:28"),
        Item("qa_gate.checks.1", "checks", {"": "even"}, "widget-v1.yaml:16:29"),
        Item("qa_gate.min_coverage", "min_coverage", {"": "min_coverage: 0.9"}, "widget-v1.yaml:16:50"),
    ]


def test_upstream_values_that_are_not_claims_are_left_out_with_a_reason(folder: Path) -> None:
    left_out = read(WIDGET).left_out
    assert [(one.path, one.values) for one in left_out] == [
        ("metadata", 2),
        ("equations.evenness.formula", 1),
        ("qa_gate.id", 1),
    ]
    assert reasons(left_out) == {NO_CLAIM["formula"]: 1, NO_CLAIM["metadata"]: 3}


def test_an_unknown_upstream_section_is_listed_as_not_read(folder: Path) -> None:
    contract = read("promises:\n- {id: P-1, text: It is fast}\n- {id: P-2, text: It is small, bound: 3}\nname: x\n")
    assert contract.items == []
    assert contract.left_out == [
        LeftOut("widget-v1.yaml:2:1", "promises", 5, NOT_NAMED),
        LeftOut("widget-v1.yaml:4:7", "name", 1, NO_CLAIM["name"]),
    ]


def test_a_claim_inside_an_unknown_upstream_section_is_listed(folder: Path) -> None:
    contract = read("promises: {fast: {note: 1, upper_bounds: [1 ms]}, small: [2, 3]}\n")
    assert [item.id for item in contract.items] == ["promises.fast.upper_bounds.1"]
    assert [(one.path, one.values, one.why) for one in contract.left_out] == [
        ("promises.fast.note", 1, NOT_NAMED),
        ("promises.small", 2, NOT_NAMED),
    ]


def test_an_empty_upstream_section_is_left_out_as_empty(folder: Path) -> None:
    contract = read("invariants: []\nproof_obligations:\n")
    assert [(one.path, one.why) for one in contract.left_out] == [
        ("invariants", "empty"),
        ("proof_obligations", "empty"),
    ]


def test_a_single_upstream_claim_is_distinguished_from_claims_keyed_by_name(folder: Path) -> None:
    contract = read(
        "invariants: {sum_one: {description: Sums to one, formula: s == 1}, ordered: sorted}\n"
        "parity_gate: {metric: cosine, threshold: 0.99}\n"
    )
    assert [(item.id, item.title) for item in contract.items] == [
        ("invariants.sum_one", "Sums to one"),
        ("invariants.ordered", "ordered: sorted"),
        ("parity_gate", "cosine"),
    ]


KEYS = st.sampled_from([*CLAIM_SECTIONS, *NO_CLAIM, "equations", "unheard_of", "rule"])
VALUES = st.recursive(
    st.just("?"),
    lambda inner: st.lists(inner, min_size=1, max_size=3) | st.dictionaries(KEYS, inner, min_size=1, max_size=3),
    max_leaves=12,
)


def numbered(value: Any, numbers: Iterator[int]) -> Any:
    """The same with another text at every leaf."""
    if isinstance(value, dict):
        return {key: numbered(one, numbers) for key, one in value.items()}
    if isinstance(value, list):
        return [numbered(one, numbers) for one in value]
    return f"v{next(numbers)}v"


@given(document=st.dictionaries(KEYS, VALUES, min_size=1, max_size=4))
def test_every_upstream_value_belongs_to_one_item_or_is_listed_as_left_out(
    document: dict[str, Any], tmp_path_factory: Any
) -> None:
    numbers = iter(range(1000))
    text = yaml.safe_dump(numbered(document, numbers))
    values = next(numbers)
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(text)
    try:
        contract = read_upstream(path)
    except ContractError:
        return  # an item of a list of mappings that is none
    words = "|".join(text for item in contract.items for text in item.texts.values())
    in_items = [words.count(f"v{number}v") for number in range(values)]
    assert set(in_items) <= {0, 1}
    assert sum(in_items) + sum(one.values for one in contract.left_out) == values


TWICE = "ids of items must be unique; found 'A' again; rename one: widget-v1.yaml:1:23 already has this id"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1\n", "widget-v1.yaml:1:1: an upstream contract must be a mapping of keys to values; found list"),
        (
            "falsification_tests: [{id: A}, {id: B}, {id: A}]\n",
            f"widget-v1.yaml:1:41: {TWICE}",
        ),
        (
            "falsification_tests: 5\n",
            "widget-v1.yaml:1:22: an item of 'falsification_tests' must be a mapping; found 5",
        ),
        (
            "proof_obligations:\n- text\n",
            "widget-v1.yaml:2:3: an item of 'proof_obligations' must be a mapping; found 'text'",
        ),
        (
            "invariants: [a, ~]\n",
            "widget-v1.yaml:1:17: an item of 'invariants' must be a text or a mapping; found nothing",
        ),
        ("invariants: [a, 3]\n", "widget-v1.yaml:1:17: an item of 'invariants' must be a text or a mapping; found 3"),
        (
            "invariants: [a, {}]\n",
            "widget-v1.yaml:1:17: an item of 'invariants' must be a text or a mapping; found an empty one",
        ),
        ("kani_harnesses: [{id: [1]}]\n", "widget-v1.yaml:1:23: an id must be a text; found list"),
        (
            "a: 1\na: 2\n",
            "widget-v1.yaml:2:1: keys must be unique; found 'a' again; keep one: the key is already defined in line 1",
        ),
        ("a: " + "[" * 70, "widget-v1.yaml:1:67: values must be nested at most 64 deep; found a deeper one"),
        (
            "invariants: [" + "x," * 60_000 + "]",
            "widget-v1.yaml:1:100008: an upstream contract must have at most 50000 values; found more",
        ),
        (
            "invariants:\n" + "- x\n" * 1_000_000,
            "widget-v1.yaml: an upstream contract must have at most 1048576 bytes; found a larger file; split it",
        ),
        (
            "a: !!python/object/apply:os.system ['touch ran']\n",
            (
                "widget-v1.yaml:1:4: the file must not use YAML tags; found "
                "tag:yaml.org,2002:python/object/apply:os.system; remove it"
            ),
        ),
    ],
)
def test_an_unreadable_upstream_file_is_an_error_with_its_place(folder: Path, text: str, message: str) -> None:
    with pytest.raises(ContractError) as raised:
        read(text)
    assert str(raised.value) == message
    assert not Path("ran").exists()


def test_an_upstream_file_that_is_not_utf_8_is_refused_at_the_bad_byte(folder: Path) -> None:
    Path("widget-v1.yaml").write_bytes(b"name: caf\xe9\n")
    with pytest.raises(
        ContractError,
        match=r"^widget-v1\.yaml:1:10: an upstream contract must be UTF-8; found byte "
        r"0xe9",
    ):
        read_upstream(Path("widget-v1.yaml"))


def test_a_missing_upstream_file_is_named_in_the_error(folder: Path) -> None:
    with pytest.raises(ContractError, match=r"^none\.yaml: no such file; check the path$"):
        read_upstream(Path("none.yaml"))
