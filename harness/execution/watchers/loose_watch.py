"""Find the role of each loose tensor that the steps created: whether it is state, a table, a log, or left over. A loose
tensor is a tensor that the step can reach and that belongs to no module or optimizer."""

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
# The name of a tensor without the numbers in it, the tensor's type, and its shape. If two tensors are equal in all
# three, the code below assumes that both are computed in the same way.
_Like = tuple[str, object, object]


class _Seen(NamedTuple):
    """A loose tensor at one moment.

    place: where its elements are in memory; another tensor may be there later. memory: what the ledger recorded about
    this memory, such as from which tensors it was computed; None if no operator used the memory in a followed step (a
    step whose operators the ledger records).
    """

    memory: Memory | None
    place: tuple[object, ...]
    digest: str
    like: _Like


class LooseWatch:
    """Follows some steps of an execution: a ledger records the operators of these steps. The records show from which
    tensors each tensor is computed.

    Call `begin` first. Make each step within the `with` block of `step`, and call `stepped` after it. Call `loose` at
    the end. If following fails, only the roles of the loose tensors are unknown. state: a function that returns the
    training's current state.
    """

    def __init__(self, state: Callable[[], StateByCategory]) -> None:
        self._state = state
        self._ledger = Ledger()
        # decides which steps to follow; None until the number of steps is known
        self._chosen: FollowedSteps | None = None
        self._follows = False
        self._early: frozenset[str] = frozenset()
        # names of the tensors in `_early` that are also in another category of the state, such as the optimizer's
        self._twice: frozenset[str] = frozenset()
        self._registered: set[Memory] = set()  # memory of parameters, buffers and optimizer state
        self._left_out = -1  # number of the last step that was not followed; -1: every step was followed
        # A census is a search for all loose tensors. `_earlier` has the number of steps before the previous census, and
        # the result of that census.
        self._earlier: tuple[int, dict[str, _Seen]] = 0, {}
        # memory that changed since the previous census although every step since then was followed and no operator
        # wrote to this memory
        self._changed: set[Memory] = set()
        self._versions: dict[Memory, int] = {}  # memory -> torch's version counter in the last call of `_note`
        # memory that was written to in a step that was not followed (a step whose operators the ledger did not record)
        self._rewritten: set[Memory] = set()
        self._before: dict[str, _Seen] = {}  # the result of the census before the last step
        self._after: dict[str, _Seen] | None = None
        # tensors with equal names (without numbers), types and shapes -> the roles of those that a followed step
        # created
        self._made: dict[_Like, set[Role]] = {}

    def begin(self, state: StateByCategory) -> None:
        """Store which loose tensors `state`, the state before the first step, contains. They existed before the steps
        and so count as state."""
        self._early, self._twice = frozenset(state.get(LOOSE, {})), _named_twice(state)
        self._ask(lambda: self._know(state))
        self._ask(lambda: self._ledger.begin_with(state.get(LOOSE, {}).values()))

    @contextmanager
    def step(self, *, left: int) -> Iterator[None]:
        """Observe the step in the `with` block. left: how many steps come after this step."""
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
        """Observe an evaluation between two steps. A tensor that the evaluation reads counts as state, like a tensor
        that a step reads."""
        with self._ledger:
            yield
        self._ask(self._ledger.evaluated)

    def stepped(self, loss: object, *, left: int) -> None:
        """Note that a step returned `loss`, and search for loose tensors if due. left: how many steps come after it."""
        if self._follows:
            self._ask(lambda: self._ledger.ended(loss))
        else:
            self._left_out = self._ledger.step
            self._ledger.passed()
        if not left:
            self._after = self._ask(self._census)
        elif self._ledger.step in (1, FIRST):
            # Search after the first step and after step FIRST: the optimizers have created their state, and every step
            # so far was followed.
            self._ask(self._census)

    def loose(self, state: StateByCategory) -> Loose:
        """Return the roles of the loose tensors in `state`, the state at the end. A loose tensor that existed at the
        start needs no role, because the arms' tensors of this name are compared.

        If a module or optimizer has taken over such a tensor since then, the tensor still gets a role. An optimizer
        may, for example, take over the tensors of a checkpoint that its trainer keeps.
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
            if self._ledger.step and self._late():  # the training itself ended before its last announced step
                raise RuntimeError(
                    "the training ended before the last step that the harness announced; steps that were made: "
                    f"{self._ledger.step}"
                )
            return {}
        read = self._ledger.read_marks()
        roles = {name: self._role(name, seen, read) for name, seen in self._after.items()}
        derived = [self._after[name].memory for name, role in roles.items() if role == "derived"]
        # A trainer may read a value such as "best so far" to decide which weights it keeps. Such a value counts as
        # state.
        by_derived = self._ledger.read_marks(also=[each for each in derived if each is not None])
        decides = {name for name, seen in self._after.items() if self._marks(name, seen) & by_derived}
        return {name: "state" if role in ("log", "mixed") and name in decides else role for name, role in roles.items()}

    def _marks(self, name: str, now: _Seen) -> int:
        """Return the marks of the tensor `name`. A mark is a bit that the ledger gives to memory when a later step
        reads it. The marks of the tensor's present memory and of its memory before the last step are combined."""
        before = self._before.get(name)
        prior = None if before is None else before.memory
        return sum({each: each.marks for each in (now.memory, prior) if each is not None}.values())

    def _role(self, name: str, now: _Seen, read: int) -> Role:
        memory, before = now.memory, self._before.get(name)
        prior = None if before is None else before.memory
        # If the ledger does not know the tensor's memory, no operator of a followed step used the tensor: the tensor is
        # a numpy array, or was created between steps.
        if memory is None:
            stayed = before is not None and prior is None and before.place == now.place
            return "state" if stayed and before is not None and before.digest != now.digest else "left"
        if memory in self._registered or memory.is_early:  # the tensor is compared under another name
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
        """Return True if it is known which tensors the values in `memory` were computed from. No step reads `memory`. A
        followed step has shown these tensors for `memory` itself, or for a tensor of equal type and shape whose name
        differs only in numbers."""
        if memory.written is not None:
            return True
        return memory not in self._rewritten and (not memory.is_unseen or like in self._made)

    def _unexplained(self) -> bool:
        """Examine tensors that were created or written by steps that were not followed. Return True if the sources of
        at least one of them (the tensors from which it was computed) are unknown. Skip tensors that are compared in any
        case."""
        late = self._late()
        # leave out arrays of other libraries, which torch's operators do not compute
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
        """Record the role (`_role_by_making`) of each tensor in `late` whose computation a followed step shows. Also
        record which tensors in `late` changed since the last call although no followed step wrote to them."""
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
        """Return the loose tensors (of no module or optimizer) that exist now and did not exist at the start."""
        state = self._state()
        self._know(state)
        return {name: tensor for name, tensor in state.get(LOOSE, {}).items() if name not in self._early}

    def _know(self, state: StateByCategory) -> None:
        for category in _REGISTERED:
            self._ledger.keep(state.get(category, {}).values())
        known = (self._ledger.memory_of(each) for category in _REGISTERED for each in state.get(category, {}).values())
        self._registered |= {memory for memory in known if memory is not None}

    def _ask(self, question: Callable[[], Any]) -> Any:
        """Call `question` and return its result. Return None if following the steps fails now, or has failed before."""
        if self._ledger.failure is None:
            try:
                return question()
            except Exception as error:
                self._ledger.failure = f"{type(error).__name__}: {error}"
        return None


def _named_twice(state: StateByCategory) -> frozenset[str]:
    """Return the names of loose tensors (of no module or optimizer) that are also in another category of `state`, where
    they are compared."""
    known = {same(tensor) for category in _REGISTERED for tensor in state.get(category, {}).values()}
    return frozenset(name for name, tensor in state.get(LOOSE, {}).items() if same(tensor) in known)


def _like(name: str, tensor: Tensor) -> _Like:
    return _NUMBERS.sub("#", name), tensor.dtype, tensor.shape


def _role_by_making(memory: Memory) -> Role:
    if memory.made_of & (DATA | PARAMETERS) == PARAMETERS:
        return "derived"
    return "mixed" if memory.made_of & WHOLE else "log"


# Number of steps at the start whose operators are recorded (followed steps). The second step reads tensors that the
# first step created. The third step reads tensors that a warm-up left behind.
FIRST = 3
LAST = 2  # number of followed steps at the end; two steps show which tensors every step replaces
_DRAWN, _LOOKS, _APART, _MOST_WAITED = 2, 13, 16, 128


class FollowedSteps:
    """Chooses the steps of an execution to follow. During these steps the harness records, for each operator, which
    tensors it reads and writes. The planned steps depend only on the number of steps; `wait` adds steps."""

    def __init__(self, steps: int) -> None:
        self._steps, self._apart = steps, max(_APART, steps // _LOOKS)
        between = range(FIRST, steps - LAST)
        self._drawn = frozenset(random.Random(steps).sample(between, min(_DRAWN, len(between))))
        # how many additional steps may be followed to find out from which tensors a new tensor is computed
        self._left = min(steps // 2, _MOST_WAITED)
        self._waits = False

    def looks_before(self, index: int) -> bool:
        """Return True if the harness must search for new tensors before step `index`. The harness searches at regular
        intervals, before each randomly drawn step, and before the first of the LAST steps at the end."""
        begins = index in self._drawn or index == self._steps - LAST
        return FIRST <= index < self._steps - 1 and (begins or index % self._apart == 0)

    def wait(self, *, unexplained: bool) -> None:
        """Follow the next steps, up to a limited number, if `unexplained` is True. unexplained: True if the last search
        found a tensor whose inputs are unknown."""
        self._waits = unexplained

    def is_followed(self, index: int) -> bool:
        """Return True if step `index` is followed. Call this method only once for each step, because a call may use up
        one of the limited number of additional steps."""
        if index < FIRST or index in self._drawn or index >= self._steps - LAST:
            return True
        self._left -= self._waits
        return self._waits and self._left >= 0
