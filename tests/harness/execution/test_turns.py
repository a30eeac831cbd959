"""Who is alone, who is stopped, who goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from waiting import LIMIT_S

from harness.execution.turns import Turns


class Worker:
    """Notes whether it is stopped."""

    def __init__(self) -> None:
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True

    def resume(self) -> None:
        self.stopped = False


def nothing() -> None:
    """Gives up never."""


class Started:
    """A call in a thread of its own, with a `check`, which turns call whenever the thread has waited for a while."""

    def __init__(self, call: Callable[[Callable[[], None]], object]) -> None:
        self._waited = threading.Event()
        self._thread = threading.Thread(target=call, args=(self._waited.set,), daemon=True)
        self._thread.start()

    def waits(self) -> bool:
        """Return True once the call has waited since this was asked."""
        self._waited.clear()
        return self._waited.wait(LIMIT_S)

    def returns(self) -> bool:
        """Return True once the call is over."""
        self._thread.join(LIMIT_S)
        return not self._thread.is_alive()


def test_a_worker_that_takes_the_machine_alone_stops_the_others_until_it_releases_it() -> None:
    turns, one, other = Turns(), Worker(), Worker()
    with turns.present(one), turns.present(other):
        turns.alone(one, nothing)
        assert (one.stopped, other.stopped) == (False, True)
        turns.together(one)
        assert (one.stopped, other.stopped) == (False, False)


def test_a_worker_that_already_has_the_machine_alone_gets_it_again_immediately() -> None:
    turns, one, other = Turns(), Worker(), Worker()
    with turns.present(one), turns.present(other):
        turns.alone(one, nothing)
        assert Started(lambda check: turns.alone(one, check)).returns()
        assert (one.stopped, other.stopped) == (False, True)
        turns.together(one)
        assert (one.stopped, other.stopped) == (False, False)


def test_workers_get_the_machine_in_the_order_of_their_requests() -> None:
    turns, first, second, third = Turns(), Worker(), Worker(), Worker()
    with turns.present(first), turns.present(second), turns.present(third):
        turns.alone(first, nothing)
        asks_second = Started(lambda check: turns.alone(second, check))
        assert asks_second.waits()
        asks_third = Started(lambda check: turns.alone(third, check))
        assert asks_third.waits()
        turns.together(first)
        assert asks_second.returns()
        assert (first.stopped, second.stopped, third.stopped) == (True, False, True)
        turns.together(second)
        assert asks_third.returns()
        assert (first.stopped, second.stopped, third.stopped) == (True, True, False)
        turns.together(third)
        assert (first.stopped, second.stopped, third.stopped) == (False, False, False)


def test_no_worker_begins_while_one_worker_has_the_machine_alone() -> None:
    turns, one, late = Turns(), Worker(), Worker()
    entered = threading.Event()

    def enter(check: Callable[[], None]) -> None:
        with turns.present(late, check):
            entered.set()

    with turns.present(one):
        turns.alone(one, nothing)
        begins = Started(enter)
        assert begins.waits()
        assert not entered.is_set()
        turns.together(one)
        assert begins.returns()


def test_a_worker_that_leaves_while_alone_lets_the_other_workers_continue() -> None:
    turns, one, other = Turns(), Worker(), Worker()
    with turns.present(other):
        with turns.present(one):
            turns.alone(one, nothing)
            assert other.stopped
        assert not other.stopped


def test_a_worker_that_stops_requesting_the_machine_is_not_waited_for() -> None:
    turns, one, other, third = Turns(), Worker(), Worker(), Worker()
    given_up = threading.Event()

    def ask(check: Callable[[], None]) -> None:
        def give_up() -> None:
            check()
            if given_up.is_set():
                raise InterruptedError

        with pytest.raises(InterruptedError):
            turns.alone(other, give_up)

    with turns.present(one), turns.present(other), turns.present(third):
        turns.alone(one, nothing)
        asks = Started(ask)
        assert asks.waits()
        given_up.set()
        assert asks.returns()
        turns.together(one)
        assert (one.stopped, third.stopped) == (False, False)
        assert Started(lambda check: turns.alone(third, check)).returns()
