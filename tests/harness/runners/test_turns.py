"""Who is alone, who is stopped, who goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from harness.runners.turns import Turns


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


def started(call: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def waits(thread: threading.Thread) -> bool:
    thread.join(0.15)
    return thread.is_alive()


def test_who_is_alone_stops_the_others_until_it_is_not() -> None:
    turns, one, other = Turns(), Worker(), Worker()
    with turns.present(one), turns.present(other):
        turns.alone(one, nothing)
        assert (one.stopped, other.stopped) == (False, True)
        turns.together(one)
        assert (one.stopped, other.stopped) == (False, False)


def test_who_is_alone_already_does_not_wait_for_itself() -> None:
    turns, one, other = Turns(), Worker(), Worker()
    with turns.present(one), turns.present(other):
        turns.alone(one, nothing)
        assert not waits(started(lambda: turns.alone(one, nothing)))
        assert (one.stopped, other.stopped) == (False, True)
        turns.together(one)
        assert (one.stopped, other.stopped) == (False, False)


def test_askers_are_served_in_their_order_and_who_has_been_alone_waits_for_the_rest() -> None:
    turns, first, second, third = Turns(), Worker(), Worker(), Worker()
    with turns.present(first), turns.present(second), turns.present(third):
        turns.alone(first, nothing)
        asks_second = started(lambda: turns.alone(second, nothing))
        assert waits(asks_second)
        asks_third = started(lambda: turns.alone(third, nothing))
        assert waits(asks_third)
        turns.together(first)
        assert not waits(asks_second)
        assert (first.stopped, second.stopped, third.stopped) == (True, False, True)
        turns.together(second)
        assert not waits(asks_third)
        assert (first.stopped, second.stopped, third.stopped) == (True, True, False)
        turns.together(third)
        assert (first.stopped, second.stopped, third.stopped) == (False, False, False)


def test_nobody_begins_while_one_is_alone() -> None:
    turns, one, late = Turns(), Worker(), Worker()
    entered = threading.Event()

    def enter() -> None:
        with turns.present(late):
            entered.set()

    with turns.present(one):
        turns.alone(one, nothing)
        begins = started(enter)
        assert waits(begins)
        assert not entered.is_set()
        turns.together(one)
        assert not waits(begins)


def test_who_leaves_alone_lets_the_others_go_on() -> None:
    turns, one, other = Turns(), Worker(), Worker()
    with turns.present(other):
        with turns.present(one):
            turns.alone(one, nothing)
            assert other.stopped
        assert not other.stopped


def test_who_gives_up_asking_is_not_waited_for() -> None:
    turns, one, other, third = Turns(), Worker(), Worker(), Worker()
    given_up = threading.Event()

    def check() -> None:
        if given_up.is_set():
            raise InterruptedError

    def ask() -> None:
        with pytest.raises(InterruptedError):
            turns.alone(other, check)

    with turns.present(one), turns.present(other), turns.present(third):
        turns.alone(one, nothing)
        asks = started(ask)
        assert waits(asks)
        given_up.set()
        asks.join(5)
        turns.together(one)
        assert (one.stopped, third.stopped) == (False, False)
        until = time.monotonic() + 5
        last = started(lambda: turns.alone(third, nothing))
        last.join(5)
        assert not last.is_alive()
        assert time.monotonic() < until
