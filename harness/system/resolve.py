"""Turn the name `module:attribute` into a TrainingSystem. This runs untrusted code. Therefore only workers and the
process that describes systems call `resolve`."""

from __future__ import annotations

import difflib
import importlib
import sys
from typing import Any, NoReturn, cast

from harness.commits.import_path import in_use
from harness.errors import SystemResolutionError
from harness.platform.paths import add_working_directory
from harness.system.protocol import NotAvailable, SystemDescription, TrainingSystem
from harness.system.users_code import definition, named, relative


class RetiredSystem:
    """A system that cannot train any more. The class remains, because published contracts name the system. It defines
    no faults."""

    def describe(self) -> SystemDescription:
        return SystemDescription("a retired system", "cannot train any more", (), {}, {}, frozenset())

    def open(self, *_arguments: object, **_options: object) -> NoReturn:
        raise NotAvailable(
            "the harness no longer contains this system; use a claim of kind step_accuracy with your own peer instead"
        )


RETIRED = {"harness.system.huggingface:TransformersQLoRA"}


def resolve(name: str) -> TrainingSystem:
    """Return the training system that `name` (`package.module:attribute`) names. The attribute is an instance, a class
    or a factory.

    The module is imported, also from the working directory. A class or factory is called without arguments. The system
    is not opened. Raise `SystemResolutionError` if any of this fails. If the attribute is missing, the error suggests
    the nearest names. In a process for a baseline's commit, the error is also raised if modules of the repository were
    not imported from the worktree of that commit.
    """
    module_name, _, attribute_path = name.partition(":")
    if not module_name or not attribute_path:
        raise SystemResolutionError(
            "a system must be named `module:attribute`", where=name, remedy="for example `my_package.system:MySystem`"
        )
    if name in RETIRED:
        return RetiredSystem()
    add_working_directory()
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        raise SystemResolutionError(
            "the system's module must be importable",
            where=name,
            got=named(error),
            remedy=_import_remedy(module_name, error),
        ) from error
    for attribute in attribute_path.split("."):
        if not hasattr(found, attribute):
            raise SystemResolutionError(
                f"the system's module must have the attribute {attribute!r}",
                where=name,
                got=f"none in {_file_of(found)}",
                remedy=_suggestion(attribute, found),
            )
        found = getattr(found, attribute)
    system = _instance(name, found)
    if (at_commit := in_use()) is not None:
        at_commit.require(name)
    return system


def _import_remedy(module: str, error: Exception) -> str:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is not None and f"{module}.".startswith(f"{missing}."):
        return f"run from the folder that holds `{missing}`, install it, or put its folder on PYTHONPATH"
    return f"fix the module first, so that `import {module}` works in this environment ({sys.executable})"


def _instance(name: str, found: Any) -> TrainingSystem:
    is_instance = _looks_like_a_system(found) and not isinstance(found, type)
    if not is_instance and callable(found):
        try:
            found = found()
        except Exception as error:
            raise SystemResolutionError(
                "a system's class or factory must be callable without arguments",
                where=name,
                got=f"{named(error)}{_defined(found)}",
                remedy="give its parameters default values, or create an instance in the module, "
                "`system = MySystem(…)`, and name it: `module:system`",
            ) from error
    if not _looks_like_a_system(found):
        raise SystemResolutionError(
            "a training system must have the methods `describe` and `open`",
            where=name,
            got=f"a {type(found).__name__}{_defined(type(found))}",
            remedy="inherit from `harness.system.step_function.StepFunctionSystem`, or define both methods",
        )
    return cast("TrainingSystem", found)


def _file_of(owner: Any) -> str:
    """Return a module's file, or its name if it has none."""
    file = getattr(owner, "__file__", None)
    return relative(file) if isinstance(file, str) else repr(getattr(owner, "__name__", owner))


def _defined(thing: Any) -> str:
    place = definition(thing)
    return f" ({place})" if place else ""


def _looks_like_a_system(found: Any) -> bool:
    return callable(getattr(found, "describe", None)) and callable(getattr(found, "open", None))


def _suggestion(attribute: str, owner: Any) -> str:
    public = [name for name in dir(owner) if not name.startswith("_")]
    near = difflib.get_close_matches(attribute, public, n=3, cutoff=0.5)
    if near:
        return f"did you mean {', '.join(near)}?"
    systems = [name for name in public if _looks_like_a_system(getattr(owner, name))]
    return f"systems in the module: {', '.join(systems)}" if systems else "the module has no training system"
