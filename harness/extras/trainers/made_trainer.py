"""Use a function of a project as a system. The function returns a trainer of transformers, TRL or Lightning.

    class System(MadeTrainerSystem):
        name = "train:make_trainer"

        def build(self, workload, arm):
            from train import make_trainer

            return make_trainer(seed=workload.seed)     # its `train()` was not called yet

`harness init` and `harness try --write-contract` write such a file. The trainer runs its library's loop. An arm may
change the `TrainingArguments` that the function creates, in Python's syntax: `arguments: "bf16=True"`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from harness.extras.trainers.driven_trainer import DRIVES, DrivenTrainer, DrivenTrainerSystem
from harness.system.adapter_checks import AdapterError, describe_value, nearest
from harness.system.made_step import as_asked, made_step_faults
from harness.system.protocol import Scalar, SystemDescription, TrainingRun
from harness.system.users_code import definition, return_place

if TYPE_CHECKING:
    from harness.contract.schema import Arm, Workload


class MadeTrainerSystem(DrivenTrainerSystem):
    """The system for a function that returns a trainer. A user writes a subclass that defines `build`.

    An arm has the option `drive` of `DrivenTrainerSystem` and three more: `arguments` changes TrainingArguments,
    `trains: false` undoes every update (for a control), and `optimized` is read only by `build`.
    """

    summary = "a library's trainer that a function of the project makes"
    arm_options: Mapping[str, Sequence[Scalar] | type] = MappingProxyType(
        {"drive": DRIVES, "arguments": str, "trains": bool, "optimized": bool}
    )

    def build(self, workload: Workload, arm: Arm) -> Any:
        """Return the transformers trainer of an arm. For Lightning, return trainer, module and data loader."""
        raise NotImplementedError

    def driven(self, workload: Workload, arm: Arm) -> DrivenTrainer:
        given = _arguments(str(arm.settings().get("arguments", "")))
        with _given(given, self.build) as made:
            built = self.build(workload, arm)
        trainer = built[0] if isinstance(built, tuple | list) and len(built) == 3 else built
        library = _library(trainer)
        if library == "transformers":
            from harness.extras.trainers.transformers_trainer import DrivenTransformersTrainer

            if given and not any(each is trainer.args for each in made):
                raise _unused(given, self.build)
            return DrivenTransformersTrainer(trainer)
        if library == "lightning" and trainer is not built:
            from harness.extras.trainers.lightning_trainer import DrivenLightningTrainer

            if given:
                raise _unused(given, self.build)
            return DrivenLightningTrainer(*built)
        raise AdapterError(
            "build must return a trainer of transformers, or Lightning's trainer with its module and its data loader",
            where=return_place(self.build),
            got=describe_value(built),
            remedy="end the function with `return trainer`, or with `return trainer, module, loader`, before the "
            "trainer's loop is called",
        )

    def describe(self) -> SystemDescription:
        faults = {name: fault for name, fault in made_step_faults().items() if "capture" not in fault.breaks}
        return replace(super().describe(), faults=faults)

    def open(
        self,
        workload: Workload,
        arm: Arm,
        *,
        fault: str | None = None,
        data: str | None = None,
        model_directory: str | None = None,
    ) -> TrainingRun:
        opened = super().open(workload, arm, data=data, model_directory=model_directory)
        return as_asked(opened, arm, fault, workload.steps)


def _library(trainer: object) -> str:
    """Return the name of the library that defines the object's Trainer class, or "" if the object is not a Trainer."""
    known = {"transformers": "transformers", "lightning": "lightning", "pytorch_lightning": "lightning"}
    for each in type(trainer).__mro__:
        if each.__name__ == "Trainer" and each.__module__.partition(".")[0] in known:
            return known[each.__module__.partition(".")[0]]
    return ""


def _arguments(text: str) -> dict[str, Any]:
    """Return the named arguments in a text such as `bf16=True`. Raises AdapterError if the text contains anything but
    names and literal values."""
    try:
        call = ast.parse(f"dict({text})", mode="eval").body
        return dict(_named(call))
    except (SyntaxError, ValueError) as error:
        raise AdapterError(
            "`arguments` of an arm must be written as in a call, with names and literals",
            where="the contract",
            got=f"{text!r}: {error}",
            remedy="for example `arguments: 'bf16=True, optim=\"adamw_torch_fused\"'`",
        ) from error


def _named(call: ast.expr) -> Iterator[tuple[str, Any]]:
    if not isinstance(call, ast.Call) or call.args or any(each.arg is None for each in call.keywords):
        raise ValueError("an argument without a name")
    for each in call.keywords:
        yield str(each.arg), ast.literal_eval(each.value)


@contextmanager
def _given(given: Mapping[str, Any], build: Any) -> Iterator[list[object]]:
    """Within the `with` block, set the arguments `given` in every TrainingArguments that is created. Yield a list, to
    which each created TrainingArguments is added."""
    if not given:
        yield []
        return
    from transformers import TrainingArguments

    known = [each.name for each in fields(TrainingArguments) if each.init]
    for name in given:
        if name not in known:
            raise AdapterError(
                "`arguments` of an arm must be arguments of transformers' TrainingArguments",
                where=definition(build),
                got=f"`{name}`",
                remedy=nearest(name, known),
            )
    finish, made = TrainingArguments.__post_init__, list[object]()

    def finish_with(arguments: Any) -> None:  # takes the place of `__post_init__`, which subclasses call, too
        vars(arguments).update(given)
        finish(arguments)
        made.append(arguments)

    TrainingArguments.__post_init__ = finish_with
    try:
        yield made
    finally:
        TrainingArguments.__post_init__ = finish


def _unused(given: Mapping[str, Any], build: Any) -> AdapterError:
    return AdapterError(
        "an arm's `arguments` must reach the TrainingArguments that the function creates for its trainer",
        where=definition(build),
        got=f"{', '.join(given)}, for a trainer whose TrainingArguments were created outside of the function",
        remedy="create the arguments in the function; or let the function take `optimized`, and write `optimized: "
        "true` in the arm",
    )
