"""Decide the role of each loose tensor that the steps created: state, a table, a log, or a leftover.

A loose tensor is one that the step can reach and that belongs to no module or optimizer.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

from torch import Tensor

from harness.evidence.arm_records import COMPARED, Loose, Role
from harness.execution.watchers.reductions import digests
from harness.system.replay.found_state import StateByCategory, same
from harness.system.replay.ledger import DATA, PARAMETERS, WHOLE, Ledger, Memory, is_of_torch

LOOSE = "tensors"
_REGISTERED = ("parameters", "buffers", "optimizer")


_NUMBERS = re.compile(r"\d+")
# a tensor's name without numbers, its type and its shape: tensors with equal keys are assumed to be made in the same
# way
_Like = tuple[str, object, object]


class _Seen(NamedTuple):
    """A loose tensor at one moment. place: where its elements are in memory; later another tensor may be there."""

    memory: Memory | None
    place: tuple[object, ...]
    digest: str
    like: _Like


class LooseWatch:
    """Follows some steps of an execution with a ledger, which tracks from which tensors each tensor is computed.

    Call `begin`, then for each step enter `step` around it, and call `stepped` after it. If the watch raises an error,
    only the roles of the loose tensors are recorded as failed. state: returns the current state.
    """

    def __init__(self, state: Callable[[], StateByCategory]) -> None:
        self._state = state
        self._ledger = Ledger()
        self._chosen: FollowedSteps | None = None  # the steps to follow; None until the number of steps is known
        self._follows = False
        self._early: frozenset[str] = frozenset()
        self._twice: frozenset[str] = frozenset()  # early tensors that also had a name in another category
        self._registered: set[Memory] = set()  # memory of tensors that have a name in another category
        self._left_out = -1  # the last step that was not followed; -1: every step was followed
        # the number of steps made before the previous census, and the result of that census
        self._earlier: tuple[int, dict[str, _Seen]] = 0, {}
        # Memory that changed since the previous census although all steps were followed and no operator changed it.
        self._changed: set[Memory] = set()
        self._versions: dict[Memory, int] = {}  # torch's version counter of each memory, when it was last read
        self._rewritten: set[Memory] = set()  # memory that steps wrote to which were not followed
        self._before: dict[str, _Seen] = {}  # the census that was taken before the last step
        self._after: dict[str, _Seen] | None = None
        self._made: dict[_Like, set[Role]] = {}  # roles of the tensors that the followed steps made

    def begin(self, state: StateByCategory) -> None:
        """Treat the loose tensors that exist now as state from before the first step."""
        self._early, self._twice = frozenset(state.get(LOOSE, {})), _named_twice(state)
        self._ask(lambda: self._know(state))
        self._ask(lambda: self._ledger.begin_with(state.get(LOOSE, {}).values()))

    @contextmanager
    def step(self, *, left: int) -> Iterator[None]:
        """Watch a step in the block. left: how many steps are still to come after this one."""
        index = self._ledger.step
        self._chosen = chosen = self._chosen or FollowedSteps(index + left + 1)
        if chosen.looks_before(index):
            chosen.wait(unexplained=bool(self._ask(self._unexplained)))
        if index and not left:
            self._before = self._ask(self._census) or {}
        self._follows = chosen.is_followed(index)
        with self._ledger if self._follows else nullcontext():
            yield

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Watch an evaluation between two steps. Tensors that it reads are state, like tensors that steps read."""
        with self._ledger:
            yield
        self._ask(self._ledger.evaluated)

    def stepped(self, loss: object, *, left: int) -> None:
        """Process a step that has returned its loss. left: how many steps are still to come after this one."""
        if self._follows:
            self._ask(lambda: self._ledger.ended(loss))
        else:
            self._left_out = self._ledger.step
            self._ledger.passed()
        if not left:
            self._after = self._ask(self._census)
        elif self._ledger.step in (1, FIRST):
            # At these steps optimizers have created their state, and all steps so far were followed.
            self._ask(self._census)

    def loose(self, state: StateByCategory) -> Loose:
        """Return the roles of those loose tensors in `state`, the state at the end, that are not compared by name.

        These are tensors that did not exist at the start, and tensors that were taken over later. An optimizer, for
        example, may take over the tensors of a checkpoint that its trainer keeps.
        """
        compared = self._early - (_named_twice(state) - self._twice)
        late = {name: tensor for name, tensor in state.get(LOOSE, {}).items() if name not in compared}
        roles = self._ask(self._roles) or {}
        if self._ledger.failure is not None:
            return Loose(roles=None, unread={}, failure=self._ledger.failure)
        found: dict[str, Role] = {name: roles.get(name, "left") for name in sorted(late)}
        return Loose(roles=found, unread=digests({name: late[name] for name in found if found[name] not in COMPARED}))

    def _roles(self) -> dict[str, Role]:
        if self._after is None:
            if self._ledger.step and self._late():  # the training ended early by itself
                raise RuntimeError(
                    f"the last of {self._ledger.step} steps was not announced to the watcher as the last"
                )
            return {}
        read = self._ledger.read_marks()
        roles = {name: self._role(name, seen, read) for name, seen in self._after.items()}
        derived = [self._after[name].memory for name, role in roles.items() if role == "derived"]
        # A "best so far" value is read to decide which weights are kept. So such a value counts as state.
        by_derived = self._ledger.read_marks(also=[each for each in derived if each is not None])
        decides = {name for name, seen in self._after.items() if self._marks(name, seen) & by_derived}
        return {name: "state" if role in ("log", "mixed") and name in decides else role for name, role in roles.items()}

    def _marks(self, name: str, now: _Seen) -> int:
        """Return the marks (bits) of the memory that the name denotes now, and denoted before the last step."""
        before = self._before.get(name)
        prior = None if before is None else before.memory
        return sum({each: each.marks for each in (now.memory, prior) if each is not None}.values())

    def _role(self, name: str, now: _Seen, read: int) -> Role:
        memory, before = now.memory, self._before.get(name)
        prior = None if before is None else before.memory
        # No operator of a step used the tensor. It is a numpy array, or it was made between two steps.
        if memory is None:
            stayed = before is not None and prior is None and before.place == now.place
            return "state" if stayed and before is not None and before.digest != now.digest else "left"
        if memory in self._registered or memory.is_early:  # the tensor is compared under its other name
            return "left"
        if memory.is_kept or memory in self._changed:
            return "state"
        if self._marks(name, now) & read:
            changed = memory is not prior or (memory.written is not None and memory.written > memory.born)
            return "state" if changed or memory.made_of & PARAMETERS else "table"
        return self._unread_role(memory, prior, now.like)

    def _unread_role(self, memory: Memory, prior: Memory | None, like: _Like) -> Role:
        last = self._ledger.step - 1
        if not self._is_explained(memory, like):
            return "unseen"
        if memory.is_unseen and memory.written is None:
            return next(iter(self._made[like])) if len(self._made[like]) == 1 else "unseen"
        is_new = memory.born == last and not (prior is not None and prior.marks & memory.made_of)
        if memory.is_given or (is_new and (last == 0 or (prior is not None and prior.born >= last - 1))):
            return "left"
        return _role_by_making(memory)

    def _is_explained(self, memory: Memory, like: _Like) -> bool:
        """Return True if a followed step has shown what this memory, which no step read, was computed from.

        It is enough that a step has shown this for a tensor with a similar name and the same type and shape.
        """
        if memory.written is not None:
            return True
        return memory not in self._rewritten and (not memory.is_unseen or like in self._made)

    def _unexplained(self) -> bool:
        """Find tensors that unfollowed steps created or wrote. Return True if it is unknown how one was computed."""
        late = self._late()
        # tensors of other libraries are not made by torch's operators, so leave them out
        own = [tensor for tensor in late.values() if is_of_torch(tensor)]
        self._ledger.adopt(own)
        self._note(late)
        read = self._ledger.read_marks()
        return any(
            memory is not None
            and not (memory in self._registered or memory.is_early or memory.is_kept or memory.marks & read)
            and not self._is_explained(memory, _like(name, tensor))
            for name, tensor in late.items()
            for memory in [self._ledger.memory_of(tensor)]
        )

    def _note(self, late: dict[str, Tensor]) -> None:
        """Record what the tensors in `late` were computed from, and which of them were written since the last call."""
        versions = {}
        for name, tensor in late.items():
            memory = self._ledger.memory_of(tensor)
            if memory is None or tensor.is_inference():
                continue
            versions[memory] = tensor._version
            if self._versions.get(memory, tensor._version) != tensor._version and memory.written is None:
                self._rewritten.add(memory)
            elif not memory.is_unseen or memory.written is not None:
                self._made.setdefault(_like(name, tensor), set()).add(_role_by_making(memory))
        self._versions = versions

    def _census(self) -> dict[str, _Seen]:
        late, step = self._late(), self._ledger.step
        self._note(late)
        found = digests(late)
        seen = {
            name: _Seen(self._ledger.memory_of(tensor), same(tensor), found[name], _like(name, tensor))
            for name, tensor in late.items()
        }
        since, earlier = self._earlier
        if since > self._left_out:
            for name in seen.keys() & earlier.keys():
                memory = seen[name].memory
                if memory is not None and memory is earlier[name].memory and earlier[name].digest != seen[name].digest:
                    self._changed |= {memory} if memory.written is None or memory.written < since else set()
        self._earlier = step, seen
        return seen

    def _late(self) -> dict[str, Tensor]:
        """Return the current loose tensors that did not exist at the start."""
        state = self._state()
        self._know(state)
        return {name: tensor for name, tensor in state.get(LOOSE, {}).items() if name not in self._early}

    def _know(self, state: StateByCategory) -> None:
        for category in _REGISTERED:
            self._ledger.keep(state.get(category, {}).values())
        known = (self._ledger.memory_of(each) for category in _REGISTERED for each in state.get(category, {}).values())
        self._registered |= {memory for memory in known if memory is not None}

    def _ask(self, question: Callable[[], Any]) -> Any:
        """Call `question` and return its result; return None if the ledger fails now or has failed before."""
        if self._ledger.failure is None:
            try:
                return question()
            except Exception as error:
                self._ledger.failure = f"{type(error).__name__}: {error}"
        return None


def _named_twice(state: StateByCategory) -> frozenset[str]:
    """Return the names of loose tensors that another category also contains. They are compared under that category."""
    known = {same(tensor) for category in _REGISTERED for tensor in state.get(category, {}).values()}
    return frozenset(name for name, tensor in state.get(LOOSE, {}).items() if same(tensor) in known)


def _like(name: str, tensor: Tensor) -> _Like:
    return _NUMBERS.sub("#", name), tensor.dtype, tensor.shape


def _role_by_making(memory: Memory) -> Role:
    if memory.made_of & (DATA | PARAMETERS) == PARAMETERS:
        return "derived"
    return "mixed" if memory.made_of & WHOLE else "log"


# The second step reads tensors that the first step made. The third step reads tensors that a warm-up left behind.
FIRST = 3
LAST = 2  # two consecutive steps show which tensors every step replaces
_DRAWN, _LOOKS, _APART, _MOST_WAITED = 2, 13, 16, 128


class FollowedSteps:
    """Chooses which steps of an execution the ledger follows. All executions with `steps` steps get the same choice."""

    def __init__(self, steps: int) -> None:
        self._steps, self._apart = steps, max(_APART, steps // _LOOKS)
        between = range(FIRST, steps - LAST)
        self._drawn = frozenset(random.Random(steps).sample(between, min(_DRAWN, len(between))))
        # how many more steps may be followed while some tensors are unexplained
        self._left = min(steps // 2, _MOST_WAITED)
        self._waits = False

    def looks_before(self, index: int) -> bool:
        """Return True if the watch looks for new tensors before step `index`: regularly, and where following begins."""
        begins = index in self._drawn or index == self._steps - LAST
        return FIRST <= index < self._steps - 1 and (begins or index % self._apart == 0)

    def wait(self, *, unexplained: bool) -> None:
        """Follow further steps, within the budget, while a tensor's origin is unknown. Called after each search."""
        self._waits = unexplained

    def is_followed(self, index: int) -> bool:
        """Return True if step `index` is followed. Call this once for each step, because a call may use the budget."""
        if index < FIRST or index in self._drawn or index >= self._steps - LAST:
            return True
        self._left -= self._waits
        return self._waits and self._left >= 0
