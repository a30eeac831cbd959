"""The line between a worker and its supervisor: whole messages, within their seconds and their size."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from harness.processes import child
from harness.processes.child import Line, NoMessage, pair


@pytest.fixture
def ends() -> Iterator[tuple[Line, socket.socket]]:
    ours, theirs = pair()
    with theirs:
        yield ours, theirs
    ours.close()


def test_messages_are_received_one_at_a_time_and_an_incomplete_message_is_kept_for_later(
    ends: tuple[Line, socket.socket],
) -> None:
    ours, theirs = ends
    theirs.sendall(b"one\ntwo\nthr")
    assert [ours.receive(0.0), ours.receive(0.0), ours.receive(0.0)] == ["one", "two", None]
    theirs.sendall(b"ee\n")
    assert ours.receive(0.0) == "three"
    theirs.close()
    assert ours.receive(None) == ""


def test_the_time_limit_for_receiving_applies_until_a_line_is_complete(
    ends: tuple[Line, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this test each reading finds one more byte and takes a second."""
    ours, theirs = ends
    now = [0.0]

    def look(*_: object) -> tuple[list[Line], list[Line], list[Line]]:
        assert now[0] <= 5.0, "it looks on and on"
        now[0] += 1.0
        theirs.sendall(b".")
        return [ours], [], []

    monkeypatch.setattr(child, "monotonic", lambda: now[0])
    monkeypatch.setattr(child, "select", look)
    assert ours.receive(4.5) is None


def test_a_message_line_without_an_end_is_refused_at_a_size_limit(
    ends: tuple[Line, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = ends
    monkeypatch.setattr(child, "MOST_BYTES", 100)
    theirs.sendall(b"x" * 101)
    with pytest.raises(NoMessage):
        ours.receive(None)
    with pytest.raises(NoMessage):
        ours.receive(0.0)


def test_sending_a_message_to_a_process_that_does_not_read_ends_at_the_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(child, "SENDING_S", 0.01)
    ours, theirs = pair()
    with theirs:
        ours.send("x" * 2**22)
    ours.close()
