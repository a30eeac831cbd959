"""Write to a process's sockets, one of which belongs to the harness, as a system might."""

from __future__ import annotations

import os
import stat

DESCRIPTORS = range(3, 64)


def write_to_sockets(text: bytes) -> None:
    """Write to each socket of this process, as a system might that takes one for its own."""
    for descriptor in DESCRIPTORS:
        if _is_socket(descriptor):
            os.write(descriptor, text)


def _is_socket(descriptor: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    except OSError:
        return False
