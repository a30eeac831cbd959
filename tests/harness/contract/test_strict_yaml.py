"""The strict reader: scalars by YAML 1.2, refusals with their exact messages, both of PyYAML's parsers."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness.contract import strict_yaml
from harness.contract.strict_yaml import MAX_BYTES, MAX_DEPTH, MAX_NODES, nearest, parse, read
from harness.errors import ContractError, ExitCode


@pytest.fixture(params=["libyaml", "pure"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both parsers: PyYAML is often built without libyaml."""
    if request.param == "pure":
        monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    elif not yaml.__with_libyaml__:
        pytest.skip("PyYAML was built without libyaml")
    return str(request.param)


def _refusal(text: str) -> str:
    with pytest.raises(ContractError) as error:
        parse(text, where="c.yaml")
    assert error.value.exit_code == ExitCode.INVALID_CONTRACT
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("-1E+3", -1000.0),
        (".5", 0.5),
        ("1.", 1.0),
        ("12", 12),
        ("+12", 12),
        ("0o17", 15),
        ("0x1F", 31),
        ("017", 17),
        ("no", "no"),
        ("on", "on"),
        ("Yes", "Yes"),
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("null", None),
        ("1:30", "1:30"),
        ("2020-01-01", "2020-01-01"),
        ("1_000", "1_000"),
        ("'1'", "1"),
        ('"true"', "true"),
        ("sm_90", "sm_90"),
    ],
)
def test_scalars_follow_the_yaml_1_2_core_schema(parser: str, text: str, value: object) -> None:
    found = parse(f"a: {text}\n").value["a"]
    assert (type(found), found) == (type(value), value)


def test_folded_and_literal_blocks_are_text(parser: str) -> None:
    assert parse("a: >-\n  1\n  2\nb: |\n  12\n").value == {"a": "1 2", "b": "12\n"}


def test_an_empty_yaml_value_is_null(parser: str) -> None:
    assert parse("a:\nb: [~, ]\n").value == {"a": None, "b": [None]}


def test_integers_are_limited_to_64_bits(parser: str) -> None:
    assert parse("a: [9223372036854775807, -9223372036854775808, 0x7fffffffffffffff]\n").value == {
        "a": [2**63 - 1, -(2**63), 2**63 - 1]
    }
    for text in ("9223372036854775808", "-9223372036854775809", "0x8000000000000000"):
        with pytest.raises(ContractError, match=r"1:4: a whole number must have at most 64 bits"):
            parse(f"a: {text}\n")


def test_a_yaml_merge_key_is_an_ordinary_key(parser: str) -> None:
    assert parse("<<: {a: 1}\n").value == {"<<": {"a": 1}}


def test_a_document_knows_the_position_of_each_key_and_value(parser: str) -> None:
    document = parse("a:\n  - x\n  - {b: 7}\n")
    assert document.position(("a", 1, "b")) == (3, 9)
    assert document.position(("a", 1, "b"), of_key=True) == (3, 6)
    assert document.position(("a", 0)) == (2, 5)
    assert document.position(("a", 1, "missing", 4)) == (3, 5)
    assert document.position(()) == (1, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a: 1\nb: 2\na: 3\n",
            "c.yaml:3:1: keys must be unique; found 'a' again; keep one: the key is already defined in line 1",
        ),
        ("a: &x 1\n", "c.yaml:1:4: the file must not use YAML anchors; found &x; remove it"),
        ("a: *x\n", "c.yaml:1:4: the file must not use YAML aliases; found *x; write the value itself"),
        ("a: !!int '1'\n", "c.yaml:1:4: the file must not use YAML tags; found tag:yaml.org,2002:int; remove it"),
        ("a: !x [1]\n", "c.yaml:1:4: the file must not use YAML tags; found !x; remove it"),
        ("a: .nan\n", "c.yaml:1:4: numbers must be finite; found .nan"),
        ("a: -.inf\n", "c.yaml:1:4: numbers must be finite; found -.inf"),
        ("a: 1e999\n", "c.yaml:1:4: numbers must be finite; found 1e999, which is beyond the largest float"),
        (f"a: {'9' * 5000}\n", "c.yaml:1:4: a number must have at most 100 characters; found 5000 characters"),
        ("1: a\n", "c.yaml:1:1: a key must be a string; found 1; quote it"),
        ("~: a\n", "c.yaml:1:1: a key must be a string; found ~; quote it"),
        ("? [a]\n: b\n", "c.yaml:1:3: a key must be a string; found a list or a mapping; quote it"),
        (
            "%YAML 1.1\n---\na: 1\n",
            "c.yaml:1:1: the file must not use YAML directives; remove the line that begins with %",
        ),
        (
            "---\na: 1\n---\nb: 1\n",
            "c.yaml:3:1: a file must contain only one document; found a second one; use one file for each document",
        ),
        ("", "c.yaml:1:1: a contract must not be empty; found an empty file"),
        ("# nothing\n\n", "c.yaml:1:1: a contract must not be empty; found an empty file"),
        ("a:\n\tb: 1\n", "c.yaml:2:1: indentation must not contain tabs; found U+0009; indent with spaces"),
        ("a:\n  - b\n  \t- c\n", "c.yaml:3:3: indentation must not contain tabs; found U+0009; indent with spaces"),
        ("a: \x00\n", "c.yaml:1:4: the file must not contain control characters; found U+0000; remove it"),
        (
            "a: 1\nb: \u2066x\ufeff\n",
            "c.yaml:2:6: the file must not contain control characters; found U+FEFF; remove it",
        ),
        ("a: b: c\n", "c.yaml:1:5: the file must be well-formed YAML: mapping values are not allowed"),
        ("a: [1\n", "c.yaml:2:1: the file must be well-formed YAML"),
    ],
)
def test_unsupported_yaml_is_refused_by_both_parsers(parser: str, text: str, message: str) -> None:
    found = _refusal(text)
    # The two parsers word malformed YAML differently after the same beginning.
    assert found.startswith(message) if "well-formed" in message else found == message


@pytest.mark.parametrize(
    "text",
    [
        "[" * 20_000,
        "{a: " * 20_000,
        "- " * 20_000,
        "\n".join(" " * level + "a:" for level in range(1_300)),
    ],
    ids=["flow-lists", "flow-mappings", "block-lists", "block-mappings"],
)
def test_deep_nesting_is_refused_at_once(parser: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser stops at the first value that is nested too deeply and does not read the rest of the text."""
    events, asked = strict_yaml.events, itertools.count()

    def counted(text: str) -> Callable[[], object]:
        following = events(text)
        return lambda: (next(asked), following())[1]

    monkeypatch.setattr(strict_yaml, "events", counted)
    assert f"values must be nested at most {MAX_DEPTH} deep; found a deeper one" in _refusal(text)
    assert next(asked) <= 2 * MAX_DEPTH + 4  # a mapping has its key and itself; and stream, document


def test_nesting_equal_to_the_depth_limit_is_accepted(parser: str) -> None:
    value = parse("[" * MAX_DEPTH + "]" * MAX_DEPTH).value
    depth = 0
    while value:
        value, depth = value[0], depth + 1
    assert depth == MAX_DEPTH - 1  # the innermost list is empty


def test_the_number_of_values_in_a_contract_is_limited() -> None:
    assert parse("[" + "1," * (MAX_NODES - 1) + "]").value == [1] * (MAX_NODES - 1)
    found = _refusal("[" + "1," * MAX_NODES + "]")
    assert f": a contract must have at most {MAX_NODES} values; found more" in found


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("c.yaml")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a: 1\nb: caf\xe9\n", "c.yaml:2:7: a contract must be UTF-8; found byte 0xe9; save as UTF-8"),
        ("a: 1\n".encode("utf-16"), "c.yaml:1:1: a contract must be UTF-8; found byte 0xff; save as UTF-8"),
        (
            b"\xef\xbb\xbfa: 1\n",
            "c.yaml:1:1: the file must not begin with a byte order mark; found a UTF-8 BOM; save as UTF-8 without BOM",
        ),
        (b"", "c.yaml:1:1: a contract must not be empty; found an empty file"),
        (
            b"a: '" + b"x" * 10_000_000 + b"'",
            f"c.yaml: a contract must have at most {MAX_BYTES} bytes; found a larger file; split it",
        ),
    ],
    ids=["latin-1", "utf-16", "bom", "empty", "10-MB"],
)
def test_invalid_bytes_in_a_contract_are_refused(file: Path, data: bytes, message: str) -> None:
    file.write_bytes(data)
    with pytest.raises(ContractError) as error:
        read(file)
    assert str(error.value) == message


def test_a_directory_given_as_a_contract_is_refused(file: Path) -> None:
    file.mkdir()
    with pytest.raises(ContractError, match=r"^c\.yaml: a contract must be a file; found a directory$"):
        read(file)


def test_a_missing_contract_file_is_an_error(file: Path) -> None:
    with pytest.raises(ContractError, match=r"^c\.yaml: no such file; check the path$"):
        read(file)


def test_a_contract_path_that_is_a_pipe_is_refused_without_opening_it(file: Path) -> None:
    os.mkfifo(file)
    problem = r"^c\.yaml: a contract must be a regular file; found a pipe, a socket or a device$"
    with pytest.raises(ContractError, match=problem):
        read(file)


def test_an_unreadable_contract_file_is_an_error(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("a: 1\n")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # file modes do not stop root
    with pytest.raises(ContractError, match=r"^c\.yaml: cannot read the file; found Permission denied$"):
        read(file)


def test_both_parsers_read_numbers_to_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "[0.1, 1e-320, 1.7976931348623157e308, -0.0]"
    fast = parse(text).value
    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    assert [number.hex() for number in parse(text).value] == [number.hex() for number in fast]
    assert math.copysign(1, fast[-1]) == -1


@given(st.text(alphabet="ab:-[]{}&*!|>'\"%#?,~ \n\t\r1.e0\u2028\ufeff\x00", max_size=60))
def test_any_yaml_text_is_read_or_refused_with_its_position(text: str) -> None:
    try:
        place = ":".join(map(str, parse(text, where="c.yaml").position(())))
    except ContractError as error:
        place = str(error).removeprefix("c.yaml:")
    assert re.match(r"[1-9]\d*:[1-9]\d*", place), place


def test_an_unknown_name_is_answered_with_a_close_name_or_all_names() -> None:
    assert nearest("basline", ["candidate", "baseline"]) == "did you mean 'baseline'?"
    assert nearest("zzz", ["b", "a"]) == "use one of: a, b"
    assert nearest("zzz", []) == ""


def test_only_the_strict_reader_uses_the_loading_of_pyyaml() -> None:
    """`yaml.load` builds all values before any limit is checked."""
    package = Path(strict_yaml.__file__).parents[1]
    loading = re.compile(r"from yaml\b|\byaml\.(?!safe_dump|SafeDumper)\w*([lL]oad|compose|parse|scan)")
    users = [path.name for path in package.rglob("*.py") if loading.search(path.read_text(encoding="utf-8"))]
    assert users == ["strict_yaml.py"]
