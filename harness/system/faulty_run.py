"""Define the base of the harness's own faults: a run that passes everything through, so that each changes one thing."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

from harness.system.protocol import TrainingRun

if TYPE_CHECKING:
    from torch import Tensor

FAULTY_STEP = 5  # the step that a fault of one step hits; the last one of a shorter run


class FaultyRun:
    """Passes everything through to the wrapped run; subclasses change one thing.

    Capabilities are copied as bound methods, since `isinstance` with a runtime-checkable protocol looks at
    attributes that are there and not at `__getattr__`.
    """

    def __init__(self, inner: TrainingRun, steps: int) -> None:
        self._inner, self._steps = inner, steps
        self._adopt()

    def _adopt(self) -> None:
        for name in dir(self._inner):
            if not name.startswith("_") and not hasattr(type(self), name):
                with suppress(Exception):  # a property that raises is not a capability
                    setattr(self, name, getattr(self._inner, name))
        self._replace_capabilities()

    def _replace_capabilities(self) -> None:
        """Replace a method of the wrapped run, if it has that method: for faults in a capability."""

    @property
    def _faulty_step(self) -> int:
        return min(FAULTY_STEP, self._steps - 1)

    def step(self, index: int) -> Tensor:
        return self._inner.step(index)

    def facts(self) -> Mapping[str, bool | int | float | str]:
        return self._inner.facts()

    def __enter__(self) -> Self:
        self._inner = self._inner.__enter__()
        self._adopt()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inner.__exit__(kind, error, trace)
