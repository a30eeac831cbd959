"""Define the base of the harness's own faults: a run that passes everything through, so that each changes one thing.

`faults.yaml` is the table of the faults. Importing this needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from math import nan
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from harness.contract.strict_yaml import read
from harness.system.protocol import Expectation, FaultDescription, HasParameters, HasState, TrainingRun
from harness.system.sharded_tensors import local

if TYPE_CHECKING:
    from torch import Tensor

FAULTY_STEP = 5  # the step that a fault of one step hits; the last one of a shorter run
SLOWDOWN = 5  # of a baseline: any sleep as long as the step itself shows
# A captured step of a tiny model was 14 times as fast as an eager one of 14 ms on an H200, one of 28 layers 4.6 times
# as fast as one of 28 ms: the sleep turns such ratios over, the factor those of steps too long for it to matter.
CANDIDATE_SLOWDOWN = 2
CANDIDATE_SLEEP_S = 0.05
BUSY_OPERATIONS = 200
REMEMBERED = 3  # steps
RARELY = 10  # a fault in every tenth step, which two watched steps pass by
SHIFT = 1000.0  # of a metric
NAN = nan
LATE = 0.77  # of all steps: 7,700 of 10,000
LAST_STEP = 5.0  # times its own time that the last of the slowing steps takes
SCALE = 10.0  # of parameters in a checkpoint
REDUCTIONS = 16
NUMBERS: Mapping[str, float] = {name: value for name, value in globals().items() if type(value) in (int, float)}
"""The numbers above, by the names that the table has for them."""


@cache
def _table() -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", read(Path(__file__).with_name("faults.yaml"), "a table of faults").value)


def described_faults(group: str) -> dict[str, FaultDescription]:
    """Return the faults of one group of the table, by name."""
    return {
        name: FaultDescription(
            name,
            row["summary"].format_map(NUMBERS),
            row.get("plant", "candidate"),
            {kind: _expectation(said) for kinds, said in row["breaks"].items() for kind in kinds.split(", ")},
            row.get("needs", "any"),
        )
        for name, row in _table()[group].items()
    }


def wrapped_faults(group: str) -> list[str]:
    """Return the faults of a group that a wrapper plants."""
    return [name for name, row in _table()[group].items() if "wrapper" in row]


def planted(training: TrainingRun, group: str, fault: str, steps: int) -> FaultyRun:
    """Return the run in the wrapper that plants a fault. steps: how many steps the run will make."""
    row = _table()[group][fault]
    module, _, name = row["wrapper"].partition(":")
    wrapper: type[FaultyRun] = getattr(import_module(f"harness.system.{module}"), name)
    return wrapper(training, steps, **{key: NUMBERS.get(value, value) for key, value in row.get("with", {}).items()})


def _expectation(said: str | Mapping[str, Any]) -> Expectation:
    if isinstance(said, str):
        return Expectation("FAIL", said)
    own = {"status", "reason", "or_reasons"}
    figures = {name: NUMBERS.get(value, value) for name, value in said.items() if name not in own}
    return Expectation(said.get("status", "FAIL"), said["reason"], figures, tuple(said.get("or_reasons", ())))


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

    def _trained(self) -> list[Tensor]:
        """Return this rank's part of each trained tensor, detached."""
        inner = self._inner
        parameters = inner.parameters().values() if isinstance(inner, HasParameters) else ()
        return [local(parameter).detach() for parameter in parameters]

    def _of_optimizer(self, begins: tuple[str, ...]) -> list[Tensor]:
        """Return the tensors of the optimizer's state whose own names begin with one of these texts."""
        state = self._inner.state().get("optimizer", {}) if isinstance(self._inner, HasState) else {}
        return [local(tensor).detach() for name, tensor in state.items() if name.rpartition(".")[2].startswith(begins)]

    def __enter__(self) -> Self:
        self._inner = self._inner.__enter__()
        self._adopt()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inner.__exit__(kind, error, trace)
