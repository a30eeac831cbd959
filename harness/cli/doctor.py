"""`harness doctor`: print which units this machine can decide, and what is missing for the others; nothing is run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.api import session
from harness.cli.arguments import ContractPaths, Json
from harness.cli.interruption import interruptible
from harness.contract.load import load_contracts
from harness.contract.waivers import FilesRead
from harness.devices import environment
from harness.errors import SystemResolutionError, UsageError
from harness.evidence.environment_records import Environment
from harness.evidence.plan_records import Unit
from harness.numbers import counted, dump_json
from harness.platform.standard_streams import print_json, print_lines
from harness.report.wording import reason_text
from harness.system.described import describe_all

if TYPE_CHECKING:
    from harness.api.steady import Steadiness

CONTRACTS = Path("contracts")


def doctor(
    paths: ContractPaths = None,
    json: Json = False,
    steady: Annotated[
        int | None,
        typer.Option("--steady", min=1, metavar="SECONDS", help="Measure which GPUs keep their clock under load."),
    ] = None,
) -> None:
    """Print which units this machine can decide, and what is missing for the others; nothing is run."""
    if steady is not None:
        if json:
            raise UsageError("--steady cannot print JSON", got="--json", remedy="leave out --steady or --json")
        from harness.api.steady import look

        with interruptible():
            print_lines(steadiness_lines(look(load_contracts(paths or [CONTRACTS]), steady)))
        return
    diagnosis = diagnose(paths or [CONTRACTS])
    if json:
        print_json(_json(diagnosis))
    else:
        print_lines(_lines(diagnosis))


@dataclass(frozen=True)
class Diagnosis:
    """Facts about the machine, all units, and systems that could not be described, with the error. A unit that this
    machine cannot decide has an obstacle, which gives the reason."""

    facts: list[tuple[str, str]]
    units: list[Unit]
    broken: list[tuple[str, str]]

    @property
    def decidable(self) -> list[Unit]:
        return [unit for unit in self.units if unit.obstacle is None]


def diagnose(paths: Sequence[Path]) -> Diagnosis:
    """Plan the contracts for this machine. Return which units this machine can decide. Raises ContractErrors."""
    contracts = load_contracts(paths)
    read = FilesRead.of(paths, None, contracts)
    planned = session.plan_contracts(contracts, session.VerifyOptions())
    described = describe_all(sorted({system for loaded in contracts for system in loaded.contract.systems()}))
    read.require_unchanged()
    broken = [(name, str(answer)) for name, answer in described.items() if isinstance(answer, SystemResolutionError)]
    return Diagnosis(_facts(environment.collect()), planned.units, broken)


def _facts(collected: Environment) -> list[tuple[str, str]]:
    versions, gpu, cpu = collected.versions, collected.gpu, collected.cpu
    built = f"for CUDA {versions['cuda']}" if versions.get("cuda") else "without CUDA"
    device = f"{gpu.name} ({gpu.architecture}, {gpu.memory_gib:.0f} GiB)" if gpu.name else gpu.problem or "none"
    optional = ("triton", "cuda-bindings", "transformers", "peft", "bitsandbytes")
    return [
        ("GPU", device),
        ("driver", gpu.driver or "none"),
        (
            "processor",
            f"{cpu.model}, {counted(cpu.usable_cores or 0, 'usable core')}, {collected.host_memory_gib:g} GiB",
        ),
        ("Python", versions.get("python") or "unknown"),
        ("torch", f"{versions['torch']}, built {built}" if "torch" in versions else "not installed"),
        *((name, versions.get(name) or "not installed") for name in optional),
    ]


def _json(diagnosis: Diagnosis) -> str:
    units = [
        {
            "contract": unit.contract,
            "claim": unit.claim,
            "workload": unit.workload,
            "decidable": unit.obstacle is None,
            "reason": unit.obstacle.reason if unit.obstacle else None,
            "missing": unit.obstacle.message if unit.obstacle else None,
        }
        for unit in diagnosis.units
    ]
    broken = [{"system": system, "problem": problem} for system, problem in diagnosis.broken]
    return dump_json({"machine": dict(diagnosis.facts), "units": units, "broken": broken}, indent=2)


def _lines(diagnosis: Diagnosis) -> list[str]:
    lines = [
        f"{len(diagnosis.decidable)} of {counted(len(diagnosis.units), 'unit')} can be decided on this machine",
        "",
    ]
    lines += [f"  {name:<14}{value}" for name, value in diagnosis.facts]
    lines += [f"BROKEN  {system}: {problem}" for system, problem in diagnosis.broken]
    lines += ["", "Can be decided:", *(f"  {_name(unit)}" for unit in diagnosis.decidable or [])]
    lines += [] if diagnosis.decidable else ["  nothing"]
    groups: dict[tuple[str, str], list[Unit]] = {}
    for unit in diagnosis.units:
        if unit.obstacle is not None:
            groups.setdefault((unit.obstacle.reason, unit.obstacle.message), []).append(unit)
    for (reason, message), units in groups.items():
        remedy = reason_text(reason).remedy
        lines += ["", f"Cannot be decided, {message}:", *(f"  {_name(unit)}" for unit in units)]
        lines += [f"  -> {remedy}"] if remedy else []
    return lines


def _name(unit: Unit) -> str:
    return f"{unit.claim} on {unit.workload} ({unit.contract})"


def steadiness_lines(found: Sequence[Steadiness]) -> list[str]:
    """Return a line about each measured GPU: the spread and the range of its clock, and its power."""
    return [
        f"{gpu.uuid}  spread {gpu.spread:.4f}  {gpu.lowest_mhz:.0f} to {gpu.highest_mhz:.0f} MHz  {gpu.power_w:.0f} W"
        for gpu in found
    ]
