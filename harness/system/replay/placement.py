"""Predict on a CPU which tensors a training with a GPU would keep on the host, and which tensors each step would copy
from the host to the GPU.

torch without CUDA ends the process if autograd meets a fake tensor of a CUDA device. Therefore the step runs on the
CPU, and calls of torch functions are observed from the opening of the training on. A call that names a device places
its result on this device (`x.to(device)`, `torch.zeros(3, device=device)`). A result that is computed from a tensor on
the device is on the device as well. Other new tensors are on the host. The place of tensors that existed before the
opening is unknown.

A dispatch mode sees a user-defined operator, but not the operators that the operator's kernel calls. If the kernel is
in Python or calls torch, a second mode inside the kernel observes these operators. A C++ kernel that reads memory
directly cannot be observed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from harness.system.replay.cpu_as_device import MOVES, READS, caller, is_of_an_optimizer, names_a_device, tensors_in
from harness.system.replay.followed_numbers import unrepeated
from harness.system.replay.launches import standing_in
from harness.system.replay.observer import Interceptor, Observer, leaves_the_step
from harness.system.replay.sites import asked_at

# The namespaces of torch's operators. The name and the tags of such an operator show whether it waits for the device.
_OF_TORCH = {"aten", "prims", "c10d", "_c10d_functional", "quantized", "mkldnn", "inductor"}
_UNTAGGED = {torch.ops.aten.is_nonzero.default, torch.ops.aten.multinomial.default}
_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


def executed(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """Execute an operator. Return its result, and the names of inner operators that read values, with one name for each
    call.

    Inner operators are the operators that a user-defined operator calls.
    """
    if is_of_torch(func):
        return func(*args, **kwargs), []
    given = list(tensors_in([*args, *kwargs.values()]))
    plain = bool(given) and all(_is_plain(tensor) for tensor in given)
    # If another dispatch mode is active that must also see the operator, call the operator in the usual way.
    others = not all(map(leaves_the_step, _get_current_dispatch_mode_stack()))
    if not plain or others:
        return func(*args, **kwargs), []
    with _Inside() as inside, _Read(inside.needed):
        # Call the operator below the dispatch mode that called this function. Otherwise this mode would get the same
        # operator again.
        returned = func.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), *args, **kwargs)
    return returned, inside.needed


@cache
def is_of_torch(func: OpOverload) -> bool:
    """Return True for an operator of torch. The result is cached, because this function is called for each
    operation."""
    return func.namespace in _OF_TORCH


def _is_plain(tensor: Tensor) -> bool:
    """Return True if the tensor is an ordinary tensor in the CPU's memory. Other detectors watch tensors on a GPU."""
    ordinary = type(tensor) in (Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    return ordinary and tensor.device.type == "cpu"


class _Inside(Observer):
    def __init__(self) -> None:
        super().__init__()
        self.needed: list[str] = []

    def execute(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if _VALUES & {*func.tags} or func in _UNTAGGED:
            self.needed.append(func._schema.name.replace("::", "."))
        return func(*args, **kwargs)


class _Read(Interceptor):
    """Adds to `needed` each call that copies from a device to the host or reads the CPU's memory without operators."""

    def __init__(self, needed: list[str]) -> None:
        super().__init__()
        self._needed = needed

    def execute(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in READS or (func is Tensor.to and any(map(_is_host, (*args[1:], *kwargs.values())))):
            self._needed.append(f"Tensor.{func.__name__}")
        return func(*args, **kwargs)


def _is_host(value: object) -> bool:
    """Return True if a text or a device names the CPU. Other values are not converted to text, because the conversion
    would read the values of a tensor."""
    return isinstance(value, str | torch.device) and str(value).partition(":")[0] == "cpu"


Side = Literal["device", "host"]
_FROM_DATA = {torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor}
_FROM_MEMORY = ("from_numpy", "frombuffer")
_TO_HOST = {Tensor.cpu, Tensor.numpy, Tensor.tolist}
_INDEXED = {Tensor.__getitem__, Tensor.__setitem__}
_UNKNOWN_PLACE = "?"


class _Memory(NamedTuple):
    reference: StorageWeakRef  # keeps the memory's address from being used again
    side: Side
    step: int  # number of the watched step that created the memory; 0: created outside of watched steps


class Placement(Interceptor):
    """Records for each tensor whether it would be on the device or on the host. The training must be opened in the
    `with` block.

    copies: lines of a watched step that copy tensors or Python numbers from host to device. A capture allows such
    copies only from pinned memory. changes: lines that change a tensor of the host, which no replay repeats. unknown:
    lines that move a tensor of unknown place to the device. unrepeated: operators whose bits on CUDA may differ at each
    repetition, with lines. uncapturable: lines where an optimizer of torch makes an update without `capturable=True`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._sides: dict[int, _Memory] = {}
        self._standing_in = ExitStack()
        self._steps, self._watching = 0, False
        self._lines: dict[object, str] = {}  # autograd node -> the line of code that created it
        self._forget()

    def _forget(self) -> None:
        self.copies: list[str] = []
        self.changes: list[str] = []
        self.unknown: list[str] = []
        self.unrepeated: list[str] = []
        self.uncapturable: list[str] = []

    def __enter__(self) -> Self:
        for name in _FROM_MEMORY:  # function modes do not see calls of these functions, so replace the functions
            self._standing_in.enter_context(standing_in((torch,), name, self._on_host(getattr(torch, name))))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        self._standing_in.close()

    def _on_host(self, made: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def make(*arguments: Any, **keywords: Any) -> Tensor:
            tensor = made(*arguments, **keywords)
            self._put(tensor, "host")
            return tensor

        return make

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the step that is executed in the `with` block. Drop the lines that were recorded in an earlier watched
        step."""
        self._steps += 1
        self._forget()
        self._watching = True
        updates = register_optimizer_step_pre_hook(self._look_at_update)
        try:
            with _Operators(self):
                yield
        finally:
            updates.remove()
            self._watching = False
            self._lines.clear()

    def side_of(self, tensor: Tensor) -> Side | None:
        """Return where a tensor would be: "device" or "host". Return None if the tensor has no memory, or existed
        before the training was opened."""
        memory = self._memory(tensor)
        return None if memory is None else memory.side

    def _memory(self, tensor: Tensor) -> _Memory | None:
        if not torch._C._has_storage(tensor):
            return None
        return self._sides.get(tensor.untyped_storage()._cdata)

    def execute(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        frame = caller()
        given = [*tensors_in([*args, *kwargs.values()])]
        sides = [self.side_of(tensor) for tensor in given]
        named = names_a_device(func, args, kwargs, frame, self._is_on_device)
        returned = func(*args, **kwargs)
        copies_nothing = isinstance(returned, Tensor) and returned.numel() == 0
        if self._watching and not copies_nothing and not is_of_an_optimizer(frame):
            self._look(func, args, given, sides, named=named)
        if named is not None or func in _TO_HOST:
            returned = self._moved(returned, given, "device" if named else "host")
        elif None not in sides or "device" in sides:
            # The result's place stays unknown if one argument's place is unknown and no argument is on the device.
            for tensor in tensors_in(returned):
                if self.side_of(tensor) is None:
                    self._put(tensor, "device" if "device" in sides else "host")
        if self._watching:
            self._note_nodes(tensors_in(returned))
        return returned

    def _moved(self, returned: Any, given: Sequence[Tensor], side: Side) -> Any:
        """Place a result on the given side ("device" or "host"), and return the result. If the result is on the other
        side, return a copy, because a move to or from a GPU copies."""
        if not isinstance(returned, Tensor):
            return returned
        memory = self._memory(returned)
        if memory is not None and memory.side != side:
            returned = returned.clone()
        if memory is not None or not self._watching or not any(returned is each for each in given):
            self._put(returned, side)
        return returned

    def _put(self, tensor: Tensor, side: Side) -> None:
        if torch._C._has_storage(tensor):
            reference = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
            self._sides[reference.cdata] = _Memory(reference, side, self._steps if self._watching else 0)

    def _look(
        self,
        func: Any,
        args: Sequence[Any],
        given: Sequence[Tensor],
        sides: Sequence[Side | None],
        *,
        named: bool | None,
    ) -> None:
        """Record what a call would do on a GPU: copy data to the device, or change a tensor on the host."""
        if func in _FROM_DATA or func in MOVES:
            source = next(iter(args[1:] if func is Tensor.new_tensor else args), None)
            side = self.side_of(source) if isinstance(source, Tensor) else "host"
            if named and side != "device":
                self.note(self.copies if side == "host" else self.unknown)
        elif func in _INDEXED:
            indices = args[1] if isinstance(args[1], tuple) else (args[1],)
            from_host = any(isinstance(each, list) or self._is_on_host(each) for each in indices)
            # The second condition finds a table on the host that the step indexes with a tensor on the device.
            if "device" in sides and (from_host or sides[0] == "host"):
                self.note(self.copies)
        elif func is Tensor.copy_ and [*sides[:2]] == ["device", "host"] and given[1].numel():
            self.note(self.copies)
        if _is_in_place(func):
            memories = map(self._memory, tensors_in(args[:1]))
            if any(each is not None and each.side == "host" and each.step < self._steps for each in memories):
                self.note(self.changes)

    def _look_at_update(self, optimizer: Optimizer, _args: object, _kwargs: object) -> None:
        """Note an update that torch, fused or not, refuses to execute during a capture on a GPU."""
        of_torch = type(optimizer).__module__.startswith("torch.optim.")
        if of_torch and any(group.get("capturable") is False for group in optimizer.param_groups):
            self.note(self.uncapturable)

    def _is_on_device(self, tensor: Tensor) -> bool | None:
        side = self.side_of(tensor)
        return None if side is None else side == "device"

    def _is_on_host(self, index: object) -> bool:
        return (
            isinstance(index, Tensor)
            and self.side_of(index) == "host"
            and (index.dim() > 0 or index.dtype == torch.bool)
        )

    def note(self, lines: list[str]) -> None:
        place = asked_at()
        if not place.startswith(_UNKNOWN_PLACE) and place not in lines:
            lines.append(place)

    def _note_nodes(self, made: Iterable[Tensor]) -> None:
        """Store which line of code created each autograd node. In the backward pass, the operators of a node get the
        line of the node."""
        line, level = "", [tensor.grad_fn for tensor in made]
        while level:
            node = level.pop()
            if node is not None and node not in self._lines:
                line = line or asked_at()
                self._lines[node] = line
                level += [each for each, _ in node.next_functions]

    def line(self) -> str:
        """Return the line that executes now; in a backward pass, the line that created the current autograd node."""
        node = torch._C._current_autograd_node()
        return asked_at() if node is None else self._lines.get(node) or asked_at()


class _Operators(Observer):
    """Records operators that are called in the `with` block and whose bits on CUDA may differ at each repetition, with
    their lines."""

    def __init__(self, placement: Placement) -> None:
        super().__init__()
        self._placement = placement

    def execute(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if (name := unrepeated(func, args, kwargs)) is not None:
            noted = f"{name} at {self._placement.line()}"
            if noted not in self._placement.unrepeated:
                self._placement.unrepeated.append(noted)
        return func(*args, **kwargs)


def _is_in_place(func: Any) -> bool:
    name: str = getattr(func, "__name__", "")
    return (
        func is Tensor.__setitem__
        or (name.endswith("_") and not name.endswith("__"))
        or (name.startswith("__i") and name.endswith("__"))
    )
