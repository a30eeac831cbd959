"""Find why a unit cannot be decided here: what the machine lacks, or what the system does not offer."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from harness.contract.claims import AnyClaim, AnyPart, parts_of
from harness.contract.conditions import capability_of, is_gpu, reaches
from harness.contract.schema import Arm, Contract, Workload
from harness.devices.environment import Machine
from harness.errors import SystemResolutionError
from harness.evidence.base import Obstacle
from harness.evidence.descriptions import SystemDescription
from harness.kinds import kind_of, probe_of
from harness.planning.gpu_needs import gpus_needed, needs_cuda, ranks_of
from harness.platform.installing import command_for
from harness.platform.paths import without_folders

# What the extra `run` installs; cuda-bindings exist for Linux alone (pyproject.toml).
RUN_MODULES = ("torch", "filelock", "pynvml", *(("cuda.bindings",) if sys.platform == "linux" else ()))


Describe = Callable[[str], SystemDescription | SystemResolutionError]


def system_obstacle(contract: Contract, claim: AnyClaim, describe: Describe) -> Obstacle | None:
    """Return an obstacle if a system of the claim's arms cannot be described.

    Without its description the unit would be planned as another one. So this is an ERROR, even
    where the machine could not decide the unit anyway, or a worker could have opened the system.
    """
    arms = {arm for part in parts_of(claim) for arm in part.arms().values()}
    for system in dict.fromkeys(contract.arms[arm].system or contract.system for arm in sorted(arms)):
        description = describe(system)
        if isinstance(description, SystemResolutionError):
            return Obstacle(reason="system_not_described", message=without_folders(str(description)))
    return None


def find_obstacle(
    contract: Contract,
    claim: AnyClaim,
    workload: Workload,
    machine: Machine,
    describe: Describe,
) -> Obstacle | None:
    """Return the first obstacle to this unit on this machine; None if its runs can be executed."""
    return (
        _cannot_run(machine)
        or _missing_module(workload, machine)
        or _missing_cuda(contract, claim, workload, machine)
        or _other_gpu(workload, machine)
        or _missing_gpus(contract, claim, workload, machine)
        or _missing_memory(workload, machine)
        or _one_rank_only(contract, claim)
        or _missing_capability(contract, claim, describe)
    )


def _cannot_run(machine: Machine) -> Obstacle | None:
    """Return an obstacle if runs lack what they need: a system that ends process groups, or the extra `run`."""
    if not hasattr(os, "killpg"):
        return Obstacle(reason="not_available", message="runs need Linux or macOS; evidence is judged anywhere")
    missing = [name for name in RUN_MODULES if not machine.has_module(name)]
    if not missing:
        return None
    message = f"needs {', '.join(missing)}: not installed here; `{command_for('run')}` adds what runs need"
    return Obstacle(reason="module_missing", message=message)


def _missing_module(workload: Workload, machine: Machine) -> Obstacle | None:
    missing = [name for name in workload.needs.modules if not machine.has_module(name)]
    if not missing:
        return None
    return Obstacle(reason="module_missing", message=f"needs {', '.join(missing)}: not installed here")


def _missing_cuda(contract: Contract, claim: AnyClaim, workload: Workload, machine: Machine) -> Obstacle | None:
    # a device that is there and cannot be read is a violation, for a judge to say
    reads_device = machine.gpu_unreadable and all(
        kind_of(part.kind).judges_unreadable_device for part in parts_of(claim)
    )
    if machine.cuda or reads_device or not needs_cuda(contract, claim, workload):
        return None
    return Obstacle(reason="needs_cuda", message=f"needs CUDA: {machine.cuda_message}")


def _other_gpu(workload: Workload, machine: Machine) -> Obstacle | None:
    """Return an obstacle if there is a GPU, but not of the name or the compute capability that is asked for."""
    if not machine.gpus:
        return None
    gpu, needs = machine.gpus[0], workload.needs
    capability = capability_of(gpu.architecture)
    if needs.gpu_names() and not any(is_gpu(gpu.name, name) for name in needs.gpu_names()):
        message = f"needs a GPU named {' or '.join(needs.gpu_names())}: this machine has {gpu.name}"
    elif needs.capability_at_least is not None and not reaches(capability, needs.capability_at_least):
        there = f"{gpu.name} has {capability or 'none that is known'}"
        message = f"needs compute capability {needs.capability_at_least} or more: {there}"
    else:
        return None
    return Obstacle(reason="needs_gpu", message=message)


def _missing_gpus(contract: Contract, claim: AnyClaim, workload: Workload, machine: Machine) -> Obstacle | None:
    """Return an obstacle if there are GPUs, but fewer than the unit needs: each rank has one of its own."""
    needed, there = gpus_needed(contract, claim, workload), len(machine.gpus)
    if there == 0 or there >= needed:
        return None
    return Obstacle(reason="needs_gpu", message=f"needs {needed} GPUs, one for each rank: this machine has {there}")


def _one_rank_only(contract: Contract, claim: AnyClaim) -> Obstacle | None:
    """Return an obstacle for several ranks if the probe starts processes itself, or counts what one process does."""
    for part in parts_of(claim):
        probe = probe_of(part)
        if not probe.of_ranks and ranks_of(contract, [part]) > 1:
            message = f"{part.kind} is judged of arms with one rank: its probe `{probe.name}` starts no others"
            return Obstacle(reason="one_rank_only", message=message)
    return None


def _missing_memory(workload: Workload, machine: Machine) -> Obstacle | None:
    needed = workload.needs.memory_gib
    on_gpu = machine.cuda and workload.needs.device != "cpu"
    there = machine.gpu_memory_gib if on_gpu else machine.host_memory_gib
    if needed is None or there >= needed:
        return None
    where = "GPU" if on_gpu else "host"
    message = f"needs {needed:g} GiB of {where} memory: this machine has {there:.1f} GiB"
    return Obstacle(reason="needs_memory", message=message)


def _missing_capability(contract: Contract, claim: AnyClaim, describe: Describe) -> Obstacle | None:
    for part in parts_of(claim):
        for arm_name in part.arms().values():
            arm = contract.arms[arm_name]
            system = describe(arm.system or contract.system)
            if isinstance(system, SystemResolutionError):
                continue  # `system_obstacle` has it
            if (what := lacking(part, arm_name, arm, system)) is not None:
                return Obstacle(reason="capability_missing", message=f"arm {arm_name}: {system.name} {what}")
    return None


def lacking(part: AnyPart, name: str, arm: Arm, system: SystemDescription) -> str | None:
    """Return what an arm's system lacks for this judgement to be decided, in words; None if it lacks nothing."""
    needed, arms = kind_of(part.kind).capabilities, part.arms()
    for one in part.variants():
        if name == arms.get(part.candidate_path):
            needed |= one.candidate_capabilities()
        if name == arms.get(part.baseline_path):
            needed |= one.baseline_capabilities()
    missing = sorted(needed - system.capabilities)
    if missing:
        return f"lacks the capability `{missing[0]}` that {part.kind} needs"
    if arm.capture not in system.captures:
        return f"does not understand `capture: {arm.capture}`"
    if arm.warm_steps and "warm_steps" not in system.capabilities:
        return "lacks the capability `warm_steps`; leave these out"
    return None
