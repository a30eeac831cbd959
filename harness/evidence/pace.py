"""When a processor's pace says that something else worked on it."""

from __future__ import annotations

# Times the least of the same machine. On an H200's host (20 processes, 320 blocks) a pace was either within 1.35 times
# the least, or 1.5 to 2 times it, six between: that is what two busy threads of one core leave each other.
DISTURBED = 1.35


def disturbed(pace: float, least: float) -> bool:
    """Whether a pace is a disturbed one, beside the least of its machine; one that is no number is."""
    return not pace <= DISTURBED * least
