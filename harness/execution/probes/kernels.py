"""List an arm's kernels (probe `kernels`), or compare each kernel with a naive second version (probe `kernel_match`).

kernels: the list of kernels is made on this machine's device, or by compiling for another GPU architecture. On the
device, the arm is opened and trains a few steps, and the list names the kernels that the arm launched. For another
architecture, the system compiles the kernels that it plans to use. If the claim is about coverage (no step uses a
kernel that was not planned), the system also compiles the kernels that a step uses. Compiling needs no device.

kernel_match: each kernel is compared with its naive version (a short second implementation) and with an fp64 reference,
on the same inputs. Before each call, the outputs are filled with a value that shows which elements the kernel does not
write. Guard elements on both sides of an output show whether the kernel writes outside of it. Each kernel runs twice.
The errors of an output are divided by the largest absolute value in the output's reference. The system may also return,
for each output element, the sum of the absolute values of its terms. Then errors divided by this sum are recorded too.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from harness.devices.cuda_driver import Devices, devices
from harness.devices.device_memory import GuardedMemory, bits, poisoned
from harness.devices.ptx import newest_version, read_module
from harness.evidence.plan_records import Run
from harness.evidence.run_records import (
    KernelCase,
    KernelErrors,
    KernelMatchEvidence,
    KernelPeer,
    KernelRecord,
    KernelsEvidence,
    PeerErrors,
)
from harness.execution.opening import of_shapes, opened
from harness.execution.recorder import Recorder
from harness.planning.obstacles import ON_DEVICE
from harness.system.protocol import (
    CrossCompiles,
    HasKernelCases,
    HasKernels,
    Kernel,
    KernelCall,
    KernelCases,
    KernelComparison,
    KernelInventory,
    KernelRefusedError,
    NotAvailable,
    TrainingRun,
)
from harness.system.resolve import resolve


def execute(run: Run, recorder: Recorder) -> None:
    """Record the list of kernels of every arm of the run, for the GPU architecture in the setting `target`."""
    target = str(run.settings["target"])
    for arm in run.arms:
        recorder.phase(f"{arm}: kernels for {target}")
        if target == ON_DEVICE:
            recorder.write(_on_device(run, arm, recorder))
        else:
            inventory = _cross_compiled(run, arm, target)
            recorder.write(evidence(arm, inventory, compiled_for=target, device=None))


def _cross_compiled(run: Run, arm: str, target: str) -> KernelInventory:
    planned = run.arms[arm]
    system = resolve(planned.system)
    if not isinstance(system, CrossCompiles):
        raise NotAvailable(f"kernels for {target} need the system's capability `cross_compiled`")
    # Only faults that the system itself plants can change kernels. The harness plants its faults into steps, and
    # compiling for another architecture executes no step.
    offered = run.fault in system.describe().faults and arm in run.fault_arms
    return system.cross_compiled(
        run.workload,
        planned.arm,
        target,
        with_used=run.settings.get("scope") == "coverage",
        fault=run.fault if offered else None,
        data=run.data,
        model_directory=run.model_directory,
    )


def _on_device(run: Run, arm: str, recorder: Recorder) -> KernelsEvidence:
    found = devices()
    if not found.gpus:
        return evidence(arm, KernelInventory((), ()), compiled_for=None, device=found)
    with opened(run, arm) as training:
        if not isinstance(training, HasKernels):
            raise NotAvailable("an inventory of kernels needs the system's capability `kernels`")
        try:
            train(training, of_shapes(run))
        except KernelRefusedError as refusal:
            recorder.phase(f"{arm}: inventory after {refusal}")
        return evidence(arm, training.kernel_inventory(), compiled_for=None, device=found)


def train(training: TrainingRun, steps: int) -> None:
    """Train `steps` steps from step 0, and wait for the device."""
    from harness.devices.device import synchronize

    for index in range(steps):
        training.step(index)
    synchronize()


def evidence(
    arm: str, inventory: KernelInventory, *, compiled_for: str | None, device: Devices | None
) -> KernelsEvidence:
    """Return the evidence about a list of kernels. compiled_for: the architecture for which the kernels were compiled,
    or None if they ran here. device: this machine's devices; None if the kernels were compiled for another
    architecture."""
    gpu = device.gpus[0] if device is not None and device.gpus else None
    return KernelsEvidence(
        arm=arm,
        device=gpu.architecture if gpu is not None else None,
        device_readable=device is None or not device.unreadable,
        driver_ptx_version=_driver_ptx_version(device),
        compiled_for=compiled_for,
        planned=records(inventory.planned),
        used=records(inventory.used),
    )


def _driver_ptx_version(device: Devices | None) -> str | None:
    if device is None or device.cuda_version is None:
        return None
    major, _, minor = device.cuda_version.partition(".")
    newest = newest_version((int(major), int(minor)))
    return None if newest is None else f"{newest[0]}.{newest[1]}"


def records(kernels: Sequence[Kernel]) -> list[KernelRecord]:
    """Return a record of each kernel, with the declarations of its PTX and the SHA-256 of the PTX text."""
    return [_record(kernel) for kernel in kernels]


def _record(kernel: Kernel) -> KernelRecord:
    module = read_module(kernel.ptx)
    return KernelRecord(
        key=kernel.key,
        name=kernel.name,
        ptx_digest=hashlib.sha256(kernel.ptx.encode()).hexdigest(),
        targets=module.targets,
        versions=module.versions,
        entries=module.entries,
        load_route=kernel.load_route,
        shared_memory_bytes=kernel.shared_memory_bytes,
        threads=kernel.threads,
    )


Tensors = Mapping[str, Tensor]


def execute_kernel_match(run: Run, recorder: Recorder) -> None:
    """Compare every arm's kernels with their naive versions and references, for each of the run's operations and data
    types. The system scales inputs by each factor in the setting `magnitudes`, such as 1e5."""
    for arm, planned in run.arms.items():
        recorder.phase(f"{arm}: kernels")
        system = resolve(planned.system)
        if not isinstance(system, HasKernelCases):
            raise NotAvailable("comparing kernels needs the system's capability `kernel_cases`")
        # Only faults that the system itself plants can change kernels. The harness plants its faults into steps.
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
        arm=arm, cases=cases, compiled=records(kernels.compiled()), constants=dict(kernels.constants())
    )


def _grid(run: Run) -> tuple[list[str], list[str], list[float]]:
    operations, bounds, magnitudes = (run.settings[name] for name in ("operations", "max_relative_error", "magnitudes"))
    if not isinstance(operations, list) or not isinstance(bounds, dict) or not isinstance(magnitudes, list):
        raise TypeError(
            "a kernel_match run needs three settings: a list of operations, a list of magnitudes, and a mapping from "
            "data types to bounds"
        )
    return operations, list(bounds), [float(magnitude) for magnitude in magnitudes]


def compare(comparison: KernelComparison) -> KernelCase:
    """Run the kernel twice, and its naive version, its peer (another project's kernel) and its reference once. Return
    how much the results differ from one another.

    Elements that the kernel does not write are counted, but do not count as errors.
    """
    exact = _stated(comparison, "reference", comparison.reference())
    memory = GuardedMemory()
    first, second = (_outputs(comparison, comparison.kernel, memory) for _ in range(2))
    mistyped = _mistyped(comparison, first) or _mistyped(comparison, second)
    case = partial(
        KernelCase,
        operation=comparison.operation,
        dtype=comparison.dtype,
        shape=comparison.shape,
        magnitude=comparison.magnitude,
    )
    if mistyped:  # no values can be compared if an output has a wrong type or shape
        return case(
            error_vs_naive=math.inf,
            error_vs_fp64=math.inf,
            naive_error_vs_fp64=math.inf,
            finite=False,
            unwritten=0,
            repeat_equal=False,
            mistyped=mistyped,
        )
    naive = _outputs(comparison, comparison.naive, GuardedMemory())
    written = {name: ~poisoned(first[name]) for name in comparison.written}
    largest = _Measure({name: value.abs().max() for name, value in exact.items()}, written)
    terms = _Measure(_terms(comparison, comparison.terms(), exact), written) if comparison.terms is not None else None
    return case(
        error_vs_naive=largest.error(first, naive),
        error_vs_fp64=largest.error(first, exact),
        naive_error_vs_fp64=largest.error(naive, exact, everywhere=True),
        finite=all(bool(_chosen(value, written.get(name)).isfinite().all()) for name, value in first.items()),
        unwritten=sum(int((~mask).sum()) for mask in written.values()),
        repeat_equal=all(torch.equal(bits(first[name]), bits(second[name])) for name in first),
        overwritten=memory.overwritten(),
        zero_references=sum(not bool(value.any()) for value in exact.values()),
        outputs={name: _type(value) for name, value in first.items()},
        terms=None if terms is None else _errors(terms, first, naive, exact),
        peer=_peer(comparison, terms or largest, first, exact),
    )


def _outputs(comparison: KernelComparison, call: KernelCall, memory: GuardedMemory) -> dict[str, Tensor]:
    outputs = {name: memory.poisoned_like(tensor) for name, tensor in comparison.written.items()}
    outputs |= {name: memory.copy_of(tensor) for name, tensor in comparison.updated.items()}
    with memory:
        returned = dict(call(outputs) or {})
    unknown = sorted(returned.keys() - outputs.keys())
    if unknown:
        raise ValueError(
            f"{comparison.operation} returned {', '.join(unknown)}, which it does not declare as outputs; return only "
            "declared outputs"
        )
    # Copy the tensors. A kernel may return a buffer that its next call overwrites.
    return outputs | {name: tensor.clone() for name, tensor in returned.items()}


def _stated(comparison: KernelComparison, what: str, tensors: Tensors) -> Tensors:
    """Check and return tensors that the system computed in fp64. what: the name of these tensors in messages.

    Raises ValueError unless there is exactly one fp64 tensor for each output, with the output's shape and only finite
    elements.
    """
    declared = {**comparison.written, **comparison.updated}
    name = f"the {what} of {comparison.operation} {comparison.shape} at magnitude {comparison.magnitude:g}"
    if tensors.keys() != declared.keys():
        raise ValueError(
            f"{name} holds {', '.join(sorted(tensors)) or 'no tensor'}, but the declared outputs are "
            f"{', '.join(sorted(declared))}; return exactly the declared outputs"
        )
    for output, tensor in tensors.items():
        if tensor.dtype is not torch.float64 or tensor.shape != declared[output].shape:
            type_and_shape = f"{tensor.dtype} {list(tensor.shape)}"
            raise ValueError(
                f"{name}: {output} is {type_and_shape}; return torch.float64 {list(declared[output].shape)}"
            )
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"{name}: {output} contains NaN or infinity; return only finite values")
    return tensors


def _terms(comparison: KernelComparison, terms: Tensors, exact: Tensors) -> Tensors:
    """Check and return `terms`: for each element of an output, the sum of the absolute values of its terms.

    exact: the outputs of the fp64 reference. Raises ValueError if a sum is smaller than the absolute value of the
    element in `exact`, or if `terms` have other names, types or shapes than the tensors in `exact`.
    """
    _stated(comparison, "sum of terms", terms)
    for name, value in terms.items():
        # Allow a small difference, because both values are sums in fp64, which are rounded.
        if bool((value * (1 + 1e-9) < exact[name].abs()).any()):
            raise ValueError(
                f"the sum of the terms of {comparison.operation} {comparison.shape} is smaller than {name} itself; "
                "add up the terms' absolute values"
            )
    return terms


def _mistyped(comparison: KernelComparison, outputs: Tensors) -> list[str]:
    declared = {**comparison.written, **comparison.updated}
    return [
        f"{name} is {tensor.dtype} {list(tensor.shape)}, but declared as {declared[name].dtype} "
        f"{list(declared[name].shape)}"
        for name, tensor in outputs.items()
        if (tensor.dtype, tensor.shape) != (declared[name].dtype, declared[name].shape)
    ]


@dataclass(frozen=True)
class _Measure:
    """Computes errors divided by `scales`, which have one number for each output, or for each element of an output."""

    scales: Tensors
    written: Mapping[str, Tensor]

    def error(self, got: Tensors, expected: Tensors, *, everywhere: bool = False) -> float:
        """Return the largest relative error of the outputs `got`, measured from `expected`. Elements that the kernel
        did not write are skipped, unless `everywhere` is true."""
        return max(self._of_output(name, got[name], expected[name], everywhere=everywhere) for name in got)

    def _of_output(self, name: str, got: Tensor, expected: Tensor, *, everywhere: bool) -> float:
        difference = (got.double() - expected.double()).abs()
        # An element whose difference is 0 has the error 0, even if its scale is 0. If only the scale is 0, the error is
        # infinite.
        relative = torch.where(difference == 0, difference, difference / self.scales[name])
        relative = _chosen(relative, None if everywhere else self.written.get(name))
        if relative.numel() == 0:
            return 0.0
        return torch.nan_to_num(relative, nan=math.inf, posinf=math.inf).max().item()


def _by_type(got: Tensors, names: Collection[str]) -> dict[str, list[str]]:
    """Group the outputs `names` by data type. Return a mapping: name of a data type -> names of its outputs."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(_type(got[name]), []).append(name)
    return found


def _type(tensor: Tensor) -> str:
    """Return the name of a tensor's data type as contracts write it, such as `bfloat16`."""
    return str(tensor.dtype).removeprefix("torch.")


def _errors(terms: _Measure, got: Tensors, naive: Tensors, exact: Tensors) -> dict[str, KernelErrors]:
    errors = {}
    for dtype, names in _by_type(got, got.keys()).items():
        ours, twins = ({name: of[name] for name in names} for of in (got, naive))
        errors[dtype] = KernelErrors(
            vs_naive=terms.error(ours, naive),
            vs_fp64=terms.error(ours, exact),
            naive_vs_fp64=terms.error(twins, exact, everywhere=True),
        )
    return errors


def _peer(comparison: KernelComparison, measure: _Measure, got: Tensors, exact: Tensors) -> KernelPeer | None:
    if comparison.peer is None:
        return None
    name, call = comparison.peer
    theirs = call()
    if not theirs or any(value.shape != exact[output].shape for output, value in theirs.items()):
        raise ValueError(
            f"{name} returns no output of {comparison.operation}, or an output with another shape; return outputs with "
            "the names and shapes of the kernel's outputs"
        )
    errors = {}
    for dtype, outputs in _by_type(got, theirs.keys()).items():
        of_peer, own = ({output: of[output] for output in outputs} for of in (theirs, got))
        errors[dtype] = PeerErrors(
            vs_fp64=measure.error(of_peer, exact, everywhere=True), own_vs_fp64=measure.error(own, exact)
        )
    return KernelPeer(name=name, outputs=list(theirs), errors=errors)


def _chosen(tensor: Tensor, mask: Tensor | None) -> Tensor:
    return tensor if mask is None else tensor[mask]
