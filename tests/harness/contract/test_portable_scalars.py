"""Version 2 takes no scalar that readers of YAML 1.1 read otherwise; version 1 does, and the command mends it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness.contract.load import load_contract
from harness.contract.strict_yaml import parse
from harness.errors import ContractError, ContractErrors

Toy = Callable[..., Path]

SIGNS = "0123456789.eE+-_:xobnyYtrufalsON~= "
FORMS = st.one_of(
    st.text(SIGNS, min_size=1, max_size=12),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.integers().map(str),
    st.datetimes().map(str),
    st.dates().map(str),
    st.sampled_from(["on", "Off", "yes", "NO", "y", "N", "~", "null", "true", "0b11", "<<", "=", ".5", "-.5", "1."]),
)


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("1e-5", "1.0e-5"),
        ("1e5", "1.0e+5"),
        ("2.5e3", "2.5e+3"),
        ("-.5", "-0.5"),
        (".5e3", "0.5e+3"),
        ("010", "10"),
        ("08", "8"),
        ("0o17", "15"),
        ("on", '"on"'),
        ("Off", '"Off"'),
        ("yes", '"yes"'),
        ("n", '"n"'),
        ("1:30", '"1:30"'),
        ("0b11", '"0b11"'),
        ("1_000", '"1_000"'),
        ("2026-01-01", '"2026-01-01"'),
        ("=", '"="'),
    ],
)
def test_an_unportable_scalar_comes_with_a_portable_spelling_of_the_same_value(text: str, instead: str) -> None:
    [found] = parse(f"a: {text}\n").unportable
    assert (found.text, found.instead, found.position) == (text, instead, (1, 4))
    assert parse(f"a: {instead}\n").unportable == []
    assert parse(f"a: {instead}\n").value == parse(f"a: {text}\n").value


@given(text=FORMS)
def test_every_accepted_scalar_is_read_the_same_by_yaml_1_1(text: str) -> None:
    try:
        document = parse(f"a: {text}\n")
    except ContractError:
        return
    [instead] = [found.instead for found in document.unportable] or [text]
    written = f"a: {instead}\n"
    theirs, ours = yaml.safe_load(written), parse(written).value
    assert (theirs, [type(value) for value in theirs.values()]) == (ours, [type(value) for value in ours.values()])
    assert ours == document.value


def test_a_number_that_yaml_1_1_reads_as_text_is_refused(toy: Toy) -> None:
    with pytest.raises(ContractError) as error:
        load_contract(toy("0.1", "1e-5"))
    assert str(error.value) == (
        "toy.yaml:18:25: a value must mean the same to every YAML reader; found `1e-5`, which YAML 1.1 reads "
        "differently; write `1.0e-5`"
    )


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("1_000", '`1000`, or `"1_000"` for a text'),
        ("-1_000.5", '`-1000.5`, or `"-1_000.5"` for a text'),
        ("1:30", '`"1:30"`'),
        ("2026-01-01", '`"2026-01-01"`'),
    ],
)
def test_a_number_with_underscores_is_refused_with_a_portable_spelling(toy: Toy, text: str, remedy: str) -> None:
    with pytest.raises(ContractError) as error:
        load_contract(toy("0.1", text))
    assert str(error.value).endswith(f"found `{text}`, which YAML 1.1 reads differently; write {remedy}")


def test_the_version_1_key_on_is_refused_with_its_replacement(toy: Toy) -> None:
    with pytest.raises(ContractError) as error:
        load_contract(toy("judged_on:", "on:"))
    assert str(error.value).endswith("found `on`, which YAML 1.1 reads differently; write `judged_on`")


def test_a_quoted_version_1_key_is_unknown(toy: Toy) -> None:
    with pytest.raises(ContractErrors) as error:
        load_contract(toy("judged_on:", '"on":'))
    assert "unknown key; found 'on'" in str(error.value)


def test_version_1_contracts_still_accept_unportable_numbers(toy: Toy) -> None:
    path: Path = toy("0.1", "1e-5")
    path.write_text(path.read_text().replace("contract/v2", "contract/v1").replace("judged_on", "on"))
    [claim] = load_contract(path).contract.claims
    assert claim.model_dump()["max_abs_difference"] == 1e-5
