"""Objects that training scripts use in place of a standard stream; none can be flushed."""

from __future__ import annotations

import io


class Logger:
    """A stream with nothing but `write`, as in scripts that print to a file."""

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
