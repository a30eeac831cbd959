"""Define the functions that a system under test offers. `describe()` needs no torch. A run must have the functions of
`TrainingRun`.

All further functions of a run are optional and are called capabilities. Each capability is a small protocol. The
harness checks with `isinstance` whether a run has a capability. A claim that needs a missing capability is NOT_RUN, and
the verdict of the claim names the capability.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol, Self, runtime_checkable

# Adapters can import the following names, and `Arm` and `Workload`, from this module. Then adapters need no other
# module of the harness.
from harness.evidence.descriptions import Expectation as Expectation  # noqa: PLC0414
from harness.evidence.descriptions import FaultDescription as FaultDescription  # noqa: PLC0414
from harness.evidence.descriptions import Scalar as Scalar  # noqa: PLC0414
from harness.evidence.descriptions import SystemDescription as SystemDescription  # noqa: PLC0414

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from harness.contract.schema import Arm as Arm  # noqa: PLC0414
    from harness.contract.schema import Workload as Workload  # noqa: PLC0414
else:

    def __getattr__(name: str) -> object:
        """Import pydantic models at their first use, so that describing a system needs no pydantic."""
        if name not in {"Arm", "Workload"}:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from harness.contract import schema

        return getattr(schema, name)


CAPABILITIES = (
    "inputs",
    "parameters",
    "state",
    "gradients",
    "gradient_norms",
    "metrics",
    "moments",
    "single_steps",
    "capture",
    "kernels",
    "skipped_steps",
    "kernel_cases",
    "checkpoint",
    "peer",
    "resume",
    "evaluate",
    "warm_steps",
)
# Advice if a capture failed because the step creates its state in its first call. Error messages contain this text.
WARM_STEPS = "set `warm_steps: 1` in the arm, so that the step is captured after one plain step"


@runtime_checkable
class TrainingRun(Protocol):
    """An opened system. It is a context manager that releases everything on exit."""

    def step(self, index: int) -> Tensor:
        """Enqueue step `index` without a host sync. Return the 0-d loss as a tensor on the run's device. Later steps
        must not change the returned tensor."""
        ...

    def facts(self) -> Mapping[str, Scalar]:
        """Return facts about training for evidence and report, such as `device`, `dtype`, `layers`, `text_digest`.

        `random_weights`: True if no pretrained checkpoint was loaded. The first screen of a report page then says so.
        """
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class TrainingSystem(Protocol):
    """A system under test (`module:attribute`). The attribute is an instance of the system, or a class or factory that
    needs no arguments."""

    def describe(self) -> SystemDescription: ...

    def open(
        self,
        workload: Workload,
        arm: Arm,
        *,
        fault: str | None = None,
        data: str | None = None,
        model_directory: str | None = None,
    ) -> TrainingRun:
        """Build the trainer. Raise `NotAvailable` if the machine lacks something that the trainer needs. Raise
        ValueError for wrong settings."""
        ...


class NotAvailable(Exception):  # noqa: N818 - this is no error: the unit gets the status NOT_RUN
    """Raised if this machine cannot open the system. The message names what is missing."""


@runtime_checkable
class HasInputs(Protocol):
    def inputs(self) -> Mapping[str, Tensor]:
        """Return, by name and on the run's device, the tensors that the last step read. Each element of `tokens` is one
        token."""
        ...


@runtime_checkable
class HasParameters(Protocol):
    def parameters(self) -> Mapping[str, Tensor]:
        """Return the trainable parameters by name."""
        ...

    def frozen(self) -> Mapping[str, Tensor]:
        """Return the frozen tensors by name."""
        ...


@runtime_checkable
class HasState(Protocol):
    """State that training changes and a later step reads, in addition to the parameters that `parameters()` returns.

    The harness always watches the process's generators and all state that it finds from the run's attributes:
    parameters and buffers of modules, optimizers, schedulers, loss scales and generators. This capability adds further
    state. If two arms must be bitwise equal, all of this state must be equal at their start and at their end.
    """

    def state(self) -> Mapping[str, Mapping[str, Tensor]]:
        """Return tensors by category and name. The categories are `parameters` (those that `parameters()` leaves out),
        `buffers`, `optimizer`, `generators`, and `tensors` for all other tensors. The harness calls this function only
        at the start and the end of a run. The function may wait for the device."""
        ...


@runtime_checkable
class HasGradients(Protocol):
    def gradients(self) -> Mapping[str, Tensor]:
        """Return the gradients of the last step after clipping, by the name of the parameter."""
        ...


class GradientWatch(Protocol):
    """A context manager around one step. It copies the gradients of the backward pass before the step changes them."""

    @property
    def copies(self) -> Mapping[str, Tensor]: ...

    @property
    def written(self) -> Collection[str]:
        """Return the names of the parameters whose gradients the optimizer overwrote."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def is_sure(self) -> bool: ...


@runtime_checkable
class RecordsUnderWatch(Protocol):
    def record_under(self, watch: Callable[[Mapping[str, Tensor]], GradientWatch]) -> None:
        """Store `watch`, a function that makes a `GradientWatch` for the given parameters. The system must enter the
        `GradientWatch` (a context manager) around the step while the step is captured. The harness calls this method
        before the first step."""
        ...

    def made_gradients(self) -> tuple[Mapping[str, Tensor], Collection[str]] | None:
        """Return `copies` and `written` of the `GradientWatch` for the last step. Return None if the system cannot know
        these values."""
        ...


@runtime_checkable
class HasGradientNorms(Protocol):
    def gradient_norms(self) -> Mapping[str, Tensor]:
        """Return two tensors by name. `before` [number of groups] has the L2 norm of each group of gradients before
        clipping. The gradients of a group are clipped together. `max_norm` is the 0-d threshold of the clip."""
        ...

    def gradient_groups(self) -> Mapping[str, Sequence[str]]:
        """Return, by the name of the group, the names of the parameters whose gradients are clipped together. The
        groups are in the order of the norms in `before`."""
        ...


@runtime_checkable
class HasMetrics(Protocol):
    def metrics(self) -> Mapping[str, Tensor]:
        """Return, by name, numbers of the last step in addition to its loss, each as a tensor of one number. Do not
        wait for the device. Return the same names at every step. A name consists of letters, digits, `_`, `.` and `-`.
        No name may be the name of a column that the harness writes itself, such as `loss` and `step`."""
        ...


@runtime_checkable
class HasMoments(Protocol):
    def moments(self) -> Mapping[str, Mapping[str, Tensor]]:
        """Return Adam's moments after the last step: `exp_avg` and `exp_avg_sq`, each by the parameter's name."""
        ...


@dataclass(frozen=True)
class OptimizerState:
    """The state before or after one update of Adam. The keys of each mapping are the names of the parameters."""

    parameters: Mapping[str, Tensor]
    exp_avg: Mapping[str, Tensor]
    exp_avg_sq: Mapping[str, Tensor]


@runtime_checkable
class MakesSingleSteps(Protocol):
    """A reference that can compute a single step (forward pass, backward pass and update) from the state of another
    run."""

    def evaluate(self, index: int, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return the 0-d loss of batch `index` at these parameters. The functions for gradients, norms and inputs then
        return the values of this call.

        The reference copies the parameters' values. The rest of the reference's state does not change.
        """
        ...

    def update(self, index: int, before: OptimizerState, gradients: Mapping[str, Tensor]) -> OptimizerState:
        """Return the state after step `index`, in new tensors. Use the reference's learning rate and dtype."""
        ...


@dataclass(frozen=True)
class CaptureRecord:
    """A system's report on its capture. graphs: raw `cudaGraph_t` handles by label, whose nodes the harness counts."""

    mechanism: Literal["cuda_graph", "traced"] | None
    requested: bool
    captured: bool
    failure: str | None
    captures: int
    warmup_steps: int
    replays: int
    uncaptured_steps: int
    recorded_operations: int = 0
    fake_pass_clean: bool | None = None
    graphs: Mapping[str, int] = field(default_factory=dict)
    static_buffers: Mapping[str, int] = field(default_factory=dict)  # name of each static buffer -> its present address
    # name of each static buffer -> its address at the capture
    captured_addresses: Mapping[str, int] = field(default_factory=dict)
    host_changes: Sequence[str] = ()  # host values that the captured step changes, but that no replay changes
    # Python numbers that each step changes, each with a text that says for what the step reads the number (None: the
    # step never reads it). If the whole field is None, it is unknown which numbers the steps change.
    host_numbers: Sequence[tuple[str, str | None]] | None = None
    asked_whether_captured: Sequence[str] = ()  # lines of a step recorded without a GPU that check for a capture
    unseen_operators: Sequence[str] = ()  # operators of a step recorded without a GPU whose waits cannot be detected
    as_written: Sequence[str] = ()  # lines of a step recorded without a GPU whose compiled code ran uncompiled
    # number of plain steps that were executed before the capture, as the arm requests; not part of `uncaptured_steps`
    warm_steps: int = 0


@runtime_checkable
class HasCapture(Protocol):
    def capture_record(self) -> CaptureRecord: ...


@runtime_checkable
class HasStepBody(Protocol):
    """Provides a step's body (the part of a step that runs on the device), and the tensors that the body changes."""

    def step_body(self) -> Callable[[], Tensor]: ...

    def state_tensors(self) -> Mapping[str, Tensor]: ...


@runtime_checkable
class HasStateRoots(Protocol):
    def state_roots(self) -> Sequence[object]:
        """Return objects from which all state that a step changes can be reached. If a run lacks this function, the
        harness searches the run itself."""
        ...


@runtime_checkable
class CountsSkippedSteps(Protocol):
    def skipped_steps(self) -> int:
        """Return how many updates the training skipped because a loss or gradient was not finite."""
        ...


@runtime_checkable
class CanRecapture(Protocol):
    def forget_captures(self) -> None:
        """Drop all captures and the memory that they hold. The next step with any shape of batches is then captured
        again."""
        ...


@runtime_checkable
class CountsClippedTensors(Protocol):
    def clip_kernels(self) -> Mapping[str, Mapping[int, int]]:
        """Return the kernels that scale gradients, by CUDA name. With them, the harness counts a graph's clipped
        tensors.

        The value maps the address of each table of tensors that the kernel reads to the number of tensors in the table.
        A kernel node uses the table whose address is among the node's arguments.
        """
        ...


@dataclass(frozen=True)
class Kernel:
    """One compiled kernel: the key under which it is stored, its function's name, and its PTX as text."""

    key: str
    name: str
    ptx: str
    load_route: str | None = None  # how the kernel's module is loaded onto the device
    shared_memory_bytes: int | None = None
    threads: int | None = None


@dataclass(frozen=True)
class KernelInventory:
    """The kernels that a prewarm (loading kernels before the training) plans, and the kernels that the steps request.
    If a key is planned or requested twice, its kernel is listed twice."""

    planned: Sequence[Kernel]
    used: Sequence[Kernel]


@dataclass(frozen=True)
class KernelEvent:
    """An event of a kernel: a compile, a hit in the disk cache, or a module load. seconds: the time since the opening
    of the run began."""

    key: str
    event: Literal["compile", "disk_hit", "load"]
    phase: str
    seconds: float


@dataclass(frozen=True)
class KernelLedger:
    """The events of kernels, with their times in seconds since the opening of the run began."""

    events: Sequence[KernelEvent]
    phases: Mapping[str, float]  # name of a phase (prewarm, upload, train) -> time at which it began
    handles: Mapping[str, float]  # name of a library handle -> time at which it was created


class KernelRefusedError(RuntimeError):
    """The system refused to load a kernel. The probe continues, because the inventory of kernels gives the reason."""


@runtime_checkable
class Resumes(Protocol):
    """Capability `resume`: another process continues a saved training as if it had never been interrupted."""

    def save(self, path: Path) -> None:
        """Write the training to `path`, which does not exist yet. `save` creates a file or a folder.

        After `save` has returned, only non-daemon threads may still write. Later steps must not change what these
        threads write.
        """
        ...

    def load(self, path: Path) -> None:
        """Resume from a checkpoint of `save`. The harness may call `load` before the first step, or after some steps,
        whose effect is then lost.

        On return, the parameters have the saved values. An existing capture replays with the loaded values.
        """
        ...


@runtime_checkable
class Evaluates(Protocol):
    """Capability `evaluate`: the model is evaluated between two steps, without any effect on its training."""

    def evaluate(self) -> Tensor | float | Mapping[str, Tensor | float]:
        """Return a number, a tensor of one number, or several of these by name. The function may wait for the
        device."""
        ...


@runtime_checkable
class HasKernels(Protocol):
    def kernel_inventory(self) -> KernelInventory:
        """Return this device's kernels. These are the planned kernels and the kernels that launches requested,
        including refused kernels. The function may compile kernels, but must not load a kernel."""
        ...

    def kernel_ledger(self) -> KernelLedger: ...


@runtime_checkable
class CrossCompiles(Protocol):
    """A capability of the system and not of a run: to compile kernels for other GPUs, without a device or trainer."""

    def cross_compiled(
        self,
        workload: Workload,
        arm: Arm,
        target: str,
        *,
        with_used: bool = True,
        fault: str | None = None,
        data: str | None = None,
        model_directory: str | None = None,
    ) -> KernelInventory:
        """Return the kernels for `target` (`sm_90`). These are the kernels that a prewarm plans and, if `with_used` is
        true, the kernels of the step."""
        ...


@runtime_checkable
class HasCheckpoint(Protocol):
    """A capability of the system and not of a run. Another framework can read the system's frozen weights."""

    def checkpoint(self, workload: Workload, folder: Path, *, model_directory: str | None = None) -> Path:
        """Return a directory in the Hugging Face layout with the workload's frozen weights. If there is no such
        directory, write it below `folder`. A run that is opened with this directory as `model_directory` trains from
        these weights."""
        ...


@runtime_checkable
class ServesAsPeer(Protocol):
    """A run that repeats another system's training, as the contract declares this training. `step` trains the run from
    its own state."""

    def restart(self, seed: int) -> None:
        """Restart as a new run with this seed: with initial parameters, optimizer, schedule and batch order."""
        ...

    def evaluate(self, index: int, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return the 0-d loss of batch `index` at these parameters. The functions for gradients and inputs then return
        the values of this call.

        After this call, the run's own training cannot continue. The next call must be `restart` or `evaluate`.
        """
        ...


class KernelCall(Protocol):
    """One call of a kernel with fixed inputs."""

    def __call__(self, outputs: Mapping[str, Tensor], /) -> Mapping[str, Tensor] | None:
        """Write to the given outputs (by name). Return, by name, outputs that the kernel allocated itself; otherwise
        None."""
        ...


@dataclass(frozen=True)
class KernelComparison:
    """One kernel call to compare with its naive version and with an fp64 reference, on the same inputs.

    A call gets its outputs by name and writes all of them. The harness allocates these outputs. `written` gives their
    shapes, dtypes and devices, and the harness fills them with NaN. `updated` holds outputs that the kernel also reads,
    such as a sum to which the kernel adds, or a gradient that the kernel scales. The harness copies the tensors of
    `updated`. If the call allocates outputs through torch by itself, it returns them by name. The harness fills the
    returned outputs with NaN, too, and reads them instead of the outputs that it allocated.
    """

    operation: str
    dtype: str  # data type, written as in a claim: float32, bfloat16, float16
    shape: str
    magnitude: float
    written: Mapping[str, Tensor]
    updated: Mapping[str, Tensor]
    kernel: KernelCall
    naive: KernelCall
    reference: Callable[[], Mapping[str, Tensor]]  # returns each output in float64; key: name of the output
    # A function that returns, for each element of each output, the sum of the absolute values of its terms, in float64.
    # Rounding errors are relative to this sum.
    terms: Callable[[], Mapping[str, Tensor]] | None = None
    # Another project's kernel for the same operation and data type: its name, and a function that returns its outputs.
    peer: tuple[str, Callable[[], Mapping[str, Tensor]]] | None = None


class KernelCases(Protocol):
    """The kernels that a system offers for comparisons, in the variants that one arm uses."""

    def comparisons(
        self, operations: Sequence[str], dtypes: Sequence[str], magnitudes: Sequence[float]
    ) -> Iterator[KernelComparison]:
        """Yield at least one comparison for each combination of operation, dtype and magnitude (a factor by which the
        system scales inputs). Raise ValueError for unknown operations."""
        ...

    def compiled(self) -> Sequence[Kernel]:
        """Return the kernels that the comparisons launched, and the kernels that a prewarm plans for the same
        shapes."""
        ...

    def constants(self) -> Mapping[str, int]:
        """Return constants from the sources of the kernels by name, such as `tile` and `unroll`."""
        ...


@runtime_checkable
class HasKernelCases(Protocol):
    """A capability of the system and not of a run. The system's kernels can be compared without a trainer."""

    def kernel_cases(self, workload: Workload, arm: Arm, *, fault: str | None = None) -> KernelCases:
        """Return the kernel cases of the arm. A planted fault changes the cases only if it is a fault in a kernel.
        Raise `NotAvailable` if the machine lacks something that the kernels need."""
        ...
