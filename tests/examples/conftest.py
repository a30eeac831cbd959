"""What tests of the museum ask: a process for each worker, whatever file a test is in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from field_bug_server import Ask, Drill, Server, server


@pytest.fixture(scope="session")
def field_bug_server() -> Iterator[Server]:
    with server() as opened:
        yield opened


@pytest.fixture
def ask(field_bug_server: Server) -> Ask:
    """What the claims say of a form of an entry."""
    return field_bug_server.ask


@pytest.fixture
def drill(field_bug_server: Server) -> Drill:
    """What becomes of the faults that a form's claims name."""
    return field_bug_server.drill
