"""Read the series of one arm, a CSV whose losses keep every bit."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.evidence import layout
from harness.evidence.digest_column import DigestColumn
from harness.evidence.files import Damaged, read_bytes
from harness.evidence.run_evidence import Series

_HEADER = ",".join(layout.SERIES_COLUMNS).encode()


def read_series(path: Path) -> Series:
    """A series, every bit of its losses kept; raises `Damaged`. A million rows take about half a second."""
    text = read_bytes(path)
    end = text.find(b"\n")
    if text[: end if end >= 0 else None] != _HEADER:
        raise Damaged(f"{path.name}: the header is not {_HEADER.decode()}")
    text = text[: text.rfind(b"\n") + 1]  # a line that a death cut off is left out
    rows = max(0, text.count(b"\n") - 1)
    read = _read_whole(path, text, rows) or _read_field_by_field(path.name, text[len(_HEADER) + 1 :], rows)
    if np.any(read.steps[1:] <= read.steps[:-1]):
        raise Damaged(f"{path.name}: steps do not increase")
    return read.series


class _Read(NamedTuple):
    steps: NDArray[np.int64]
    series: Series


def _read_whole(path: Path, text: bytes, rows: int) -> _Read | None:
    """The rows by numpy's own reader, which rounds correctly; None where anything is unusual, damage included."""
    # numpy would take a carriage return for a line end, and drop what stands after the last row that was counted
    if rows == 0 or not text.isascii() or b"\0" in text or b"\r" in text:
        return None
    start = len(_HEADER) + 1
    first = text[start : text.index(b"\n", start)].split(b",")
    width = len(first[2]) + 1 if len(first) == len(layout.SERIES_COLUMNS) else 1  # one more than the first digest's
    kinds = (np.int64, np.float64, f"S{width}", np.int64, np.int64)
    columns = np.dtype(list(zip(layout.SERIES_COLUMNS, kinds, strict=True)))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # numpy merely warns of an integer written as a float
            table = np.loadtxt(str(path), columns, comments=None, delimiter=",", skiprows=1, max_rows=rows, ndmin=1)
    except (ValueError, Warning):
        return None
    digests = np.ascontiguousarray(table["batch_digest"])
    if len(table) != rows or digests.view(np.uint8).reshape(rows, width)[:, -1].any():
        return None
    loss, active, tokens = (np.ascontiguousarray(table[name]) for name in ("loss", "clip_active_groups", "tokens"))
    return _Read(table["step"], Series(loss, DigestColumn(digests), active, tokens))


def _read_field_by_field(name: str, body: bytes, rows: int) -> _Read:
    """The rows by Python's own conversions; raises `Damaged` with what is wrong."""
    width = len(layout.SERIES_COLUMNS)
    # a newline becomes a comma, so one split gives every field
    fields = body[:-1].replace(b"\n", b",").decode("ascii", "replace").split(",") if rows else []
    if len(fields) != rows * width:
        raise Damaged(f"{name}: {rows} rows hold {len(fields)} fields, not {width} each")
    try:
        steps = np.fromiter(map(int, fields[0::width]), np.int64, rows)
        loss = np.fromiter(map(float, fields[1::width]), np.float64, rows)
        active = np.fromiter(map(int, fields[3::width]), np.int64, rows)
        tokens = np.fromiter(map(int, fields[4::width]), np.int64, rows)
    except (ValueError, OverflowError) as error:
        raise Damaged(f"{name}: {str(error)[:200]}") from error
    return _Read(steps, Series(loss, fields[2::width], active, tokens))
