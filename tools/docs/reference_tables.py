"""Fill pages of docs/reference/ from tables in the code, such as the reason codes, the commands and the glossary."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

import typer.main
from page_tables import table

from harness.cli.application import COMMANDS, EXAMPLES, application
from harness.contract.json_schema import field_docstrings
from harness.errors import ExitCode
from harness.judging.reasons import REASONS
from harness.judging.verdict import Status
from harness.kinds import BUILT_IN
from harness.kinds.checks import ROLES, SHARED_CHECKS
from harness.report.wording import glossary as glossary_terms
from harness.report.wording import reason_text
from harness.system import protocol

ROOT = Path(__file__).parents[2]
STATUSES = {
    Status.PASS: "The claim holds. Everything that it requires was observed.",
    Status.FAIL: "The claim does not hold, or the comparison shows nothing (`vacuous_…`).",
    Status.INCONCLUSIVE: "The claim was measured, but the measurement does not decide it.",
    Status.NOT_RUN: "This machine or this system cannot decide the claim. The message says what is missing.",
    Status.ERROR: "The harness, a worker, the system or the machine broke.",
}
CELLS = """\
`yes` means that the kind makes the check for every arm that it reads. A number refers to a reason below the
table. A repetition is the second run of a baseline, which shows the baseline's noise. A half is a part of a
training that was saved and loaded. An older execution was recorded by a version of the harness that did
not record the data for this check."""
PROTOCOLS: dict[str, tuple[type, ...]] = {
    "inputs": (protocol.HasInputs,),
    "parameters": (protocol.HasParameters,),
    "state": (protocol.HasState,),
    "gradients": (protocol.HasGradients,),
    "gradient_norms": (protocol.HasGradientNorms,),
    "metrics": (protocol.HasMetrics,),
    "moments": (protocol.HasMoments,),
    "single_steps": (protocol.MakesSingleSteps,),
    "capture": (protocol.HasCapture, protocol.HasStepBody, protocol.CanRecapture, protocol.CountsClippedTensors),
    "kernels": (protocol.HasKernels, protocol.CrossCompiles),
    "skipped_steps": (protocol.CountsSkippedSteps,),
    "kernel_cases": (protocol.HasKernelCases,),
    "checkpoint": (protocol.HasCheckpoint,),
    "peer": (protocol.ServesAsPeer,),
    "resume": (protocol.Resumes,),
    "evaluate": (protocol.Evaluates,),
    "warm_steps": (protocol.HasCapture,),
}


def reason_codes() -> str:
    """Return a table of the reason codes of each status."""
    parts = []
    for status, meaning in STATUSES.items():
        codes = [one.code for one in REASONS.values() if one.status is status]
        rows = [(f"`{code}`", str(reason_text(code).meaning)) for code in codes]
        parts += [f"## {status}", meaning, table(("code", "meaning"), rows)]
    return "\n\n".join(parts)


def shared_checks() -> str:
    """Return the tables of shared checks: a row for each kind, a column for each check, and the numbered reasons."""
    reasons = list(dict.fromkeys(reason for kind in BUILT_IN.values() for reason in kind.leaves_out.values()))
    rows = [
        (f"`{kind.name}`", *(_asked(kind.leaves_out, check, reasons) for check in SHARED_CHECKS))
        for kind in BUILT_IN.values()
    ]
    meanings = [(f"`{check}`", meaning) for check, meaning in SHARED_CHECKS.items()]
    numbered = "\n".join(f"{number}. {reason}" for number, reason in enumerate(reasons, 1))
    return "\n\n".join(
        [
            table(("check", "what holds before a claim may pass"), meanings),
            "## Which kind makes which check",
            CELLS,
            table(("kind", *(f"`{check}`" for check in SHARED_CHECKS)), rows),
            "## Reasons",
            numbered,
        ]
    )


def _asked(leaves_out: Mapping[str, str], check: str, reasons: list[str]) -> str:
    """Return the table's cell for a kind of claim and a check: `yes`, `no (3)`, or `yes, not of a control (4)`. The
    number is the position in `reasons` of the reason why the check is left out. A new reason is added to `reasons`."""
    if check in leaves_out:
        return f"no ({reasons.index(leaves_out[check]) + 1})"
    roles = {role: leaves_out.get(f"{check}.{role}", leaves_out.get(role)) for role in sorted(ROLES)}
    except_of = [f"not of a {role} ({reasons.index(reason) + 1})" for role, reason in roles.items() if reason]
    return ", ".join(["yes", *except_of])


def exit_codes() -> str:
    """Return the table of exit codes, with the docstring of each."""
    meanings = field_docstrings(ExitCode.__module__)
    rows = [(f"`{code.value}`", code.name, meanings[ExitCode.__name__, code.name]) for code in ExitCode]
    return table(("code", "name", "meaning"), rows)


def capabilities() -> str:
    """Return the table of capabilities, with the methods of each and the kinds of claims that need it."""
    rows = []
    for name in protocol.CAPABILITIES:
        needing = [f"`{kind.name}`" for kind in BUILT_IN.values() if name in kind.capabilities]
        methods = "<br>".join(line for each in PROTOCOLS[name] for line in _methods(each))
        rows.append((f"`{name}`", methods, ", ".join(needing) or "some claims, by what they demand"))
    return table(("capability", "protocol and methods", "needed by"), rows)


def _methods(offered: type) -> Iterator[str]:
    """Yield each method of a protocol with the first sentence of its docstring, such as `HasInputs.inputs()`: …."""
    for name, method in vars(offered).items():
        if not name.startswith("_") and callable(method):
            said = (inspect.getdoc(method) or vars(offered).get("__doc__") or "").split("\n\n", maxsplit=1)[0]
            yield f"`{offered.__name__}.{name}()`" + (f": {said}" if said else "")


def commands() -> str:
    """Return a section for each command, with its help, its options and examples."""
    group = cast("typer.core.TyperGroup", typer.main.get_command(application([])))
    parts = []
    for name in COMMANDS:
        command = group.commands[name]
        rows = [_parameter(one) for one in command.params]
        parts += [f"## harness {name}", str(command.help), table(("argument or option", "default", ""), rows)]
        width = max(len(arguments) for arguments, _ in EXAMPLES[name])
        examples = [f"harness {name} {arguments:<{width}}  # {what}" for arguments, what in EXAMPLES[name]]
        parts.append(
            "\n".join(["<!-- not run here: examples of names that are the reader's -->", "```sh", *examples, "```"])
        )
    return "\n\n".join(parts)


def _parameter(parameter: object) -> tuple[str, str, str]:
    """Return the name of a parameter as a user types it, its default (may be empty), and its help text."""
    names = [*getattr(parameter, "opts", []), *getattr(parameter, "secondary_opts", [])]
    is_option = names[0].startswith("-")
    shown = " / ".join(f"`{name}`" for name in names) if is_option else f"`{names[0].upper()}`"
    metavar, default = getattr(parameter, "metavar", None), getattr(parameter, "default", None)
    if is_option and metavar:
        shown += f" `{metavar}`"
    has_one = isinstance(default, str | int | float | Path) and not isinstance(default, bool)
    required = "must be given" if getattr(parameter, "required", False) else ""
    return shown, f"`{default}`" if has_one else required, str(getattr(parameter, "help", "") or "")


def glossary() -> str:
    """Return the table of terms, in alphabetical order."""
    return table(("term", "meaning"), sorted(glossary_terms().items(), key=lambda entry: entry[0].casefold()))
