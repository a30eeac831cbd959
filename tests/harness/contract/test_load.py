"""Loading: each bad contract with the exact message its author will read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.contract.load import load_contract, load_contracts
from harness.contract.schema import parts_of
from harness.errors import ContractError, ContractErrors, UsageError
from harness.kinds.trajectory.model import TrajectoryMatch

Toy = Callable[..., Path]

KINDS = (
    "trajectory_match, repeatability, runs_differ, gradient_match, accumulation, step_match, step_accuracy, not_worse, "
    "resume, evaluation, throughput_ratio, capture, capture_fallback, host_syncs, long_replay, memory_steady, "
    "peak_memory, kernel_match, prewarm, ptx_target, ranks_agree, ranks_match, composite"
)
SORTED = ", ".join(sorted(KINDS.split(", ")))
NAME = "'^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$'"
BAD_VALUES = [
    (
        "batch_size: 2,",
        "batch_size: 2, batchsize: 3,",
        "6:38: unknown key; found 'batchsize'; did you mean 'batch_size'?",
    ),
    (
        "{steps: 10}\n    judged_on",
        "{steps: 10, distinct_batch: 3}\n    judged_on",
        "19:25: unknown key; found 'distinct_batch'; did you mean 'distinct_batches'?",
    ),
    (
        "kind: trajectory_match",
        "kind: trajectory_mach",
        "14:11: unknown kind; found 'trajectory_mach'; did you mean 'trajectory_match'?",
    ),
    ("    kind: trajectory_match\n", "", f"12:5: the key 'kind' is required; use one of: {KINDS}"),
    (
        "equality: bitwise",
        "equality: bitwize",
        "17:15: 'equality' must be one of: bitwise, within, noise; found 'bitwize'; did you mean 'bitwise'?",
    ),
    (
        "capture: step",
        "capture: steps",
        "8:19: 'capture' must be one of: none, step, backward; found 'steps'; did you mean 'step'?",
    ),
    ("0.1", ".nan", "18:25: numbers must be finite; found .nan"),
    ("0.1", "-1", "18:25: 'max_abs_difference' must be greater than 0; found -1"),
    ("0.1", "'0.1'", "18:25: 'max_abs_difference' must be a valid number; found '0.1'; write `0.1`"),
    ("0.1", "'1_000'", "18:25: 'max_abs_difference' must be a valid number; found '1_000'; write `1000`"),
    ("0.1", "'-1e-5'", "18:25: 'max_abs_difference' must be a valid number; found '-1e-5'; write `-1.0e-5`"),
    ("0.1", "'much'", "18:25: 'max_abs_difference' must be a valid number; found 'much'"),
    ("0.1", f"'{'9' * 5000}'", f"18:25: 'max_abs_difference' must be a valid number; found '{'9' * 56}..."),
    ("steps: 10}\narms", "steps: '+1_0'}\narms", "6:57: 'steps' must be a valid integer; found '+1_0'; write `10`"),
    ("steps: 10}\narms", "steps: '1e1'}\narms", "6:57: 'steps' must be a valid integer; found '1e1'"),
    ("steps: 10}\narms", "steps: null}\narms", "6:57: 'steps' must be a valid integer; found nothing; write a number"),
    ("steps: 10}\narms", "steps: -5}\narms", "6:57: 'steps' must be greater than or equal to 1; found -5"),
    (
        "steps: 10}\narms",
        "steps: 10, seed: 12345678901234567890123456}\narms",
        (
            "6:67: a whole number must have at most 64 bits; found 12345678901234567890123456; "
            "write a smaller number, or a float: `12345678901234567890123456.0`"
        ),
    ),
    (
        "steps: 10}\narms",
        "steps: 9223372036854775808}\narms",
        (
            "6:57: a whole number must have at most 64 bits; found 9223372036854775808; "
            "write a smaller number, or a float: `9223372036854775808.0`"
        ),
    ),
    ("kind: trajectory_match", "kind: 3", f"14:11: unknown kind; found 3; use one of: {SORTED}"),
    ("kind: trajectory_match", "kind: null", f"14:11: unknown kind; found nothing; use one of: {SORTED}"),
    ("kind: trajectory_match", "kind: [capture]", "14:11: unknown kind; found a list of 1; did you mean 'capture'?"),
    ("steps: 10}\narms", "steps: 1.5}\narms", "6:57: 'steps' must be a valid integer; found 1.5"),
    ("steps: 10}\narms", "steps: true}\narms", "6:57: 'steps' must be a valid integer; found true"),
    ("seq_len: 8", "seq_len: -1", "6:47: 'seq_len' must be greater than or equal to 1, or a valid list; found -1"),
    ("seq_len: 8", "seq_len: [8, 0]", "6:51: 'seq_len[1]' must be greater than or equal to 1; found 0"),
    (
        "seq_len: 8",
        "seq_len: [8]",
        "6:47: 'seq_len' must be a valid integer, or have at least 2 items; found a list of 1",
    ),
    ("id: toy-v1\n", "", "1:1: the key 'id' is required; add it"),
    ("id: toy-v1", "id: to y", f"2:5: 'id' must match pattern {NAME}; found 'to y'"),
    ("id: toy-v1", "id: 1", "2:5: 'id' must be a valid string; found 1"),
    ("title: A toy contract", "title:", "3:7: 'title' must be a valid string; found nothing"),
    ("  small: {", "  bad name: {", f"6:3: a name must match pattern {NAME}; found 'bad name'"),
    ("    guards: {steps: 10}\n", "", "12:5: the key 'guards' is required; add it"),
    ("guards: {steps: 10}", "guards: 3", "19:13: 'guards' must be a mapping; found 3"),
    ("{capture: step}", "3", "8:9: 'fast' must be a mapping; found 3"),
    (
        "{capture: step}",
        "{capture: step, x: [1]}",
        (
            "8:28: 'x' must be a valid boolean, or a valid integer, or a valid number, or a valid string; "
            "found a list of 1"
        ),
    ),
    (
        "schema: contract/v2",
        "schema: contract/v3",
        (
            "1:9: 'schema' must name a known version of the language ('contract/v2' or 'contract/v1'); found "
            "'contract/v3'; write `schema: contract/v2`"
        ),
    ),
    (
        "schema: contract/v2\n",
        "",
        (
            "1:1: the key 'schema' is required; write `schema: contract/v2`; "
            "move a file that is not a contract to another folder, or to a hidden one"
        ),
    ),
]


def _message(path: Path) -> str:
    with pytest.raises(ContractError) as error:
        load_contract(path)
    return str(error.value)


@pytest.mark.parametrize(("old", "new", "message"), BAD_VALUES)
def test_an_invalid_contract_value_is_refused_at_its_position(toy: Toy, old: str, new: str, message: str) -> None:
    assert _message(toy(old, new)) == f"toy.yaml:{message}"


def _claim(kind: str, *lines: str) -> str:
    body = "".join(f"    {line}\n" for line in (f"kind: {kind}", *lines))
    return f"  - id: TOY-002\n    title: Another\n{body}"


def _ratio(line: str) -> str:
    return _claim("throughput_ratio", "candidate: fast", "baseline: plain", "at_least: 1", "trajectory: TOY-01", line)


def _excusing(excuses: str) -> str:
    lines = ("candidate: fast", "baseline: plain", "steps: [1]", "equality: bitwise", f"may_end_apart: {excuses}")
    return _claim("gradient_match", *lines)


def _parts(*parts: str) -> str:
    return _claim("composite", "parts:", *(f"- {{{part}}}" for part in parts))


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        (
            _parts(
                "kind: capture, candidate: fast",
                "kind: host_syncs, candidate: {arm: fast, exactly: 0}, control: {arm: waiting, exactly: 1, at_mst: 2}",
            ),
            "toy.yaml:29:98: unknown key; found 'at_mst'; did you mean 'at_most'?",
        ),
        (
            _parts(
                "kind: capture, candidate: fast",
                "kind: host_syncs, candidate: {arm: fast}, control: {arm: waiting, exactly: 1}",
            ),
            "toy.yaml:29:43: a number of host syncs needs exactly one bound; give either `exactly` or `at_most`",
        ),
        (
            _claim("capture", "capture: 3", "candidate: fast"),
            "toy.yaml:27:5: unknown key; found 'capture'; did you mean 'captures'?",
        ),
        (
            _claim("kernel_match", "candidate: fast", "operations: [clip]", "max_relative_error: {float64: 1.0e-6}"),
            "toy.yaml:29:26: unknown key; found 'float64'; did you mean 'float16'?",
        ),
        (
            _claim("gradient_match", "candidate: fast", "steps: [1]"),
            "toy.yaml:26:11: a gradient_match claim compares nothing; give it `baseline`, `clipped_norm` or both",
        ),
        (
            _claim("gradient_match", "candidate: fast", "baseline: plain", "steps: [1]"),
            "toy.yaml:28:15: a claim with a baseline needs `equality` and, for `equality: within`, a bound",
        ),
        (
            _claim(
                "throughput_ratio",
                "candidate: fast",
                "baseline: plain",
                "at_least: 1",
                "trajectory: TOY-01",
                "limits: {sm_clock_spread: 0.06}",
            ),
            (
                "toy.yaml:31:31: a spread above 0.05 needs `clock_advantage`, the largest share by which the clock may "
                "favour the winner"
            ),
        ),
        (
            _ratio("processes: 4"),
            "toy.yaml:31:16: 'processes' must be greater than or equal to 5; found 4",
        ),
        (
            _ratio("confidence: 0.949"),
            "toy.yaml:31:17: 'confidence' must be greater than or equal to 0.95; found 0.949",
        ),
        (
            _ratio("measurements: 5"),
            "toy.yaml:31:19: 'measurements' must be less than or equal to 4; found 5",
        ),
        (
            _ratio("measurements: 0"),
            "toy.yaml:31:19: 'measurements' must be greater than or equal to 1; found 0",
        ),
        (
            _excusing('{optimizer group0.step: ""}'),
            "toy.yaml:31:44: 'optimizer group0.step' must be a reason in your own words; found ''",
        ),
        (
            _excusing("{parameters 0.weight: why}"),
            (
                "toy.yaml:31:21: a name must name a counter in the form that verdicts use, such as `optimizer "
                "group0.step`, and not a parameter, a buffer, a generator or a moment such as "
                "`exp_avg`; found 'parameters 0.weight'"
            ),
        ),
        (
            _excusing("{optimizer 0.weight.exp_avg: why}"),
            (
                "toy.yaml:31:21: a name must name a counter in the form that verdicts use, such as `optimizer "
                "group0.step`, and not a parameter, a buffer, a generator or a moment such as "
                "`exp_avg`; found "
                "'optimizer 0.weight.exp_avg'"
            ),
        ),
        (
            _claim(
                "ptx_target",
                "candidate: fast",
                "policy: exact",
                "target: sm_90",
                "may_end_apart: {optimizer group0.step: why}",
            ),
            (
                "toy.yaml:30:20: `may_end_apart` is only for claims that compare the state at the end; "
                "found `ptx_target`, which does not compare it; leave `may_end_apart` out"
            ),
        ),
    ],
)
def test_an_invalid_claim_is_refused_at_its_position(toy: Toy, claim: str, message: str) -> None:
    assert _message(toy(claim=claim)) == message


def test_all_errors_of_a_contract_are_reported_in_file_order(toy: Toy) -> None:
    path = toy("    baseline: plain\n    equality: bitwise", "    basline: plain\n    equality: 3")
    with pytest.raises(ContractErrors) as error:
        load_contract(path)
    assert [str(one) for one in error.value.errors] == [
        "toy.yaml:12:5: the key 'baseline' is required; add it",
        "toy.yaml:16:5: unknown key; found 'basline'; did you mean 'baseline'?",
        (
            "toy.yaml:17:15: 'equality' must be one of: bitwise, within, noise; found 3; "
            "use one of: bitwise, noise, within"
        ),
    ]
    assert str(error.value).count("\n") == 2


@pytest.mark.parametrize(("text", "got"), [("- 1\n", "a list"), ("x\n", "a single value")])
def test_a_contract_that_is_not_a_mapping_is_refused(toy: Toy, text: str, got: str) -> None:
    path = toy()
    path.write_text(text)
    assert _message(path) == (
        f"toy.yaml:1:1: a contract must be a mapping of keys to values; found {got}; "
        "move a file that is not a contract to another folder, or to a hidden one"
    )


def test_a_loaded_contract_keeps_its_text_and_positions(toy: Toy) -> None:
    path = toy("0.1", "1.0e-5")
    loaded = load_contract(path)
    (part,) = parts_of(loaded.contract.claims[0])
    assert isinstance(part, TrajectoryMatch)
    assert part.max_abs_difference == 1e-5
    assert loaded.digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert loaded.text.encode() == path.read_bytes()
    assert loaded.position(("claims", 0, "candidate")) == (15, 16)
    assert loaded.where("claims", 0, "nothing") == "toy.yaml:12:5"


def test_a_quoted_word_that_yaml_1_1_takes_for_false_is_a_name(toy: Toy) -> None:
    path = toy("plain: {capture: none}", "'no': {capture: none}")
    path.write_text(path.read_text().replace("baseline: plain", "baseline: 'no'"))
    assert set(load_contract(path).contract.arms) == {"fast", "no", "waiting"}


def test_contract_directories_are_read_sorted_and_each_file_once(toy: Toy, tmp_path: Path) -> None:
    folder = tmp_path / "several"
    folder.mkdir()
    for name in ("b", "a"):
        (folder / f"{name}.yaml").write_text(toy("id: toy-v1", f"id: {name}").read_text())
    (folder / "README.md").write_text("no contract")
    assert [one.contract.id for one in load_contracts([folder])] == ["a", "b"]
    assert [one.contract.id for one in load_contracts([folder / "b.yaml", folder])] == ["b", "a"]


def test_contract_errors_of_all_files_are_reported_together(toy: Toy, tmp_path: Path) -> None:
    folder = tmp_path / "several"
    folder.mkdir()
    (folder / "a.yaml").write_text("")
    (folder / "b.yaml").write_text(toy("0.1", "-1").read_text())
    with pytest.raises(ContractErrors) as error:
        load_contracts([Path("several")])
    assert [str(one) for one in error.value.errors] == [
        "several/a.yaml:1:1: a contract must not be empty; found an empty file",
        "several/b.yaml:18:25: 'max_abs_difference' must be greater than 0; found -1",
    ]


def test_all_missing_contract_paths_are_listed_before_any_file_is_read(toy: Toy) -> None:
    with pytest.raises(UsageError, match=r"^missing\.yaml, none: the path must exist; found nothing there"):
        load_contracts([toy("0.1", "-1"), Path("missing.yaml"), Path("none")])


def test_two_contract_files_with_one_id_are_refused(toy: Toy) -> None:
    text = toy().read_text()
    Path("other.yaml").write_text(text)
    with pytest.raises(ContractErrors) as error:
        load_contracts([Path("other.yaml"), Path("toy.yaml")])
    assert str(error.value) == (
        "toy.yaml:2:5: contract ids must be unique; found 'toy-v1' again; rename one: other.yaml:2:5 already has this "
        "id"
    )


def test_a_directory_without_contracts_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    with pytest.raises(ContractErrors) as error:
        load_contracts([Path("empty")])
    assert str(error.value) == (
        "empty: a folder must contain contracts (every .yaml and .yml file in it at any depth, except hidden files, "
        "shared files, waivers.yaml and accepted-baselines.yaml); found none"
    )
