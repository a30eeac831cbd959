"""Find out how many GPUs and how much GPU memory units and runs need, and why a unit cannot be decided on this machine.

The machine, the system, or the baseline of another commit may lack something that the unit needs. A run needs no GPU, a
part of a GPU's memory, or a whole GPU. Several ranks need several GPUs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Protocol

from harness.commits.checkout import Checkout, checked_out
from harness.contract.accepted_baselines import AcceptedBaseline
from harness.contract.conditions import capability_of, is_gpu, reaches
from harness.contract.schema import AnyClaim, AnyPart, Arm, Contract, Workload, parts_of
from harness.contract.strict_yaml import nearest
from harness.devices.cuda_driver import Gpu
from harness.devices.environment import Machine
from harness.errors import SystemResolutionError, UsageError
from harness.evidence.base import Obstacle
from harness.evidence.descriptions import SystemDescription
from harness.evidence.environment_records import SHORT
from harness.evidence.plan_records import Run
from harness.evidence.read_run import read_records
from harness.evidence.run_evidence import Death
from harness.evidence.run_records import ArmFailed, PartFailed
from harness.kinds import kind_of, probe_named, probe_of, resolve
from harness.platform.paths import command_for, without_folders

ON_DEVICE = "device"  # the value of `target` in the probe `kernels` that stands for the machine's own GPU


def needs_cuda(contract: Contract, claim: AnyClaim, workload: Workload) -> bool:
    """Return True if only a machine with a GPU can decide the unit."""
    parts = parts_of(claim)
    return (
        workload.needs.device == "cuda"
        or workload.needs.asks_for_gpu
        or "cuda_graph" in (claim.mechanism, *(part.mechanism for part in parts))
        or any(part.asks_the_device() or _asks_of_replays(contract, part) for part in parts)
    )


def gpus_needed(contract: Contract, claim: AnyClaim, workload: Workload) -> int:
    """Return how many GPUs the unit needs on a machine with GPUs: one for each rank, and at least one.

    Return 0 if the unit's workload needs the CPU.
    """
    if workload.needs.device == "cpu":
        return 0
    return max(workload.needs.gpus or 1, ranks_of(contract, parts_of(claim)))


def ranks_of(contract: Contract, parts: Sequence[AnyPart]) -> int:
    """Return the largest number of ranks of any arm that the parts name."""
    return max((contract.arms[arm].ranks for part in parts for arm in part.arms().values()), default=1)


def _asks_of_replays(contract: Contract, part: AnyPart) -> bool:
    candidate = part.arms().get(part.candidate_path)
    captures = candidate is not None and contract.arms[candidate].capture != "none"
    return captures and part.asks_the_device_of_replays()


def needs_gpu(run: Run) -> bool:
    """Return True if the run uses a GPU on a machine that has one."""
    return gpu_memory_gib(run) != 0.0


def gpus_of(run: Run, gpus: Sequence[Gpu]) -> list[str]:
    """Return the UUIDs of the GPUs that the run uses. The first rank uses the machine's first GPU, and each further
    rank the next GPU."""
    return [gpu.uuid for gpu in gpus[: run.ranks]] if needs_gpu(run) else []


def gpu_memory_gib(run: Run) -> float | None:
    """Return how many GiB of the GPU's memory the run may take; None if no other run may use the GPU at the same time.

    The result is None if the workload declares no memory, if the probe needs the whole device, or if the run has
    several ranks. The result is 0.0 if the run uses no GPU, for example because its workload needs the CPU.

    Several ranks need their GPUs alone, because a rank keeps its GPU busy while it waits for other ranks. When three
    runs with two ranks each shared two H200s, no run finished an arm's steps in four minutes. In all other cases the
    result is the memory that the workload declares, or twice as much (see `twice_if_filled`). The declared memory must
    suffice even for a run that times both arms, because `_missing_memory` accepts a GPU that has only this amount.
    """
    if run.workload.needs.device == "cpu":
        return 0.0
    memory: float | None = resolve(probe_named(run.probe).gpu_memory)(run)
    return memory if run.ranks == 1 or memory == 0.0 else None


def shares_gpu(run: Run) -> bool:
    """Return True if other commands may use the GPU during the run.

    Three conditions must hold: the run has one rank, its probe does not measure times, and its probe needs only a part
    of the GPU.
    """
    probe = probe_named(run.probe)
    return not probe.timed and resolve(probe.gpu_memory) is not all_of_it and run.ranks == 1


def ran_out_of_memory(directory: Path, death: Death | None) -> bool:
    """Return True if the device ran out of memory in a run or in a part of the run. directory: the run's evidence."""
    records, _ = read_records(directory)
    ends = [death, *(record for record in records if isinstance(record, ArmFailed | PartFailed))]
    return any(each is not None and "out of memory" in each.detail for each in ends)


def declared(run: Run) -> float | None:
    return run.workload.needs.memory_gib


def all_of_it(_run: Run) -> None:
    return None


def none_for_a_target(run: Run) -> float | None:
    """Return the memory that the workload declares, in GiB. Return 0.0 if the run only compiles kernels for another
    target than this machine's GPU."""
    return declared(run) if run.settings.get("target", ON_DEVICE) == ON_DEVICE else 0.0


def twice_if_filled(run: Run) -> float | None:
    """Return the memory that the workload declares, in GiB. If the probe fills the memory, return twice as much,
    because two processes open the arm."""
    memory = declared(run)
    return memory * 2 if memory is not None and run.settings.get("memory_filled") else memory


# Modules of the packages that the extra `run` installs. The package cuda-bindings exists only for Linux
# (pyproject.toml).
RUN_MODULES = ("torch", "filelock", "pynvml", *(("cuda.bindings",) if sys.platform == "linux" else ()))


Describe = Callable[[str], SystemDescription | SystemResolutionError]


def system_obstacle(contract: Contract, claim: AnyClaim, describe: Describe) -> Obstacle | None:
    """Return an obstacle if the system of one of the claim's arms cannot be described.

    The unit is then an ERROR, because it cannot be planned correctly without the description. Two facts do not change
    this: another obstacle of this machine, and a worker that could have opened the system.
    """
    arms = {arm for part in parts_of(claim) for arm in part.arms().values()}
    for system in dict.fromkeys(contract.arms[arm].system or contract.system for arm in sorted(arms)):
        description = describe(system)
        if isinstance(description, SystemResolutionError):
            return Obstacle(reason="system_not_described", message=without_folders(str(description)))
    return None


def find_obstacle(
    contract: Contract, claim: AnyClaim, workload: Workload, machine: Machine, describe: Describe
) -> Obstacle | None:
    """Return the first reason why this machine cannot decide the unit; None if the unit's runs can be executed here."""
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
    """Return an obstacle if no run can be executed on this machine, because it lacks process groups or the packages of
    the extra `run`."""
    if not hasattr(os, "killpg"):
        return Obstacle(
            reason="not_available", message="runs need Linux or macOS; recorded evidence can be judged on any system"
        )
    missing = [name for name in RUN_MODULES if not machine.has_module(name)]
    if not missing:
        return None
    message = f"{_not_installed(missing)}; `{command_for('run')}` installs everything that runs need"
    return Obstacle(reason="module_missing", message=message)


def _missing_module(workload: Workload, machine: Machine) -> Obstacle | None:
    missing = [name for name in workload.needs.modules if not machine.has_module(name)]
    if not missing:
        return None
    return Obstacle(reason="module_missing", message=_not_installed(missing))


def _not_installed(missing: Sequence[str]) -> str:
    return f"needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed here"


def _missing_cuda(contract: Contract, claim: AnyClaim, workload: Workload, machine: Machine) -> Obstacle | None:
    # For some kinds of claim, a GPU whose facts cannot be read is a violation that the judge reports. Such a GPU is
    # therefore no obstacle for claims of these kinds.
    reads_device = machine.gpu_unreadable and all(
        kind_of(part.kind).judges_unreadable_device for part in parts_of(claim)
    )
    if machine.cuda or reads_device:
        return None
    if needs_cuda(contract, claim, workload):
        return Obstacle(reason="needs_cuda", message=f"needs CUDA: {machine.cuda_message}")
    # On a machine without a GPU, the unit would be decided on the CPU. A machine with a broken GPU must not do this.
    if machine.gpu_unreadable and workload.needs.device is None:
        message = f"needs this machine's GPU, as the workload has no `needs: {{device: cpu}}`: {machine.cuda_message}"
        return Obstacle(reason="needs_cuda", message=message)
    return None


def _other_gpu(workload: Workload, machine: Machine) -> Obstacle | None:
    """Return an obstacle if the machine's GPU has another name than the workload requires, or a smaller compute
    capability."""
    if not machine.gpus:
        return None
    gpu, needs = machine.gpus[0], workload.needs
    capability = capability_of(gpu.architecture)
    if needs.gpu_names() and not any(is_gpu(gpu.name, name) for name in needs.gpu_names()):
        message = f"needs a GPU named {' or '.join(needs.gpu_names())}, but this machine has {gpu.name}"
    elif needs.capability_at_least is not None and not reaches(capability, needs.capability_at_least):
        there = f"{gpu.name} has {capability or 'an unknown one'}"
        message = f"needs compute capability {needs.capability_at_least} or more, but {there}"
    else:
        return None
    return Obstacle(reason="needs_gpu", message=message)


def _missing_gpus(contract: Contract, claim: AnyClaim, workload: Workload, machine: Machine) -> Obstacle | None:
    """Return an obstacle if the machine has GPUs, but fewer than the unit needs. Each rank needs its own GPU."""
    needed, there = gpus_needed(contract, claim, workload), len(machine.gpus)
    if there == 0 or there >= needed:
        return None
    return Obstacle(reason="needs_gpu", message=f"needs {needed} GPUs, one for each rank, but this machine has {there}")


def _one_rank_only(contract: Contract, claim: AnyClaim) -> Obstacle | None:
    """Return an obstacle if an arm of a part has several ranks and the part's probe supports only one."""
    for part in parts_of(claim):
        probe = probe_of(part)
        if not probe.of_ranks and ranks_of(contract, [part]) > 1:
            message = (
                f"{part.kind} can be judged only for arms with one rank, because its probe `{probe.name}` cannot "
                "start several ranks"
            )
            return Obstacle(reason="one_rank_only", message=message)
    return None


def _missing_memory(workload: Workload, machine: Machine) -> Obstacle | None:
    needed = workload.needs.memory_gib
    on_gpu = machine.cuda and workload.needs.device != "cpu"
    there = machine.gpu_memory_gib if on_gpu else machine.host_memory_gib
    if needed is None or there >= needed:
        return None
    where = "GPU" if on_gpu else "host"
    message = f"needs {needed:g} GiB of {where} memory, but this machine has {there:.1f} GiB"
    return Obstacle(reason="needs_memory", message=message)


def _missing_capability(contract: Contract, claim: AnyClaim, describe: Describe) -> Obstacle | None:
    for part in parts_of(claim):
        for arm_name in part.arms().values():
            arm = contract.arms[arm_name]
            system = describe(arm.system or contract.system)
            if isinstance(system, SystemResolutionError):
                continue  # `system_obstacle` reports this error
            if (what := lacking(part, arm_name, arm, system)) is not None:
                return Obstacle(reason="capability_missing", message=f"arm {arm_name}: {system.name} {what}")
    return None


def lacking(part: AnyPart, name: str, arm: Arm, system: SystemDescription) -> str | None:
    """Return a text about what the system of arm `name` lacks for this part of a claim; None if it lacks nothing."""
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
        return f"does not support `capture: {arm.capture}`"
    if arm.warm_steps and "warm_steps" not in system.capabilities:
        return "lacks the capability `warm_steps`; remove `warm_steps` from the arm"
    return None


Descriptions = Mapping[str, SystemDescription | SystemResolutionError]


class HasContract(Protocol):
    """A loaded contract."""

    @property
    def contract(self) -> Contract: ...


@dataclass(frozen=True)
class Baseline:
    """The commit whose code is used by the arms that claims name as `baseline`. All other arms use the working tree.
    commit: None means that the baseline arms use the working tree, too.

    descriptions: by name, the descriptions of the systems at that commit, or the errors that prevented a description.
    tree: the folder with the checkout of the commit.
    accepted: by contract and claim, the baselines of claims that have another commit.
    """

    commit: str | None = None
    descriptions: Descriptions = field(default_factory=dict)
    tree: str = ""
    accepted: Mapping[tuple[str, str], Baseline] = field(default_factory=dict)

    def of(self, contract: str, claim: str) -> Baseline:
        """Return the baseline commit of one claim."""
        return self.accepted.get((contract, claim), self)


def baseline_systems(contracts: Sequence[Contract]) -> list[str]:
    """Return the names of the systems of all arms that a claim names as `baseline`, without duplicates."""
    arms = [
        contract.arms[part.arms()["baseline"]].system or contract.system
        for contract in contracts
        for claim in contract.claims
        for part in parts_of(claim)
        if "baseline" in part.arms()
    ]
    return list(dict.fromkeys(arms))


def baseline_checkout(
    contracts: Sequence[HasContract],
    name: str | None,
    reports: Path,
    accepted: Sequence[AcceptedBaseline] = (),
    day: date | None = None,
) -> AbstractContextManager[Checkout | None]:
    """Check out the commit `name` for the baseline arms, in a git worktree that exists within the `with` block. Do
    nothing if `name` is None.

    accepted, day: see `checked_out`. Raise UsageError if no claim names a baseline, and the errors of `checked_out`.
    """
    if name is None:
        return nullcontext()
    systems = baseline_systems([loaded.contract for loaded in contracts])
    if not systems:
        raise UsageError("--baseline needs a claim whose field `baseline` names an arm", got="no such claim")
    return checked_out(name, systems, reports, accepted=accepted, day=day)


def commit_obstacle(contract: Contract, claim: AnyClaim, baseline: Baseline) -> Obstacle | None:
    """Return why a claim cannot be judged with its baseline at another commit. Return None if the claim can be judged,
    or names no baseline."""
    for part in parts_of(claim):
        if "baseline" in part.arms():
            if baseline.commit is None:
                found = _with_itself(contract, part)
            else:
                found = (
                    _of_ranks(contract, part)
                    or _one_process(part)
                    or _unlike_there(contract, part, baseline, baseline.commit)
                )
            if found is not None:
                return found
    return None


def _with_itself(contract: Contract, part: AnyPart) -> Obstacle | None:
    """Return an obstacle if candidate and baseline have equal settings and the same commit, because the comparison
    would then show nothing."""
    arms = part.arms()
    candidate, baseline = arms.get(part.candidate_path), arms["baseline"]
    if candidate is None or not contract.same_settings(candidate, baseline):
        return None
    message = (
        f"arms {candidate} and {baseline} have the same settings: name a commit for {baseline} with --baseline REF"
    )
    return Obstacle(reason="needs_baseline", message=message)


def _of_ranks(contract: Contract, part: AnyPart) -> Obstacle | None:
    if ranks_of(contract, [part]) == 1:
        return None
    message = f"{part.kind} can compare two commits only if their arms have one rank"
    return Obstacle(reason="one_rank_only", message=message)


def _one_process(part: AnyPart) -> Obstacle | None:
    if probe_of(part).across_commits:
        return None
    message = f"{part.kind} executes its arms in one process, which can hold the modules of only one commit"
    return Obstacle(reason="one_commit_a_process", message=message)


def _unlike_there(contract: Contract, part: AnyPart, baseline: Baseline, commit: str) -> Obstacle | None:
    """Return an obstacle if the baseline arm's system cannot be described at `commit`, or lacks what the part needs."""
    name = part.arms()["baseline"]
    arm = contract.arms[name]
    system = arm.system or contract.system
    there = baseline.descriptions[system]
    at = f"at {commit[:SHORT]}"
    if isinstance(there, SystemResolutionError):
        why = without_folders(str(there).replace(f"{baseline.tree}/", ""))
        return Obstacle(reason="system_not_described", message=f"arm {name}, {at}: {why}")
    unknown = [setting for setting in arm.settings() if setting not in there.arm_options]
    lacks = lacking(part, name, arm, there)
    if lacks is None and unknown:
        lacks = f"has no setting `{unknown[0]}`; {nearest(unknown[0], there.arm_options) or 'it has no settings'}"
    if lacks is None:
        return None
    return Obstacle(reason="capability_missing", message=f"arm {name}: {there.name} {at} {lacks}")
