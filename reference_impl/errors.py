"""The error that the reference trainer raises for bad input."""

from __future__ import annotations


class ReferenceImplError(ValueError):
    """A configuration, checkpoint or data set cannot be used.

    ``argument``: the field, file or tensor that is wrong. ``found``: its value or state. ``remedy``: what to do.
    """

    def __init__(self, argument: str, found: str, remedy: str) -> None:
        super().__init__(f"{argument}: {found}; {remedy}")
        self.argument = argument
        self.found = found
        self.remedy = remedy
