"""The kernel_match probe: what it sees of a kernel that is right, and of each way to be wrong."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.contract.schema import Arm, Workload
from harness.devices.device_memory import GuardedMemory
from harness.evidence.plan_records import PlannedArm, Run
from harness.evidence.run_records import KernelCase
from harness.execution.probes import kernels
from harness.execution.probes.kernels import compare
from harness.execution.recorder import Recorder
from harness.system.protocol import Kernel, KernelComparison, NotAvailable

VALUES = torch.tensor([1.0, -4.0, 2.0])
Call = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor] | None]


def doubling(outputs: Mapping[str, Tensor]) -> None:
    outputs["y"].copy_(2 * VALUES)


def comparison(kernel: Call, naive: Call = doubling, **changes: Any) -> KernelComparison:
    fields: dict[str, Any] = {
        "operation": "double",
        "dtype": "float32",
        "shape": "3",
        "magnitude": 1.0,
        "written": {"y": torch.zeros(3)},
        "updated": {},
        "kernel": kernel,
        "naive": naive,
        "reference": lambda: {"y": 2 * VALUES.double()},
    }
    return KernelComparison(**{**fields, **changes})


def seen(case: KernelCase) -> tuple[float, float, bool, int, bool]:
    return case.error_vs_naive, case.error_vs_fp64, case.finite, case.unwritten, case.repeat_equal


def writing(*values: float) -> Call:
    def write(outputs: Mapping[str, Tensor]) -> None:
        outputs["y"].copy_(torch.tensor(values))

    return write


def test_a_kernel_that_returns_its_internal_buffer_is_compared_with_a_second_call() -> None:
    own, calls = torch.zeros(3), list[None]()

    def drifts(_: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        calls.append(None)
        own.copy_(2 * VALUES + len(calls) - 1)
        return {"y": own}

    case = compare(comparison(drifts))
    assert not case.repeat_equal
    assert case.error_vs_fp64 == 0.0  # the first call was right


@pytest.mark.parametrize(
    "allocate",
    [
        lambda: torch.empty_strided((3,), (1,)),
        lambda: VALUES.new_empty_strided((3,), (1,)),
        lambda: torch.empty_permuted((3,), (0,)),
    ],
    ids=["empty_strided", "new_empty_strided", "empty_permuted"],
)
def test_a_strided_kernel_output_is_poisoned_to_find_unwritten_elements(allocate: Callable[[], Tensor]) -> None:
    """Poison is a special bit pattern that fills outputs first.

    Here the kernel does not write the last element of its strided output.
    """

    def leaves_one_out(_: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        out = allocate()
        out[:2] = 2 * VALUES[:2]
        return {"y": out}

    assert compare(comparison(leaves_one_out)).unwritten == 1


def test_a_correct_kernel_is_measured_with_zero_error() -> None:
    case = compare(comparison(doubling))
    assert seen(case) == (0.0, 0.0, True, 0, True)
    assert (case.operation, case.dtype, case.shape, case.magnitude) == ("double", "float32", "3", 1.0)


def test_errors_are_relative_to_the_references_largest_value() -> None:
    case = compare(comparison(writing(2.0, -8.0, 5.0), naive=writing(2.0, -8.0, 4.5)))
    assert (case.error_vs_fp64, case.error_vs_naive, case.naive_error_vs_fp64) == (1 / 8, 0.5 / 8, 0.5 / 8)


def test_an_unwritten_output_element_is_counted_separately_from_errors() -> None:
    def first_two(outputs: Mapping[str, Tensor]) -> None:
        outputs["y"][:2] = 2 * VALUES[:2]

    assert seen(compare(comparison(first_two))) == (0.0, 0.0, True, 1, True)
    assert seen(compare(comparison(lambda _outputs: None))) == (0.0, 0.0, True, 3, True)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_computed_nan_counts_as_a_written_element(value: float) -> None:
    assert seen(compare(comparison(writing(2.0, value, 4.0)))) == (math.inf, math.inf, False, 0, True)


def test_a_kernel_with_different_bits_in_its_second_call_is_not_repeatable() -> None:
    calls = iter((1.0, 1.0 + 2.0**-23, 1.0))

    def drifting(outputs: Mapping[str, Tensor]) -> None:
        outputs["y"].copy_(2 * VALUES * next(calls))

    case = compare(comparison(drifting))
    assert (case.repeat_equal, case.error_vs_fp64) == (False, 0.0)


def test_an_updated_output_has_equal_start_values_in_each_kernel_call() -> None:
    def add(outputs: Mapping[str, Tensor]) -> None:
        outputs["y"].add_(VALUES)

    start = VALUES.clone()
    case = compare(comparison(add, naive=add, written={}, updated={"y": start}))
    assert seen(case) == (0.0, 0.0, True, 0, True)
    assert torch.equal(start, VALUES)


def test_any_difference_from_a_zero_reference_is_an_infinite_error() -> None:
    def error(*values: float) -> float:
        zeros = writing(0.0, 0.0, 0.0)
        exact = {"y": torch.zeros(3, dtype=torch.float64)}
        return compare(comparison(writing(*values), zeros, reference=lambda: exact)).error_vs_fp64

    assert error(0.0, 0.0, 0.0) == 0.0
    assert error(0.0, 1e-30, 0.0) == math.inf


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_poison_values_differ_from_every_computed_nan(dtype: torch.dtype) -> None:
    """Poison is a special bit pattern that fills outputs first, so that unwritten elements are found."""
    poison = GuardedMemory().poisoned_like(torch.zeros(2, dtype=dtype))
    assert bool(poison.isnan().all())
    integer = torch.int32 if dtype == torch.float32 else torch.int16
    for computed in (torch.tensor(math.nan, dtype=dtype), torch.tensor(math.inf, dtype=dtype) * 0):
        assert poison[0].view(integer).item() != computed.view(integer).item()


@dataclass
class Cases:
    asked: list[object] = field(default_factory=list)

    def comparisons(
        self, operations: Sequence[str], dtypes: Sequence[str], magnitudes: Sequence[float]
    ) -> Iterator[KernelComparison]:
        self.asked = [operations, dtypes, magnitudes]
        yield comparison(doubling)

    def compiled(self) -> list[Kernel]:
        return [Kernel("k/1", "k", ".version 8.7\n.target sm_90a\n.visible .entry k()", None, 2048, 256)]

    def constants(self) -> dict[str, int]:
        return {"tile": 16}


@dataclass
class System:
    cases: Cases = field(default_factory=Cases)
    planted: list[str | None] = field(default_factory=list)

    def describe(self) -> SimpleNamespace:
        return SimpleNamespace(faults={"own": None})

    def kernel_cases(self, workload: Workload, arm: Arm, *, fault: str | None = None) -> Cases:
        self.planted.append(fault)
        return self.cases


def execute(
    directory: Path, monkeypatch: pytest.MonkeyPatch, system: object, fault: str | None = None
) -> dict[str, Any]:
    run = Run(
        id="c+w+m",
        contract="c",
        probe="kernel_match",
        workload_name="w",
        workload=Workload(model="m", batch_size=1, seq_len=1, steps=1),
        arms={"tiled": PlannedArm(arm=Arm(), system="some:system")},
        settings={"operations": ["double"], "max_relative_error": {"float32": 1e-5}, "magnitudes": [1, 1e5]},
        fault=fault,
        fault_arms=["tiled"] if fault else [],
    )
    monkeypatch.setattr(kernels, "resolve", lambda _name: system)
    directory.mkdir()
    with Recorder(directory) as recorder:
        kernels.execute_kernel_match(run, recorder)
    lines = (directory / "records.jsonl").read_text().splitlines()
    records: dict[str, dict[str, Any]] = {record["record"]: record for record in map(json.loads, lines)}
    return records["kernel_match"]


def test_a_kernel_match_run_records_its_cases_constants_and_compiled_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = System()
    record = execute(tmp_path / "run", monkeypatch, system)
    assert system.cases.asked == [["double"], ["float32"], [1.0, 1e5]]
    assert (record["arm"], record["constants"], len(record["cases"])) == ("tiled", {"tile": 16}, 1)
    [compiled] = record["compiled"]
    assert (compiled["targets"], compiled["entries"]) == (["sm_90a"], ["k"])
    assert (compiled["shared_memory_bytes"], compiled["threads"]) == (2048, 256)


@pytest.mark.parametrize(("fault", "planted"), [("own", "own"), ("nan_tail", None), (None, None)])
def test_only_the_systems_own_faults_are_planted_in_its_kernels(
    fault: str | None, planted: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = System()
    execute(tmp_path / "run", monkeypatch, system, fault)
    assert system.planted == [planted]


def test_a_system_without_kernels_is_not_available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotAvailable, match="kernel_cases"):
        execute(tmp_path / "run", monkeypatch, SimpleNamespace())


def test_an_output_that_the_kernel_allocates_is_filled_with_a_special_bit_pattern_first() -> None:
    def first_two(_outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        y = torch.empty(3)
        y[:2] = 2 * VALUES[:2]
        return {"y": y}

    assert seen(compare(comparison(first_two))) == (0.0, 0.0, True, 1, True)


def test_memory_that_a_kernel_allocates_for_intermediate_results_is_poisoned_too() -> None:
    """Poison is a special bit pattern that fills memory first, so that unwritten elements are found."""

    def through_memory(outputs: Mapping[str, Tensor]) -> None:
        left = torch.empty_like(outputs["y"])
        left[:2] = VALUES[:2]
        outputs["y"].copy_(2 * left)

    case = compare(comparison(through_memory))
    # a processor that hands a NaN's bits on leaves poison, another one leaves a NaN of its own
    assert (case.finite, case.unwritten) in ((True, 1), (False, 0))


@pytest.mark.parametrize("allocated_by", ["harness", "kernel"])
@pytest.mark.parametrize("place", [-1, 3])
def test_a_write_outside_an_output_is_counted_in_both_kernel_calls(allocated_by: str, place: int) -> None:
    def beside(outputs: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        y = outputs["y"] if allocated_by == "harness" else torch.empty(3)
        y.copy_(2 * VALUES)
        y.as_strided((1,), (1,), y.storage_offset() + place).fill_(1.0)
        return {"y": y}

    assert compare(comparison(beside)).overwritten == 2
    assert compare(comparison(doubling)).overwritten == 0


@pytest.mark.parametrize(
    ("y", "said"),
    [
        (2 * VALUES.double(), "y is torch.float64 [3], but declared as torch.float32 [3]"),
        ((2 * VALUES).bfloat16(), "y is torch.bfloat16 [3], but declared as torch.float32 [3]"),
        (2 * VALUES[:1], "y is torch.float32 [1], but declared as torch.float32 [3]"),
    ],
)
def test_an_output_of_another_type_or_shape_is_not_compared(y: Tensor, said: str) -> None:
    case = compare(comparison(lambda _outputs: {"y": y}))
    assert (case.mistyped, case.error_vs_fp64, case.finite) == ([said], math.inf, False)


def test_an_output_that_is_not_declared_is_refused() -> None:
    with pytest.raises(ValueError, match="double returned z, which it does not declare"):
        compare(comparison(lambda _outputs: {"z": VALUES}))


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ({}, "the reference of double 3 at magnitude 1 holds no tensor, but the declared outputs are y"),
        ({"y": 2 * VALUES}, "y is torch.float32"),
        ({"y": VALUES[:1].double()}, r"y is torch.float64 \[1\]; return torch.float64 \[3\]"),
        ({"y": torch.tensor([2.0, -8.0, math.nan], dtype=torch.float64)}, "y contains NaN or infinity"),
    ],
)
def test_a_reference_that_covers_less_than_the_outputs_is_refused(reference: dict[str, Tensor], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        compare(comparison(doubling, reference=lambda: reference))


def test_kernel_cases_with_a_reference_of_zeros_are_counted() -> None:
    zeros = writing(0.0, 0.0, 0.0)
    case = compare(comparison(zeros, zeros, reference=lambda: {"y": torch.zeros(3, dtype=torch.float64)}))
    assert case.zero_references == 1
    assert compare(comparison(doubling)).zero_references == 0


TERMS = {"y": torch.tensor([2.0, 16.0, 4.0], dtype=torch.float64)}


def test_kernel_errors_are_relative_to_each_elements_own_terms() -> None:
    case = compare(comparison(writing(2.0, -8.5, 4.25), writing(2.25, -8.0, 4.0), terms=lambda: TERMS))
    assert case.terms is not None
    assert {dtype: errors.model_dump() for dtype, errors in case.terms.items()} == {
        "float32": {"vs_naive": 0.125, "vs_fp64": 0.0625, "naive_vs_fp64": 0.125}
    }
    assert compare(comparison(doubling)).terms is None


def test_an_element_with_zero_terms_must_be_exact() -> None:
    terms, exact = (torch.tensor([first, 1.0, 1.0], dtype=torch.float64) for first in (0.0, 0.0))

    def vs_fp64(first: float) -> float:
        case = compare(
            comparison(writing(first, 1.0, 1.0), doubling, reference=lambda: {"y": exact}, terms=lambda: {"y": terms})
        )
        assert case.terms is not None
        return float(case.terms["float32"].vs_fp64)

    assert vs_fp64(0.0) == 0.0
    assert vs_fp64(1e-30) == math.inf


def test_terms_that_add_to_less_than_the_value_are_refused() -> None:
    small = {"y": torch.tensor([2.0, 7.0, 4.0], dtype=torch.float64)}
    with pytest.raises(ValueError, match="the sum of the terms of double 3 is smaller than y itself"):
        compare(comparison(doubling, terms=lambda: small))


def test_a_peer_kernel_is_compared_on_the_outputs_that_it_has() -> None:
    two = {"written": {"y": torch.zeros(3), "z": torch.zeros(3)}}
    exact = {"y": 2 * VALUES.double(), "z": VALUES.double()}

    def kernel(outputs: Mapping[str, Tensor]) -> None:
        outputs["y"].copy_(2 * VALUES)
        outputs["z"].copy_(VALUES + 1)

    peer = ("another", lambda: {"y": torch.tensor([2.0, -7.0, 4.0])})
    case = compare(comparison(kernel, kernel, reference=lambda: exact, peer=peer, **two))
    assert case.peer is not None
    assert case.peer.model_dump() == {
        "name": "another",
        "outputs": ["y"],
        "errors": {"float32": {"vs_fp64": 0.125, "own_vs_fp64": 0.0}},
    }
    assert case.error_vs_fp64 == 0.25


@pytest.mark.parametrize("outputs", [{}, {"y": VALUES[:1]}])
def test_a_peer_without_a_comparable_output_is_refused(outputs: dict[str, Tensor]) -> None:
    with pytest.raises(ValueError, match="another returns no output of double, or an output with another shape"):
        compare(comparison(doubling, peer=("another", lambda: outputs)))


def test_outputs_of_two_data_types_have_separate_errors() -> None:
    written = {"y": torch.zeros(3), "z": torch.zeros(3, dtype=torch.bfloat16)}
    exact = dict.fromkeys(written, 2 * VALUES.double())

    def kernel(outputs: Mapping[str, Tensor]) -> None:
        for output in outputs.values():
            output.copy_(2 * VALUES)
        outputs["z"][1] = -7.0

    terms = dict.fromkeys(written, 2 * VALUES.double().abs())
    peer = ("another", lambda: {"z": 2 * VALUES})
    case = compare(comparison(kernel, kernel, written=written, reference=lambda: exact, terms=lambda: terms, peer=peer))
    assert case.terms is not None
    assert case.peer is not None
    assert {dtype: errors.vs_fp64 for dtype, errors in case.terms.items()} == {"float32": 0.0, "bfloat16": 0.125}
    assert {dtype: errors.own_vs_fp64 for dtype, errors in case.peer.errors.items()} == {"bfloat16": 0.125}
