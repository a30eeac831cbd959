"""Keep gradients as the backward pass leaves them, where a step changes them before it ends.

A clip hides how large they were, and so a loss that is scaled or summed wrongly. What multiplies them by numbers alone
(a loss scale, a count of tokens), or adds to them, still makes them. They are made once something that is made of
gradients bounds or scales them, or an optimizer writes into them: torch's fused ones divide by the loss scale alone.

No hook is registered: torch.compile would trace it. A dispatch mode sees the operators, and torch's one entry into the
engine is wrapped to see where a backward pass ends. Code that no mode sees (compiled code, a kernel of its own) is
noticed by a gradient's norm, which changes between two operators; nothing is said of that step then. Over the
recording of a captured step the copies are operators of the recording, so that each replay makes them anew.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

import torch
from torch import Tensor
from torch.optim import Optimizer

from harness.execution.watchers.clip_watch import TO_THE_HOST, ClipWatch, Operation, memory_of, norm_of
from harness.system.shards import is_distributed

_ENGINE = "_engine_run_backward"  # of `torch.autograd`, for `backward` and `grad`
_SCALES = frozenset({"div", "mul"})
_UNSCALES = ("_fused_", "_amp_")  # torch's optimizers of one operator, which divide by a loss scale, and its scalers


class MadeGradients(ClipWatch):
    """Of one step at a time: a block forgets the one before it."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        super().__init__(parameters)
        self._by_name = dict(parameters)
        self.copying = True  # False: nothing reads the gradients of this step

    def _begin(self) -> None:
        super()._begin()
        self.copies: dict[str, Tensor] = {}  # of gradients that were changed once they were made
        self.written: set[str] = set()  # names of those that an optimizer wrote into
        self._made_norms: dict[str, Tensor] = {}  # by name, after the last operator that makes it
        self._same: list[tuple[Tensor, Tensor]] = []  # norms that only unseen code can have made unequal
        self._replacing: dict[int, tuple[str, Tensor | None]] = {}  # by memory: whose gradient that may become
        self._making: list[str] = []  # what the operator under way makes
        self._replaced: Sequence[Tensor] = ()  # gradients that it may replace
        self._host_reads = self._unsure = False
        self._closures: list[FrameType] = []  # steps of optimizers that have run a backward pass, as a closure does

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
        """Return True if the copies, or else what the step left, surely are its gradients. Reads from the device."""
        if self._unsure or self.hooked or not self._made_norms:
            return False
        return all(torch.allclose(then, now, rtol=0, atol=0, equal_nan=True) for then, now in self._same)

    def _run_backward(self, *args: Any, **keywords: Any) -> Any:
        before: dict[str, tuple[Tensor | None, int]] = {}
        with self._watched():
            # every rank would have to decide alike whether it gathers them
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
            by_host = scales and self._host_reads  # maybe by a number that was made of gradients
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
        """Copy gradients that are about to change, unless they changed before, or were not seen to be made."""
        names = [name for name in names if self.copying and name not in self.copies and name in self._made_norms]
        self._check(names)
        self.copies |= {name: _copied(gradient) for name, gradient in self._gradients(names)}

    def _take_replaced(self) -> None:
        """Keep the copy of a gradient, as it was, if the step has put another tensor in its place."""
        for name, gradient in self._gradients(self._by_name) if self._replacing else ():
            number = memory_of(gradient)
            whose, copy = self._replacing.get(number or 0, ("", None))
            if whose == name and name not in self.copies:
                self._unsure |= copy is None
                self.copies |= {} if copy is None else {name: copy}

    def _check(self, names: Iterable[str]) -> None:
        """Note norms that show later if gradients are as the last operator that was seen to make them left them."""
        seen = ((name, gradient) for name, gradient in self._gradients(names) if name in self._made_norms)
        self._same += [(self._made_norms[name], norm_of(gradient)) for name, gradient in seen]

    def _gradients(self, names: Iterable[str]) -> list[tuple[str, Tensor]]:
        return [(name, gradient) for name in names if (gradient := self._by_name[name].grad) is not None]

    def _names_of(self, tensors: Iterable[Tensor]) -> list[str]:
        """Return the names of gradients that lie in the memory of tensors. Several may lie in one."""
        memory = self._memory_of(tensors)
        return [name for name, gradient in self._gradients(self._by_name) if memory_of(gradient) in memory]

    def _reads_made(self, operation: Operation) -> bool:
        """Return True if the operation reads what was made of gradients, next to gradients themselves."""
        gradients = self._memory_of(operation.gradients)
        return self._from_gradients.hold_any(each for each in operation.read if memory_of(each) not in gradients)

    def _is_an_optimizers(self) -> bool:
        """Return True within `step` of an optimizer, unless a closure of it made the gradients, and may clip them."""
        return any(all(step is not each for each in self._closures) for step in _optimizers_steps())

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Let an error of the watch cost what the watch would have reported, and never the step."""
        try:
            with torch.no_grad():
                yield
        except Exception:
            self._unsure = True


def _copied(gradient: Tensor) -> Tensor:
    """Copy a gradient under the active modes, so that a recording has the copy."""
    return gradient.detach().clone()


def _version(gradient: Tensor | None) -> int:
    return 0 if gradient is None else gradient._version


def _optimizers_steps() -> list[FrameType]:
    """Return the calls of optimizers' `step` under way. With a hook, torch would compile compiled ones anew."""
    found = list[FrameType]()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner, _, name = frame.f_code.co_qualname.rpartition(".")
        is_method = name == "step" and owner and not owner.endswith("<locals>")
        first = frame.f_code.co_varnames[:1] if is_method and frame.f_code.co_argcount else ()
        found += [frame for argument in first if isinstance(frame.f_locals.get(argument), Optimizer)]
        frame = frame.f_back
    return found
