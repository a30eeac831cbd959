"""The fixed day on which tests of waivers run, so that no test runs over midnight."""

from __future__ import annotations

from datetime import UTC, date, datetime, tzinfo
from typing import Self

TODAY = date(2026, 6, 15)


class Noon(datetime):
    """A clock that stands still."""

    @classmethod
    def now(cls, tz: tzinfo | None = UTC) -> Self:
        return cls(TODAY.year, TODAY.month, TODAY.day, 12, tzinfo=tz)

    @classmethod
    def fromtimestamp(cls, _timestamp: float, tz: tzinfo | None = UTC) -> Self:
        return cls.now(tz)
