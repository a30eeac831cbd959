"""How much a test may try: what takes long is left to `.ci/long fuzz`."""

from __future__ import annotations

from hypothesis import settings


def is_long() -> bool:
    """Whether this run has the long budget (`--hypothesis-profile=long`)."""
    profile = settings.default
    return profile is not None and profile.max_examples > 1_000
