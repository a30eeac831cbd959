"""Define the base classes of modes that observe which operators and torch functions a step calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class Observer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode under which compiled code still runs compiled. The mode sees the operators of compiled code only
    within `as_written`, which runs this code uncompiled.

    A subclass with a `host` (a `HostMade`) distinguishes a device's memory from the host's memory. Under such a mode, a
    step executes as it would on a device. Other subclasses do not change the step.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self.execute(func, args, kwargs or {})

    def execute(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Execute an operator, and return its result."""
        raise NotImplementedError

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True. If a dispatch mode returns False here, torch.compile compiles nothing under this mode."""
        return True


def leaves_the_step(mode: object) -> bool:
    """Return True if a step under the dispatch mode executes exactly as it does without the mode."""
    return isinstance(mode, Observer) and getattr(mode, "host", None) is None


class Interceptor(TorchFunctionMode):
    """A function mode. It sees calls of torch's functions and reads of a tensor's attributes."""

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self.execute(func, args, kwargs or {})

    def execute(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function, and return its result. Do not rename this method: `cpu_as_device.caller` recognizes frames
        by its name."""
        raise NotImplementedError
