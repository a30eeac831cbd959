"""How much a test may try: what takes seconds is left to `make test-slow`, what takes long to `.ci/long fuzz`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest
from hypothesis import settings


def is_long() -> bool:
    """Whether this run has the long budget (`--hypothesis-profile=long`)."""
    profile = settings.default
    return profile is not None and profile.max_examples > 1_000


def slow_but(quick: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """Values of a parameter, of which `make test` tries these alone; each must be there."""
    values = list(values)
    assert all(each in values for each in quick), quick
    return [each if each in quick else pytest.param(each, marks=pytest.mark.slow) for each in values]
