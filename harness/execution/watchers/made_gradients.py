"""Copy gradients as the backward pass leaves them, if the step changes them before it ends.

After a clip, gradients no longer show that a loss is scaled or summed wrongly. The copies are therefore made before a
clip. Gradients count as complete when an optimizer writes to them, or when a value that was computed from gradients
bounds or scales them. Until then, operators that add to gradients, or multiply them by plain numbers (a loss scale, a
count of tokens), count as part of the gradients' computation. So does the division by the loss scale in the fused
optimizers of torch.

No hook is registered, because torch.compile would trace the hook. A dispatch mode observes operators, and torch's only
entry into the autograd engine is wrapped to find the end of a backward pass. Code that no mode can observe (compiled
code, a custom kernel) is noticed because it changes a gradient's norm between two operators. Nothing is reported for
such a step. When a captured step is recorded, the making of the copies becomes part of the recording, so each replay
makes the copies again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim import Optimizer
from torch.utils._python_dispatch import _disable_current_modes

from harness.evidence.arm_records import Clip
from harness.system.replay.cpu_as_device import tensors_in
from harness.system.replay.observer import Observer
from harness.system.sharded_tensors import is_distributed

# `ClipWatch` looks for a clip: operators that bound gradients by values computed from gradients. If no gradient reaches
# the limit of a clip, the clip changes no number. A comparison of numbers then cannot show that one arm has no clip.
# `ClipWatch` finds a clip by the data flow after the backward pass, whatever functions the step uses. First, a value
# computed from gradients is the input of an operator that keeps a value within a bound (`clamp`, `minimum`, `where`).
# Then the operator's result is multiplied into a gradient or replaces the gradient.

# Operators that keep a value within a bound. The names are without the parts that mark variants: the prefix
# `_foreach_`, and the underscore of in-place operators.
_SATURATES = frozenset({"clamp", "clamp_max", "clamp_min", "fmax", "fmin", "hardtanh", "maximum", "minimum", "where"})
# No derivative in torch uses these operators. If one of them runs in the backward pass, a hook has called it.
_HOOKED = _SATURATES - {"hardtanh", "where"}
TO_THE_HOST = "_local_scalar_dense"


class Operation(NamedTuple):
    """One call of an operator that reads gradients, or values that were computed from gradients. bounds: True if the
    call keeps values within a bound, or reads values that another call has kept within a bound."""

    name: str
    gradients: Sequence[Tensor]  # the tensors in `read` that are gradients
    read: Sequence[Tensor]
    in_place: Sequence[Tensor]  # the tensors that the operation writes to
    bounds: bool


class ClipWatch(Observer):
    """Finds out whether steps bound (clip) their gradients, and whether a bound changed a gradient. Enter this context
    manager once for each step. The results are about all these steps together."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._parameters, self._compiled_before = list(parameters.values()), _compiled()
        self._operator = ""
        # _updates: True if gradients were read. _hidden: True if code that cannot be observed may bound gradients.
        self._updates = self._hidden = False
        self.hooked = False  # True if a hook may bound gradients in the backward pass
        # pairs of gradient norms: before and after the gradients were bounded
        self._norms: list[tuple[Tensor, Tensor]] = []
        # How many `with` blocks of this object are open. If the harness drives a training loop in another thread, that
        # thread enters this object while the waiting thread has entered it, too.
        self._depth = 0
        self._begin()

    def _begin(self) -> None:
        self._from_gradients, self._bounding = _Storages(), _Storages()
        self._saturated = ""
        # storage of a tensor that may replace a gradient -> norm of this gradient, and norm of the tensor
        self._may_replace: dict[int, tuple[Tensor, Tensor]] = {}

    def __enter__(self) -> Self:
        if not self._depth:
            self._begin()
        self._depth += 1
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def execute(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = func._schema.name.rpartition("::")[2].removeprefix("_foreach_").removesuffix("_")
        # operators of the backward pass compute the gradients; only an operator that a hook calls may bound them
        if torch._C._current_graph_task_id() != -1:
            self.hooked |= name in _HOOKED
            return func(*args, **kwargs)
        read = [*tensors_in([*args, *kwargs.values()])]
        gradients = self._memory_of(each.grad for each in self._parameters)
        of_gradients = [each for each in read if memory_of(each) in gradients]
        if not of_gradients and not self._from_gradients.hold_any(read):
            return func(*args, **kwargs)
        self._updates = True
        self._hidden |= name == TO_THE_HOST
        self._confirm(of_gradients)
        saturates = name in _SATURATES
        bounds = saturates or self._bounding.hold_any(read)
        before = [norm_of(each) for each in of_gradients] if bounds else []
        in_place = _written(func, args, kwargs)
        self.begins(Operation(name, of_gradients, read, in_place, bounds=bounds))
        returned = func(*args, **kwargs)
        updated = self._memory_of(self._parameters)
        made = [each for each in (*tensors_in([returned]), *in_place) if memory_of(each) not in updated]
        self._from_gradients.add(made)
        if bounds:
            self._bounding.add(made)
            self._saturated = func._schema.name if saturates else self._saturated
            self._note(of_gradients, before, in_place, made)
        self.ended(made)
        return returned

    def begins(self, operation: Operation) -> None:
        """Note that an operator call begins, after the backward pass, that reads gradients or values computed from
        gradients. This class does nothing here, but a subclass may."""

    def ended(self, made: Sequence[Tensor]) -> None:
        """Note that the operator call which was passed to `begins` has run. made: the tensors that the call returned or
        wrote to, except parameters. This class does nothing here, but a subclass may."""

    def _note(self, gradients: list[Tensor], before: list[Tensor], in_place: list[Tensor], made: list[Tensor]) -> None:
        """Store pairs of gradient norms: before and after an operator that keeps values within a bound. The gradients
        are those that the operator changed in place, and those that one of its results may replace."""
        changed = self._memory_of(in_place)
        others = [each for each in made if memory_of(each) not in changed]
        for gradient, norm in zip(gradients, before, strict=True):
            if memory_of(gradient) in changed:
                self._bounded(norm, norm_of(gradient))
            else:
                alike = (each for each in others if each.shape == gradient.shape)
                self._may_replace |= {number: (norm, norm_of(each)) for each in alike if (number := memory_of(each))}

    def _confirm(self, gradients: list[Tensor]) -> None:
        for number in self._memory_of(gradients) & self._may_replace.keys():
            self._bounded(*self._may_replace.pop(number))

    def _bounded(self, before: Tensor, after: Tensor) -> None:
        self._operator = self._operator or self._saturated
        self._norms.append((before, after))

    @staticmethod
    def _memory_of(tensors: Iterable[Tensor | None]) -> set[int]:
        return {number for each in tensors if each is not None and (number := memory_of(each)) is not None}

    def record(self) -> Clip:
        """Return the record that says whether a step clipped gradients, and whether a clip changed a gradient. This
        call waits for the device."""
        acted = any(float(before) != float(after) for before, after in self._norms)
        hidden = not self._updates or self._hidden or self.hooked or _compiled() > self._compiled_before
        return Clip(seen=True if self._norms else None if hidden else False, acted=acted, operator=self._operator)


class _Storages:
    """A set of tensors' storages, each identified by a number. The set holds weak references, which keep no memory
    allocated but ensure that no other storage gets the same number."""

    def __init__(self) -> None:
        self._known: dict[int, StorageWeakRef] = {}

    def add(self, tensors: Iterable[Tensor]) -> None:
        for each in tensors:
            if (number := memory_of(each)) is not None:
                self._known.setdefault(number, StorageWeakRef(each.untyped_storage()))  # type: ignore[no-untyped-call]

    def hold_any(self, tensors: Iterable[Tensor]) -> bool:
        return any(memory_of(each) in self._known for each in tensors)


def memory_of(tensor: Tensor) -> int | None:
    """Return the number that identifies a tensor's storage; None without a storage, as for a sparse tensor."""
    try:
        number: int = tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return None
    return number


def _written(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    places = enumerate(func._schema.arguments)
    named = [
        args[place] if place < len(args) else kwargs.get(each.name)
        for place, each in places
        if each.alias_info is not None and each.alias_info.is_write
    ]
    return [*tensors_in(named)]


def norm_of(tensor: Tensor) -> Tensor:
    """Return the tensor's L2 norm as a tensor on the same device. A clip with an effect makes this norm smaller."""
    with torch.no_grad(), _disable_current_modes():
        values = tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()
        norm: Tensor = torch.linalg.vector_norm(values)
        return norm


def _compiled() -> int:
    """Return how many frames torch has compiled in this process. The operators of compiled code cannot be observed."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else sum(dynamo.counters["frames"].values())


_ENGINE = "_engine_run_backward"  # the function in `torch.autograd` through which both `backward` and `grad` run
_SCALES = frozenset({"div", "mul"})
# Prefixes of the operators of torch's fused optimizers and of its gradient scalers. Both divide gradients by the loss
# scale.
_UNSCALES = ("_fused_", "_amp_")


class MadeGradients(ClipWatch):
    """Copies the gradients of one step as they were after its backward pass, if the step changes them later. Enter this
    context manager once for each step. At each entry it discards the copies of the previous step."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        super().__init__(parameters)
        self._by_name = dict(parameters)
        self.copying = True  # set this to False if the copies for this step are not needed

    def _begin(self) -> None:
        super()._begin()
        self.copies: dict[str, Tensor] = {}  # copies of the gradients that were changed after they were complete
        self.written: set[str] = set()  # names of the gradients that an optimizer wrote to
        # name of a gradient -> its norm after the last operator that helped to compute it
        self._made_norms: dict[str, Tensor] = {}
        # pairs of norms of one gradient at two times; the two differ only if code that cannot be observed changed it
        self._same: list[tuple[Tensor, Tensor]] = []
        # storage of a tensor that may replace a gradient -> the gradient's name, and a copy of the gradient before it
        # is replaced
        self._replacing: dict[int, tuple[str, Tensor | None]] = {}
        self._making: list[str] = []  # names of the gradients that the current operator helps to compute
        self._replaced: Sequence[Tensor] = ()  # gradients that the current operator may replace
        self._host_reads = self._unsure = False
        # frames of optimizer steps in which a backward pass has run, as in an optimizer with a closure
        self._closures: list[FrameType] = []

    def __enter__(self) -> Self:
        super().__enter__()
        if self._depth == 1:
            self._run = getattr(torch.autograd, _ENGINE)
            setattr(torch.autograd, _ENGINE, self._run_backward)
        return self

    def __exit__(self, *error: object) -> None:
        if self._depth == 1:
            setattr(torch.autograd, _ENGINE, self._run)
            with self._watched():
                self._take_replaced()
                self._check(each for each in self._by_name if each not in self.copies)
            self._replacing.clear()
            self._closures.clear()
        super().__exit__(*error)

    def is_sure(self) -> bool:
        """Return True if the copies are certainly the gradients of the backward pass, and gradients without a copy have
        certainly not changed since then. This call waits for the device (a host sync)."""
        if self._unsure or self.hooked or not self._made_norms:
            return False
        return all(torch.allclose(then, now, rtol=0, atol=0, equal_nan=True) for then, now in self._same)

    def _run_backward(self, *args: Any, **keywords: Any) -> Any:
        before: dict[str, tuple[Tensor | None, int]] = {}
        with self._watched():
            # Do not gather a sharded gradient here. All ranks would have to gather it at the same time, but each rank
            # decides alone whether it copies a gradient.
            self._unsure |= any(is_distributed(each) for each in self._by_name.values())
            before = {name: (each.grad, _version(each.grad)) for name, each in self._by_name.items()}
            self._closures += _optimizers_steps()
        returned = self._run(*args, **keywords)
        with self._watched():
            for name, (gradient, version) in before.items():
                now = self._by_name[name].grad
                if now is not None and (now is not gradient or _version(now) != version):
                    self.copies.pop(name, None)
                    self.written.discard(name)
                    self._made_norms[name] = norm_of(now)
            self._host_reads = False
        return returned

    def begins(self, operation: Operation) -> None:
        with self._watched():
            self._take_replaced()
            self._making, self._replaced, changed = [], (), self._names_of(operation.in_place)
            self._host_reads |= operation.name == TO_THE_HOST
            scales = operation.name in _SCALES
            # the call multiplies by a number on the host, and the host may have computed this number from gradients
            by_host = scales and self._host_reads
            by_gradients = operation.bounds or (scales and self._reads_made(operation))
            if operation.name.startswith(_UNSCALES):
                self._making = changed
            elif changed and self._is_an_optimizers():
                self._keep(changed)
                self.written.update(changed)
            elif changed and by_gradients:
                self._keep(changed)
            elif changed:
                self._unsure |= by_host
                self._making = changed
            elif operation.gradients and (by_gradients or by_host) and not self._is_an_optimizers():
                self._replaced, self._is_known = operation.gradients, by_gradients

    def ended(self, made: Sequence[Tensor]) -> None:
        with self._watched():
            self._made_norms.update({name: norm_of(gradient) for name, gradient in self._gradients(self._making)})
            for gradient in self._replaced:
                for name in self._names_of([gradient]):
                    copy = _copied(gradient) if self._is_known and self.copying else None
                    alike = (each for each in made if each.shape == gradient.shape)
                    self._replacing |= {number: (name, copy) for each in alike if (number := memory_of(each))}

    def _keep(self, names: Sequence[str]) -> None:
        """Copy the gradients in `names`, because they will be changed now. Skip gradients that are already copied, and
        gradients whose computation was not observed."""
        names = [name for name in names if self.copying and name not in self.copies and name in self._made_norms]
        self._check(names)
        self.copies |= {name: _copied(gradient) for name, gradient in self._gradients(names)}

    def _take_replaced(self) -> None:
        """Keep the copy of a parameter's earlier gradient, if the step has assigned another tensor to the parameter's
        `grad`."""
        for name, gradient in self._gradients(self._by_name) if self._replacing else ():
            number = memory_of(gradient)
            whose, copy = self._replacing.get(number or 0, ("", None))
            if whose == name and name not in self.copies:
                self._unsure |= copy is None
                self.copies |= {} if copy is None else {name: copy}

    def _check(self, names: Iterable[str]) -> None:
        """Store two norms of each gradient: after its computation, and now. If the two differ, code that cannot be
        observed has changed the gradient."""
        seen = ((name, gradient) for name, gradient in self._gradients(names) if name in self._made_norms)
        self._same += [(self._made_norms[name], norm_of(gradient)) for name, gradient in seen]

    def _gradients(self, names: Iterable[str]) -> list[tuple[str, Tensor]]:
        return [(name, gradient) for name in names if (gradient := self._by_name[name].grad) is not None]

    def _names_of(self, tensors: Iterable[Tensor]) -> list[str]:
        """Return the names of the gradients that share a storage with one of `tensors`."""
        memory = self._memory_of(tensors)
        return [name for name, gradient in self._gradients(self._by_name) if memory_of(gradient) in memory]

    def _reads_made(self, operation: Operation) -> bool:
        """Return True if the operation reads gradients, and also other tensors that were computed from gradients."""
        gradients = self._memory_of(operation.gradients)
        return self._from_gradients.hold_any(each for each in operation.read if memory_of(each) not in gradients)

    def _is_an_optimizers(self) -> bool:
        """Return True if an optimizer's `step` is running. Return False if a backward pass has run in this `step`: the
        closure that ran this pass may also clip gradients."""
        return any(all(step is not each for each in self._closures) for step in _optimizers_steps())

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Catch any error in the `with` block, which only observes. The step then continues without a report of its
        gradients."""
        try:
            with torch.no_grad():
                yield
        except Exception:
            self._unsure = True


def _copied(gradient: Tensor) -> Tensor:
    """Return a copy of a gradient. Dispatch modes stay active, so that a recording of the step contains the copying."""
    return gradient.detach().clone()


def _version(gradient: Tensor | None) -> int:
    return 0 if gradient is None else gradient._version


def _optimizers_steps() -> list[FrameType]:
    """Return the stack frames of the calls of an optimizer's `step` that are running now. A hook could find these
    calls, too, but with a hook torch would compile steps again."""
    found = list[FrameType]()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner, _, name = frame.f_code.co_qualname.rpartition(".")
        is_method = name == "step" and owner and not owner.endswith("<locals>")
        first = frame.f_code.co_varnames[:1] if is_method and frame.f_code.co_argcount else ()
        found += [frame for argument in first if isinstance(frame.f_locals.get(argument), Optimizer)]
        frame = frame.f_back
    return found
