"""What training scripts leave in the place of a standard stream: none of it can be flushed."""

from __future__ import annotations

import io


class Logger:
    """As scripts have that print into a file: it writes, and has nothing else."""

    def write(self, text: str) -> int:
        return len(text)


class Raises(Logger):
    def flush(self) -> None:
        raise OSError("the file is gone")


class Leaves(Logger):
    def flush(self) -> None:
        raise SystemExit(3)


def closed() -> io.TextIOWrapper:
    stream = io.TextIOWrapper(io.BytesIO())
    stream.close()
    return stream


STREAMS = {"None": lambda: None, "closed": closed, "no flush": Logger, "raises": Raises, "leaves": Leaves}
