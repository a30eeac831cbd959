"""Read the series of one arm, a CSV whose losses keep every bit."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from harness.evidence import layout
from harness.evidence.files import Damaged, read_bytes
from harness.evidence.run_evidence import Series

_HEADER = ",".join(layout.SERIES_COLUMNS)


def read_series(path: Path) -> Series:
    """Return a series with every bit of its numbers. Raises `Damaged`. A million rows take about half a second."""
    text = read_bytes(path)
    end = text.find(b"\n")
    metrics = _metrics(path.name, text[: end if end >= 0 else None])
    text = text[: text.rfind(b"\n") + 1]  # a line that a death cut off is left out
    rows = max(0, text.count(b"\n") - 1)
    read = _read_whole(path, text, rows, metrics) or _read_field_by_field(path.name, text[end + 1 :], rows, metrics)
    if np.any(read.steps[1:] <= read.steps[:-1]):
        raise Damaged(f"{path.name}: steps do not increase")
    return read.series


def _metrics(name: str, header: bytes) -> list[str]:
    """Return the names of metrics in the header, which follow the columns that every series has."""
    columns = header.decode("ascii", "replace").split(",")
    own = len(layout.SERIES_COLUMNS)
    metrics = columns[own:]
    named = all(layout.METRIC_NAME.fullmatch(each) for each in metrics)
    if tuple(columns[:own]) != layout.SERIES_COLUMNS or not named or len(set(columns)) < len(columns):
        raise Damaged(f"{name}: the header is not {_HEADER} and the names of metrics")
    return metrics


class _Read(NamedTuple):
    steps: NDArray[np.int64]
    series: Series


def _read_whole(path: Path, text: bytes, rows: int, metrics: list[str]) -> _Read | None:
    """Return the rows by numpy's own reader, which rounds correctly; None where anything is unusual, or damaged."""
    # numpy would take a carriage return for a line end, and drop what stands after the last row that was counted
    if rows == 0 or not text.isascii() or b"\0" in text or b"\r" in text:
        return None
    names = (*layout.SERIES_COLUMNS, *metrics)
    start = text.index(b"\n") + 1
    first = text[start : text.index(b"\n", start)].split(b",")
    width = len(first[2]) + 1 if len(first) == len(names) else 1  # one more than the first digest's
    kinds = (np.int64, np.float64, f"S{width}", np.int64, np.int64, *[np.float64] * len(metrics))
    columns = np.dtype(list(zip(names, kinds, strict=True)))
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
    others = {name: np.ascontiguousarray(table[name]) for name in metrics}
    return _Read(table["step"], Series(loss, DigestColumn(digests), active, tokens, others))


def _read_field_by_field(name: str, body: bytes, rows: int, metrics: list[str]) -> _Read:
    """Return the rows by Python's own conversions. Raises `Damaged` with what is wrong."""
    own = len(layout.SERIES_COLUMNS)
    width = own + len(metrics)
    # a newline becomes a comma, so one split gives every field
    fields = body[:-1].replace(b"\n", b",").decode("ascii", "replace").split(",") if rows else []
    if len(fields) != rows * width:
        raise Damaged(f"{name}: {rows} rows hold {len(fields)} fields, not {width} each")
    try:
        steps = np.fromiter(map(int, fields[0::width]), np.int64, rows)
        loss = np.fromiter(map(float, fields[1::width]), np.float64, rows)
        active = np.fromiter(map(int, fields[3::width]), np.int64, rows)
        tokens = np.fromiter(map(int, fields[4::width]), np.int64, rows)
        others = {
            metric: np.fromiter(map(float, fields[place::width]), np.float64, rows)
            for place, metric in enumerate(metrics, start=own)
        }
    except (ValueError, OverflowError) as error:
        raise Damaged(f"{name}: {str(error)[:200]}") from error
    return _Read(steps, Series(loss, fields[2::width], active, tokens, others))


class DigestColumn(Sequence[str]):
    """ASCII digests [rows] without NUL bytes. Two columns compare as blocks: 10 ms for a million rows."""

    def __init__(self, encoded: NDArray[np.bytes_]) -> None:
        self._encoded = encoded

    def __len__(self) -> int:
        return len(self._encoded)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> DigestColumn: ...
    def __getitem__(self, index: int | slice) -> str | DigestColumn:
        if isinstance(index, slice):
            return DigestColumn(self._encoded[index])
        return bytes(self._encoded[index]).decode("ascii")

    def __iter__(self) -> Iterator[str]:
        # decoding all at once takes a tenth of the time of one at a time
        return iter(self._encoded.astype(np.str_).tolist())

    def __contains__(self, digest: object) -> bool:
        return isinstance(digest, str) and digest.isascii() and bool((self._encoded == digest.encode()).any())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, DigestColumn):
            return np.array_equal(self._encoded, other._encoded)
        return isinstance(other, Sequence) and list(self) == list(other)

    def distinct(self) -> int:
        """Return how many different digests there are, counted as bytes, since text would take twice the time."""
        return len(set(self._encoded.tolist()))

    def __hash__(self) -> int:
        return hash(self._encoded.tobytes())


def distinct(digests: Sequence[str]) -> int:
    """Return how many different digests a column or a list holds."""
    return digests.distinct() if isinstance(digests, DigestColumn) else len(set(digests))
