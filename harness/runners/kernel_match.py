"""The kernel_match probe: each kernel against its naive twin and an fp64 reference, on the same inputs.

The harness allocates the outputs and fills them with a NaN of its own bits, so an element that nobody wrote is told
from a NaN that was computed. Each kernel runs twice; errors are relative to the reference's largest absolute value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from harness.evidence.plan_records import Run
from harness.evidence.run_records import KernelCase, KernelMatchEvidence
from harness.runners.kernels import records
from harness.runners.recorder import Recorder
from harness.system.protocol import HasKernelCases, KernelCases, KernelComparison, NotAvailable
from harness.system.resolve import resolve

# Quiet NaNs with payloads that no arithmetic gives, by the integer type of the element's size.
_POISON: dict[torch.dtype, tuple[torch.dtype, int]] = {
    torch.float32: (torch.int32, 0x7FC0DEAD),
    torch.bfloat16: (torch.int16, 0x7FDE),
    torch.float16: (torch.int16, 0x7EAD),
}


def execute(run: Run, recorder: Recorder) -> None:
    """Compare the run's operations in every arm, at its data types and magnitudes."""
    for arm, planned in run.arms.items():
        recorder.phase(f"{arm}: kernels")
        system = resolve(planned.system)
        if not isinstance(system, HasKernelCases):
            raise NotAvailable("comparing kernels needs the system's capability `kernel_cases`")
        # The harness's own faults change steps, and no kernel.
        fault = run.fault if arm in run.fault_arms and run.fault in system.describe().faults else None
        kernels = system.kernel_cases(run.workload, planned.arm, fault=fault)
        recorder.write(_evidence(run, arm, kernels, recorder))


def _evidence(run: Run, arm: str, kernels: KernelCases, recorder: Recorder) -> KernelMatchEvidence:
    cases = []
    for comparison in kernels.comparisons(*_grid(run)):
        cases.append(compare(comparison))
        recorder.heartbeat()
    recorder.phase(f"{arm}: compiled kernels")
    return KernelMatchEvidence(
        arm=arm,
        cases=cases,
        compiled=records(kernels.compiled()),
        constants=dict(kernels.constants()),
    )


def _grid(run: Run) -> tuple[list[str], list[str], list[float]]:
    operations, bounds, magnitudes = (run.settings[name] for name in ("operations", "max_relative_error", "magnitudes"))
    if not isinstance(operations, list) or not isinstance(bounds, dict) or not isinstance(magnitudes, list):
        raise TypeError("a kernel_match run's settings are lists of operations and magnitudes, and bounds by data type")
    return operations, list(bounds), [float(magnitude) for magnitude in magnitudes]


def compare(comparison: KernelComparison) -> KernelCase:
    """Run the kernel twice, its twin and the reference once. Written elements alone count as finite, and as errors."""
    first, second = (_outputs(comparison, comparison.kernel) for _ in range(2))
    naive = _outputs(comparison, comparison.naive)
    exact = comparison.reference()
    unwritten = {name: _poisoned(first[name]) for name in comparison.written}
    written = {name: ~unwritten[name] if name in unwritten else None for name in first}
    return KernelCase(
        operation=comparison.operation,
        dtype=comparison.dtype,
        shape=comparison.shape,
        magnitude=comparison.magnitude,
        error_vs_naive=_largest_error(first, naive, exact, written),
        error_vs_fp64=_largest_error(first, exact, exact, written),
        naive_error_vs_fp64=_largest_error(naive, exact, exact, dict.fromkeys(naive)),
        finite=all(bool(_chosen(value, written[name]).isfinite().all()) for name, value in first.items()),
        unwritten=sum(int(mask.sum()) for mask in unwritten.values()),
        repeat_equal=all(torch.equal(_bits(first[name]), _bits(second[name])) for name in first),
    )


def _outputs(comparison: KernelComparison, call: Callable[[Mapping[str, Tensor]], None]) -> dict[str, Tensor]:
    outputs = {name: poisoned_like(tensor) for name, tensor in comparison.written.items()}
    outputs |= {name: tensor.clone() for name, tensor in comparison.updated.items()}
    call(outputs)
    return outputs


def poisoned_like(tensor: Tensor) -> Tensor:
    """An empty tensor of the same kind, every element the poison of its type."""
    integer, pattern = _POISON[tensor.dtype]
    return torch.full_like(tensor, pattern, dtype=integer).view(tensor.dtype)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.view(_POISON[tensor.dtype][0])


def _poisoned(tensor: Tensor) -> Tensor:
    return _bits(tensor) == _POISON[tensor.dtype][1]


def _chosen(tensor: Tensor, mask: Tensor | None) -> Tensor:
    return tensor if mask is None else tensor[mask]


def _largest_error(
    got: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    exact: Mapping[str, Tensor],
    written: Mapping[str, Tensor | None],
) -> float:
    """Over all outputs: the largest difference, relative to the largest absolute value of the fp64 reference."""
    return max(_error(got[name], expected[name], exact[name], written[name]) for name in got)


def _error(got: Tensor, expected: Tensor, exact: Tensor, written: Tensor | None) -> float:
    difference = _chosen((got.double() - expected.double()).abs(), written)
    if difference.numel() == 0:
        return 0.0
    largest, scale = difference.max().item(), exact.abs().max().item()
    if largest == 0.0:
        return 0.0
    return largest / scale if scale > 0.0 and not math.isnan(largest) else math.inf
