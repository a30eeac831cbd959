"""The one error that the reference trainer raises for bad input."""

from __future__ import annotations


class ReferenceImplError(ValueError):
    """A configuration, checkpoint or data set that cannot be used.

    ``argument`` names what is wrong (a field, a file, a tensor), ``found`` what was there, ``remedy`` what to do.
    """

    def __init__(self, argument: str, found: str, remedy: str) -> None:
        super().__init__(f"{argument}: {found}; {remedy}")
        self.argument = argument
        self.found = found
        self.remedy = remedy
