"""Tell what each loose tensor that the steps made is to the training: state, a table, a log, or what a step left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor

from harness.evidence.arm_records import Loose, Role
from harness.runners.reductions import digests
from harness.system.replay.found_state import StateByCategory, same
from harness.system.replay.ledger import DATA, PARAMETERS, Ledger, Memory

LOOSE = "tensors"
_REGISTERED = ("parameters", "buffers", "optimizer")


class _Seen(NamedTuple):
    """A loose tensor at one time. place: of its elements, which other ones may get once it is gone."""

    memory: Memory | None
    place: tuple[object, ...]
    digest: str


class LooseWatch:
    """Follows the steps of one execution by a ledger. Call `begin`; `step` around each step, and `stepped` after it.

    What raises within costs the roles, which say so, and nothing else. state: walks from the training.
    """

    def __init__(self, state: Callable[[], StateByCategory]) -> None:
        self._state = state
        self._ledger = Ledger()
        self._early: frozenset[str] = frozenset()
        self._registered: set[Memory] = set()  # what has a name in another category
        self._first: dict[str, _Seen] = {}  # after the first step
        self._before: dict[str, _Seen] = {}  # before the last one
        self._after: dict[str, _Seen] | None = None

    def begin(self, state: StateByCategory) -> None:
        """Take loose tensors that are there now for state from before the first step."""
        self._early = frozenset(state.get(LOOSE, {}))
        self._ask(lambda: self._know(state))
        self._ask(lambda: self._ledger.begin_with(state.get(LOOSE, {}).values()))

    @contextmanager
    def step(self, *, is_last: bool) -> Iterator[None]:
        """Watch a step in the block."""
        if is_last and self._ledger.step:
            self._before = self._ask(self._census) or {}
        with self._ledger:
            yield

    def stepped(self, loss: object, *, is_last: bool) -> None:
        """Note that the step has returned its loss."""
        self._ask(lambda: self._ledger.ended(loss))
        if self._ledger.step == 1:  # optimizers have made their state
            self._first = self._ask(self._census) or {}
        if is_last:
            self._after = self._ask(self._census)

    def loose(self, tensors: dict[str, Tensor]) -> Loose:
        """Return the roles of the loose tensors of an end that were not there at the start."""
        late = {name: tensor for name, tensor in tensors.items() if name not in self._early}
        roles = self._ask(self._roles) or {}
        if self._ledger.failure is not None:
            return Loose(roles=None, unread={}, failure=self._ledger.failure)
        found: dict[str, Role] = {name: roles.get(name, "left") for name in sorted(late)}
        return Loose(
            roles=found, unread=digests({name: late[name] for name in found if found[name] in ("log", "left")})
        )

    def _roles(self) -> dict[str, Role]:
        if self._after is None:
            if late := self._ledger.step:
                raise RuntimeError(f"the last of {late} steps was not announced as such")
            return {}
        read = self._ledger.read_marks()
        roles = {name: self._role(name, seen, read) for name, seen in self._after.items()}
        derived = [self._after[name].memory for name, role in roles.items() if role == "derived"]
        # what decides which weights are the best ones is read by them
        by_derived = self._ledger.read_marks(also=[each for each in derived if each is not None])
        decides = {name for name, seen in self._after.items() if self._marks(name, seen) & by_derived}
        return {name: "state" if role == "log" and name in decides else role for name, role in roles.items()}

    def _marks(self, name: str, now: _Seen) -> int:
        """Marks of the memory that has the name, and of the one that had it before the last step."""
        before = self._before.get(name)
        prior = None if before is None else before.memory
        return sum({each: each.marks for each in (now.memory, prior) if each is not None}.values())

    def _role(self, name: str, now: _Seen, read: int) -> Role:
        memory, before, last = now.memory, self._before.get(name), self._ledger.step - 1
        prior = None if before is None else before.memory
        if memory is None:  # no operator of a step met it: an array of numpy's, or what was made between two steps
            stayed = before is not None and prior is None and before.place == now.place
            return "state" if stayed and before is not None and before.digest != now.digest else "left"
        if memory in self._registered or memory.is_early:  # compared by its other name
            return "left"
        if memory.is_kept or self._changed_unseen(name, now):
            return "state"
        if self._marks(name, now) & read:
            changed = memory is not prior or (memory.written is not None and memory.written > memory.born)
            return "state" if changed or memory.made_of & PARAMETERS else "table"
        is_new = memory.born == last and not (prior is not None and prior.marks & memory.made_of)
        if memory.is_given or (is_new and (last == 0 or (prior is not None and prior.born >= last - 1))):
            return "left"
        return "derived" if memory.made_of & (DATA | PARAMETERS) == PARAMETERS else "log"

    def _changed_unseen(self, name: str, now: _Seen) -> bool:
        """Return True if the elements changed since an earlier census and no operator wrote to them."""
        for earlier, since in ((self._first, 1), (self._before, self._ledger.step - 1)):
            before = earlier.get(name)
            if before is not None and before.memory is now.memory and before.digest != now.digest:
                written = None if now.memory is None else now.memory.written
                if written is None or written < since:
                    return True
        return False

    def _census(self) -> dict[str, _Seen]:
        state = self._state()
        self._know(state)
        late = {name: tensor for name, tensor in state.get(LOOSE, {}).items() if name not in self._early}
        found = digests(late)
        return {name: _Seen(self._ledger.memory_of(tensor), same(tensor), found[name]) for name, tensor in late.items()}

    def _know(self, state: StateByCategory) -> None:
        for category in _REGISTERED:
            self._ledger.keep(state.get(category, {}).values())
        known = (self._ledger.memory_of(each) for category in _REGISTERED for each in state.get(category, {}).values())
        self._registered |= {memory for memory in known if memory is not None}

    def _ask(self, question: Callable[[], Any]) -> Any:
        """Return the answer; None where the ledger failed, now or before."""
        if self._ledger.failure is None:
            try:
                return question()
            except Exception as error:
                self._ledger.failure = f"{type(error).__name__}: {error}"
        return None
