"""How much a test tries: cases that take seconds run in `make test-slow`, longer ones in `.ci/long fuzz`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest
from hypothesis import settings


def is_long() -> bool:
    """Return True if this run has the long budget (`--hypothesis-profile=long`)."""
    profile = settings.default
    return profile is not None and profile.max_examples > 1_000


def slow_but(quick: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """Return the values of a parameter, all but those in `quick` marked slow; `quick` must be among the values."""
    values = list(values)
    assert all(each in values for each in quick), quick
    return [each if each in quick else pytest.param(each, marks=pytest.mark.slow) for each in values]
