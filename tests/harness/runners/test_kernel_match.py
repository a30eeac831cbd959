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
from harness.evidence.plan_records import PlannedArm, Run
from harness.evidence.run_records import KernelCase
from harness.runners import kernel_match
from harness.runners.kernel_match import compare, poisoned_like
from harness.runners.recorder import Recorder
from harness.system.protocol import Kernel, KernelComparison, NotAvailable

VALUES = torch.tensor([1.0, -4.0, 2.0])
Call = Callable[[Mapping[str, Tensor]], None]


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


def test_a_right_kernel() -> None:
    case = compare(comparison(doubling))
    assert seen(case) == (0.0, 0.0, True, 0, True)
    assert (case.operation, case.dtype, case.shape, case.magnitude) == ("double", "float32", "3", 1.0)


def test_errors_are_relative_to_the_references_largest_value() -> None:
    case = compare(comparison(writing(2.0, -8.0, 5.0), naive=writing(2.0, -8.0, 4.5)))
    assert (case.error_vs_fp64, case.error_vs_naive, case.naive_error_vs_fp64) == (1 / 8, 0.5 / 8, 0.5 / 8)


def test_an_element_that_nobody_wrote_is_counted_and_is_no_error() -> None:
    def first_two(outputs: Mapping[str, Tensor]) -> None:
        outputs["y"][:2] = 2 * VALUES[:2]

    assert seen(compare(comparison(first_two))) == (0.0, 0.0, True, 1, True)
    assert seen(compare(comparison(lambda _outputs: None))) == (0.0, 0.0, True, 3, True)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_computed_value_that_is_not_finite_is_written(value: float) -> None:
    assert seen(compare(comparison(writing(2.0, value, 4.0)))) == (math.inf, math.inf, False, 0, True)


def test_other_bits_the_second_time() -> None:
    calls = iter((1.0, 1.0 + 2.0**-23, 1.0))

    def drifting(outputs: Mapping[str, Tensor]) -> None:
        outputs["y"].copy_(2 * VALUES * next(calls))

    case = compare(comparison(drifting))
    assert (case.repeat_equal, case.error_vs_fp64) == (False, 0.0)


def test_an_updated_output_starts_each_call_from_the_same_values() -> None:
    def add(outputs: Mapping[str, Tensor]) -> None:
        outputs["y"].add_(VALUES)

    start = VALUES.clone()
    case = compare(comparison(add, naive=add, written={}, updated={"y": start}))
    assert seen(case) == (0.0, 0.0, True, 0, True)
    assert torch.equal(start, VALUES)


def test_a_reference_of_zeros_allows_no_error() -> None:
    def error(*values: float) -> float:
        zeros = writing(0.0, 0.0, 0.0)
        exact = {"y": torch.zeros(3, dtype=torch.float64)}
        return compare(comparison(writing(*values), zeros, reference=lambda: exact)).error_vs_fp64

    assert error(0.0, 0.0, 0.0) == 0.0
    assert error(0.0, 1e-30, 0.0) == math.inf


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_poison_is_nan_and_no_nan_of_arithmetic(dtype: torch.dtype) -> None:
    poison = poisoned_like(torch.zeros(2, dtype=dtype))
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
    monkeypatch.setattr(kernel_match, "resolve", lambda _name: system)
    directory.mkdir()
    with Recorder(directory) as recorder:
        kernel_match.execute(run, recorder)
    lines = (directory / "records.jsonl").read_text().splitlines()
    records: dict[str, dict[str, Any]] = {record["record"]: record for record in map(json.loads, lines)}
    return records["kernel_match"]


def test_evidence_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = System()
    record = execute(tmp_path / "run", monkeypatch, system)
    assert system.cases.asked == [["double"], ["float32"], [1.0, 1e5]]
    assert (record["arm"], record["constants"], len(record["cases"])) == ("tiled", {"tile": 16}, 1)
    [compiled] = record["compiled"]
    assert (compiled["targets"], compiled["entries"]) == (["sm_90a"], ["k"])
    assert (compiled["shared_memory_bytes"], compiled["threads"]) == (2048, 256)


@pytest.mark.parametrize(("fault", "planted"), [("own", "own"), ("nan_tail", None), (None, None)])
def test_the_systems_own_faults_alone_are_planted_in_kernels(
    fault: str | None, planted: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = System()
    execute(tmp_path / "run", monkeypatch, system, fault)
    assert system.planted == [planted]


def test_a_system_without_kernels_is_not_available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotAvailable, match="kernel_cases"):
        execute(tmp_path / "run", monkeypatch, SimpleNamespace())
