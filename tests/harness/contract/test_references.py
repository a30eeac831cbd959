"""References and bounds within a contract, each with its exact message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.contract.load import load_contract
from harness.errors import ContractError

Toy = Callable[..., Path]


def _another(kind: str, *lines: str) -> str:
    """A second claim; its kind stands in line 26, `lines` from 27 on, indented by 4."""
    body = "".join(f"    {line}\n" for line in (f"kind: {kind}", *lines))
    return f"  - id: TOY-002\n    title: Another\n{body}"


MATCHED = ("candidate: fast", "baseline: plain", "max_abs_difference: 1", "guards: {steps: 10}")
TWO_DTYPES = "parameter_dtypes: {candidate: bfloat16, baseline: float32}"
NEAR = "ends: {control: waiting, at_most: 0.01}"
NOT_THE_BASELINE = (
    "the control of `ends` must have the baseline's settings; found 'waiting', whose settings differ from those of "
    "'plain'; use the baseline's settings; the harness itself changes the control's initial parameters by a rounding"
)
ACCUMULATED = ("candidate: fast", "baseline: plain", "micro_batches: 2", "max_relative_difference: 0.1")
TWO_PRECISIONS = "precisions: {candidate: bfloat16, baseline: float32}"
CLIPPED = "clipped_norm: {at_most: 1, relative_rounding: 0}"
EDITS = [
    (
        "candidate: fast",
        "candidate: fats",
        "15:16: `candidate` must name an existing arm; found 'fats'; did you mean 'fast'?",
    ),
    (
        "baseline: plain",
        "baseline: zzz",
        "16:15: `baseline` must name an existing arm; found 'zzz'; use one of: fast, plain, waiting",
    ),
    (
        "baseline: plain",
        "baseline: fast",
        (
            "16:15: an arm must not be compared with itself; found 'fast' as `candidate` and as `baseline`; name "
            "another "
            "arm"
        ),
    ),
    (
        "judged_on: [small]",
        "judged_on: [smal]",
        "20:17: `judged_on` must name an existing workload; found 'smal'; did you mean 'small'?",
    ),
    (
        "judged_on: [small]",
        "judged_on: [small, small]",
        "20:24: `judged_on` must name each workload once; found 'small' again; remove it",
    ),
    (
        "guards: {steps: 10}",
        "guards: {steps: 11}",
        (
            "19:21: `guards.steps` (11) must not exceed the workload's steps; found workload 'small' has 10 steps; "
            "lower the number, or give the workload more steps"
        ),
    ),
    (
        "guards: {steps: 10}",
        "guards: {steps: 10, distinct_batches: 12}",
        (
            "19:43: `guards.distinct_batches` (12) must not exceed the workload's steps; found workload 'small' has 10 "
            "steps; lower the number, or give the workload more steps"
        ),
    ),
    (
        "guards: {steps: 10}",
        "guards: {steps: 10, clip_active_steps: 13}",
        (
            "19:44: `guards.clip_active_steps` (13) must not exceed the workload's steps; found workload 'small' has "
            "10 "
            "steps; lower the number, or give the workload more steps"
        ),
    ),
    (
        "guards: {steps: 10}",
        "guards: {steps: 10, training_effect: {control: waiting, last: 11, at_least: 0.2}}",
        (
            "19:67: `guards.training_effect.last` (11) must not exceed the workload's steps; found workload 'small' "
            "has 10 "
            "steps; lower the number, or give the workload more steps"
        ),
    ),
    (
        "guards: {steps: 10}",
        "guards: {steps: 10, training_effect: {control: untrained, last: 2, at_least: 0.2}}",
        (
            "19:52: `guards.training_effect.control` must name an existing arm; found 'untrained'; use one of: fast, "
            "plain, waiting"
        ),
    ),
    (
        "guards: {steps: 10}",
        "guards: {steps: 10, training_effect: {control: plain, last: 2, at_least: 0.2}}",
        (
            "19:52: an arm must not be compared with itself; found 'plain' as `baseline` and as "
            "`guards.training_effect.control`; name another arm"
        ),
    ),
    (
        "    candidate: fast",
        "    mechanism: traced\n    candidate: waiting",
        (
            "16:16: the candidate of a claim about a capture must capture its step; found 'waiting'; "
            "give it `capture: step` or `capture: backward`"
        ),
    ),
]
CLAIMS = [
    (
        _another("capture", "candidate: fast").replace("TOY-002", "TOY-001"),
        "24:9: claim ids must be unique; found 'TOY-001' again; rename one of the two",
    ),
    (
        _another("gradient_match", "candidate: fast", "baseline: plain", "equality: bitwise", "steps: [0, 10]"),
        (
            "30:16: step 10 must be one of the workload's steps, counted from 0; found workload 'small' has 10 steps; "
            "lower the number, or give the workload more steps"
        ),
    ),
    (
        _another("gradient_match", "candidate: fast", "baseline: plain", "equality: bitwise", "steps: [1, 1]"),
        "30:12: `steps` must not name a step twice; found [1, 1]; remove the repeated step",
    ),
    *(
        (
            _another("gradient_match", "candidate: fast", f"{field}: {value}", "steps: [1]", CLIPPED),
            (
                f"28:{7 + len(field)}: `{field}` compares with a baseline, so the claim must name a `baseline`; found "
                "none; "
                f"name a `baseline`, or leave `{field}` out"
            ),
        )
        for field, value in (("equality", "bitwise"), ("max_abs_difference", 1), ("max_relative_difference", 1))
    ),
    (
        _another(
            "gradient_match",
            "candidate: fast",
            CLIPPED,
            "steps: [1]",
            "clip_active_steps: 11",
        ),
        (
            "30:24: `clip_active_steps` (11) must not exceed the workload's steps; found workload 'small' has 10 "
            "steps; "
            "lower the number, or give the workload more steps"
        ),
    ),
    (
        _another("throughput_ratio", "candidate: fast", "baseline: plain", "at_least: 1.1", "trajectory: TOY-01"),
        (
            "30:17: `trajectory` must name a trajectory_match claim of this contract that compares losses, and not "
            "only in the first step; "
            "found 'TOY-01'; did you mean 'TOY-001'?"
        ),
    ),
    (
        _another("throughput_ratio", "candidate: fast", "baseline: plain", "at_least: 1.1", "trajectory: TOY-002"),
        (
            "30:17: `trajectory` must name a trajectory_match claim of this contract that compares losses, and not "
            "only in the first step; "
            "found 'TOY-002'; did you mean 'TOY-001'?"
        ),
    ),
    (
        _another("host_syncs", "candidate: {arm: fast, exactly: 0}", "control: {arm: waiting, exactly: 0}"),
        (
            "28:14: the control must have at least one host sync: give it `exactly` with at least 1; found 0; "
            "name an arm that synchronizes"
        ),
    ),
    (
        _another("host_syncs", "candidate: {arm: fast, exactly: 0}", "control: {arm: waiting, at_most: 9}"),
        (
            "28:14: the control must have at least one host sync: give it `exactly` with at least 1; found no "
            "`exactly`; "
            "name an arm that synchronizes"
        ),
    ),
    (
        _another("host_syncs", "candidate: {arm: fast, exactly: 0}", "control: {arm: fast, exactly: 1}"),
        (
            "28:20: an arm must not be compared with itself; found 'fast' as `candidate.arm` and as `control.arm`; "
            "name another arm"
        ),
    ),
    (
        _another("capture", "candidate: fast", "nodes_at_least: 5", "nodes_at_most: 4"),
        "29:20: `nodes_at_most` must not be below `nodes_at_least`; found 4 < 5",
    ),
    (
        _another("capture", "candidate: plain"),
        (
            "27:16: the candidate of a claim about a capture must capture its step; found 'plain'; "
            "give it `capture: step` or `capture: backward`"
        ),
    ),
    (
        _another("capture", "candidate: fast", "captures: 11"),
        (
            "28:15: `captures` (11) must not exceed the workload's steps; found workload 'small' has 10 steps; "
            "lower the number, or give the workload more steps"
        ),
    ),
    (
        _another("memory_steady", "candidate: fast", "per: replay", "after: 10", "growth_at_most: 0.01"),
        (
            "29:12: at least one step must follow after the first 10 steps (`after`); found workload 'small' has 10 "
            "steps; lower the number, or give the workload more steps"
        ),
    ),
    (
        _another("trajectory_match", *MATCHED, "equality: bitwise", TWO_PRECISIONS),
        "31:15: arms of two precisions can be compared only within a bound; found `bitwise`; write `equality: within`",
    ),
    (
        _another(
            "trajectory_match", *MATCHED, "equality: within", "precisions: {candidate: float32, baseline: float32}"
        ),
        "32:17: `precisions` must be two different precisions; found `float32` for both",
    ),
    (
        _another("trajectory_match", *MATCHED, "equality: bitwise", TWO_DTYPES),
        "31:15: arms of two precisions can be compared only within a bound; found `bitwise`; write `equality: within`",
    ),
    (
        _another(
            "trajectory_match",
            *MATCHED,
            "equality: within",
            "parameter_dtypes: {candidate: bfloat16, baseline: float16}",
        ),
        (
            "32:23: one of the two `parameter_dtypes` must represent all values of the other; found `bfloat16` and "
            "`float16`; "
            "name float32 or float64 as one of them"
        ),
    ),
    (
        _another("trajectory_match", *MATCHED, "equality: bitwise", NEAR),
        (
            f"32:21: {NOT_THE_BASELINE}\ntoy.yaml:32:11: `ends` is only for arms that are compared within a bound, and "
            "not only in the first step; found "
            "`bitwise`, which compares every bit of the ends; leave `ends` out"
        ),
    ),
    (
        _another("trajectory_match", *MATCHED, "equality: within", "compare: first", NEAR),
        (
            f"33:21: {NOT_THE_BASELINE}\ntoy.yaml:33:11: `ends` is only for arms that are compared within a bound, and "
            "not only in the first step; found "
            "`compare: first`; leave `ends` out"
        ),
    ),
    (
        _another("trajectory_match", *MATCHED, "equality: within", NEAR),
        f"32:21: {NOT_THE_BASELINE}",
    ),
    (
        _another("trajectory_match", *MATCHED, "equality: within", NEAR.replace("waiting", "plain")),
        (
            "32:21: an arm must not be compared with itself; found 'plain' as `baseline` and as `ends.control`; "
            "name another arm"
        ),
    ),
    (
        _another("accumulation", *ACCUMULATED, "steps: [0, 0]"),
        "31:12: `steps` must not name a step twice; found [0, 0]; remove the repeated step",
    ),
    (
        _another("accumulation", *ACCUMULATED, "steps: [0, 10]"),
        (
            "31:16: step 10 must be one of the workload's steps, counted from 0; found workload 'small' has 10 steps; "
            "lower the number, or give the workload more steps"
        ),
    ),
    (
        _another("runs_differ", "candidate: fast", "baseline: plain", "steps: 11", "losses_from: 0"),
        (
            "29:12: `steps` (11) must not exceed the workload's steps; found workload 'small' has 10 steps; "
            "lower the number, or give the workload more steps"
        ),
    ),
    (
        _another("runs_differ", "candidate: fast", "baseline: plain", "steps: 10", "losses_from: 10"),
        (
            "30:18: `losses_from` (10) must be one of the workload's steps, counted from 0; found workload 'small' has "
            "10 steps; "
            "lower the number, or give the workload more steps"
        ),
    ),
    (
        _another("capture_fallback", "candidate: plain", "baseline: waiting", "steps: 10"),
        (
            "27:16: the candidate of a claim about a capture must capture its step; found 'plain'; "
            "give it `capture: step` or `capture: backward`"
        ),
    ),
    (
        _another("prewarm", "candidate: fast", "scope: device", "target: sm_90"),
        (
            "29:13: `scope: device` is always about the machine's device, so `target` must not name an architecture; "
            "found 'sm_90'; use `scope: coverage`, or leave `target` out"
        ),
    ),
    (
        _another("composite", "parts:", "- {kind: capture, candidate: fast}", "- {kind: capture, candidate: fats}"),
        "29:34: `candidate` must name an existing arm; found 'fats'; did you mean 'fast'?",
    ),
]


def _message(path: Path) -> str | None:
    try:
        load_contract(path)
    except ContractError as error:
        return str(error)
    return None


@pytest.mark.parametrize(("old", "new", "message"), EDITS)
def test_a_broken_reference_in_an_edited_claim_is_refused(toy: Toy, old: str, new: str, message: str) -> None:
    assert _message(toy(old, new)) == f"toy.yaml:{message}"


@pytest.mark.parametrize(("claim", "message"), CLAIMS)
def test_a_broken_reference_in_an_added_claim_is_refused(toy: Toy, claim: str, message: str) -> None:
    assert _message(toy(claim=claim)) == f"toy.yaml:{message}"


def test_a_cuda_graph_claim_on_a_cpu_workload_is_refused(toy: Toy) -> None:
    path = toy("steps: 10}\narms", "steps: 10, needs: {device: cpu}}\narms")
    path.write_text(path.read_text().replace("    baseline: plain", "    baseline: plain\n    mechanism: cuda_graph"))
    assert _message(path) == (
        "toy.yaml:12:5: a claim with `mechanism: cuda_graph` must be judged on a CUDA device; found workload 'small', "
        "which needs device cpu; "
        "name a workload that needs cuda, or use `mechanism: traced`"
    )


@pytest.mark.parametrize(
    "claim",
    [
        _another("memory_steady", "candidate: fast", "per: replay", "after: 9", "growth_at_most: 0"),
        _another("memory_steady", "candidate: fast", "per: recapture", "after: 10", "growth_at_most: 0"),
        _another("gradient_match", "candidate: fast", "baseline: plain", "equality: bitwise", "steps: [0, 9]"),
        _another("throughput_ratio", "candidate: fast", "baseline: plain", "at_least: 1.1", "trajectory: TOY-001"),
        _another("capture", "candidate: fast", "nodes_at_least: 5", "nodes_at_most: 5", "captures: 10"),
        _another("trajectory_match", *MATCHED, "equality: within", TWO_PRECISIONS),
        _another("runs_differ", "candidate: fast", "baseline: plain", "steps: 10", "losses_from: 9"),
        _another("capture_fallback", "candidate: fast", "baseline: plain", "steps: 10"),
        _another("host_syncs", "candidate: {arm: fast, exactly: 0}", "control: {arm: waiting, exactly: 1}"),
    ],
)
def test_a_value_equal_to_its_limit_is_accepted(toy: Toy, claim: str) -> None:
    assert _message(toy(claim=claim)) is None
