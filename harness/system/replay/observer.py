"""The base of what the harness puts between a step and torch to see the operators that the step executes."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Observer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode under which compiled code stays compiled: `as_written` is for who needs its operators.

    leaves_the_step: the step executes as it does without the mode, and not as it would on a device.
    """

    leaves_the_step = False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)  # type: ignore[no-untyped-call]

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True, so that torch.compile works under it: a mode that does not say so lets nothing be compiled."""
        return True
