"""Read what an evaluation returns as numbers by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from harness.system.adapter_checks import AdapterError, describe_value
from harness.system.users_code import return_place

WHOLE = "value"  # the name of a number that came alone


def require_values(returned: object, evaluate: Callable[[], object]) -> dict[str, float]:
    """Return the numbers that `evaluate` returned; none if it returned None. Raises `AdapterError` for anything else.

    Reading them waits for the device.
    """
    from torch import Tensor

    if returned is None:
        return {}
    entries = returned.items() if isinstance(returned, Mapping) else [(WHOLE, returned)]
    values = {}
    for name, value in entries:
        number = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
        if isinstance(number, bool) or not isinstance(number, int | float):
            found = describe_value(value) if name == WHOLE else f"{describe_value(value)} under {name!r:.60}"
            raise AdapterError(
                "evaluate() returns a number, a tensor of one number, or several of them by name",
                where=return_place(evaluate),
                got=found,
                remedy="return the mean loss of the evaluated batches, say",
            )
        values[str(name)] = float(number)
    return values
