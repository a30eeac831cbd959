"""`harness doctor`: what this machine can and cannot decide, and what is missing for the rest. Nothing is run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from harness import session
from harness.commands.arguments import ContractPaths, Json
from harness.contract.load import load_contracts
from harness.evidence import environment
from harness.evidence.plan_records import Unit
from harness.numbers import dump_json
from harness.report.outcome import remedy_for
from harness.system.resolve import describe


def doctor(paths: ContractPaths = None, json: Json = False) -> None:
    """Say which units this machine can decide, and what is missing for the others; nothing is run."""
    typer.echo(diagnosis_text(paths or [Path("contracts")], as_json=json))


@dataclass(frozen=True)
class Diagnosis:
    """The machine's facts, every unit with its obstacle if it has one, and systems that cannot be described."""

    facts: list[tuple[str, str]]
    units: list[Unit]
    broken: list[tuple[str, str]]

    @property
    def decidable(self) -> list[Unit]:
        return [unit for unit in self.units if unit.obstacle is None]


def diagnose(paths: Sequence[Path]) -> Diagnosis:
    """Plan the contracts for this machine. Raises ContractErrors."""
    contracts = load_contracts(paths)
    planned = session.plan_contracts(contracts, session.Options())
    broken = []
    for system in sorted({loaded.contract.system for loaded in contracts}):
        try:
            describe(system)
        except Exception as error:  # a system may raise anything
            broken.append((system, str(error)))
    return Diagnosis(_facts(environment.collect()), planned.units, broken)


def _facts(collected: dict[str, Any]) -> list[tuple[str, str]]:
    versions, gpu, cpu = collected["versions"], collected["gpu"], collected["cpu"]
    built = f"for CUDA {versions['cuda']}" if versions.get("cuda") else "without CUDA"
    device = f"{gpu['name']} ({gpu['architecture']}, {gpu['memory_gib']:.0f} GiB)" if "name" in gpu else gpu["problem"]
    optional = ("triton", "cuda-bindings", "transformers", "peft", "bitsandbytes")
    return [
        ("GPU", device),
        ("driver", str(gpu.get("driver") or "none")),
        ("processor", f"{cpu['model']}, {cpu['usable_cores']} usable cores, {collected['host_memory_gib']:g} GiB"),
        ("Python", versions["python"]),
        ("torch", f"{versions['torch']}, built {built}" if "torch" in versions else "not installed"),
        *((name, versions.get(name, "not installed")) for name in optional),
    ]


def diagnosis_text(paths: Sequence[Path], *, as_json: bool) -> str:
    """The diagnosis as text, or as one JSON object."""
    found = diagnose(paths)
    return _json(found) if as_json else _text(found)


def _json(found: Diagnosis) -> str:
    units = [
        {
            "contract": unit.contract,
            "claim": unit.claim,
            "workload": unit.workload,
            "decidable": unit.obstacle is None,
            "reason": unit.obstacle.reason if unit.obstacle else None,
            "missing": unit.obstacle.message if unit.obstacle else None,
        }
        for unit in found.units
    ]
    broken = [{"system": system, "problem": problem} for system, problem in found.broken]
    return dump_json({"machine": dict(found.facts), "units": units, "broken": broken}, indent=2)


def _text(found: Diagnosis) -> str:
    lines = [f"{len(found.decidable)} of {len(found.units)} units can be decided on this machine", ""]
    lines += [f"  {name:<14}{value}" for name, value in found.facts]
    lines += [f"BROKEN  {system}: {problem}" for system, problem in found.broken]
    lines += ["", "Can be decided:", *(f"  {_name(unit)}" for unit in found.decidable or [])]
    lines += [] if found.decidable else ["  nothing"]
    groups: dict[tuple[str, str], list[Unit]] = {}
    for unit in found.units:
        if unit.obstacle is not None:
            groups.setdefault((unit.obstacle.reason, unit.obstacle.message), []).append(unit)
    for (reason, message), units in groups.items():
        remedy = remedy_for(reason)
        lines += ["", f"Cannot be decided, {message}:", *(f"  {_name(unit)}" for unit in units)]
        lines += [f"  -> {remedy}"] if remedy else []
    return "\n".join(lines)


def _name(unit: Unit) -> str:
    return f"{unit.claim} on {unit.workload} ({unit.contract})"
