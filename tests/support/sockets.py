"""What a system does to a process's sockets that holds one of the harness's own among them."""

from __future__ import annotations

import os
import stat

DESCRIPTORS = range(3, 64)


def write_to_sockets(text: bytes) -> None:
    """Write to each socket that this process has, as a system may that takes one for its own."""
    for descriptor in DESCRIPTORS:
        if _is_socket(descriptor):
            os.write(descriptor, text)


def _is_socket(descriptor: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    except OSError:
        return False
